"""Networks that begin with another's weights."""

import pytest
import torch

from probseg.errors import WeightsError
from probseg.models import read_preset
from probseg.zoo import warm_start
from probseg.zoo.store import save
from support.fakes import micro_model
from support.rows import each
from support.zoos import write_checkpoint


@pytest.fixture
def source(tmp_path):
    """A folder of a trained micro_conv, and its weights."""
    torch.manual_seed(1)
    model = micro_model("micro_conv").half().float()  # as they will be read
    save(model, read_preset("micro_conv"), tmp_path / "source")
    return f"{tmp_path / 'source'}", model.state_dict()


def test_all_weights_but_the_fresh_ones_are_copied(source):
    folder, weights = source
    torch.manual_seed(2)
    model = warm_start("micro_csa", folder, fresh=["head.*"])
    assert model.training
    own = model.state_dict()
    copied = [name for name in own if not name.startswith("head.")]
    assert len(copied) > 20
    for name in copied:
        torch.testing.assert_close(own[name], weights[name])
    torch.manual_seed(2)
    torch.testing.assert_close(
        own["head.bottleneck.0.weight"],
        micro_model("micro_csa").state_dict()["head.bottleneck.0.weight"],
    )


def test_a_checkpoint_is_a_source_too(source, tmp_path):
    _, weights = source
    path = write_checkpoint(tmp_path / "last.ckpt", weights, read_preset("micro_conv"))
    model = warm_start("micro_conv", str(path), changes={"working_size": 77})
    assert model.working_size == 77
    for name, value in weights.items():
        torch.testing.assert_close(model.state_dict()[name], value)


@each(
    ("fresh", "message"),
    [
        ([], r"for micro_csa with fresh=.*missing.*head\."),
        (["decoder.*"], r"for micro_csa with fresh=.*missing.*head\."),
        (["head.*", "haed.*"], r"'haed\.\*' matches no weight of micro_csa"),
    ],
)
def test_other_weights_must_fit(source, fresh, message):
    with pytest.raises(WeightsError, match=message):
        warm_start("micro_csa", source[0], fresh=fresh)
