"""Networks that begin with another's weights."""

import pytest
import torch

from probseg.errors import WeightsError
from probseg.models import read_preset
from probseg.zoo import warm_start
from probseg.zoo.store import save
from support.fakes import micro_model


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
    path = tmp_path / "last.ckpt"
    state = {f"model.{name}": value for name, value in weights.items()}
    network = {"model": read_preset("micro_conv")}
    torch.save({"state_dict": state, "hyper_parameters": network}, path)
    own = warm_start("micro_conv", str(path)).state_dict()
    for name, value in weights.items():
        torch.testing.assert_close(own[name], value)


def test_changes_reach_the_network(source):
    folder, _ = source
    assert warm_start("micro_conv", folder, changes={"working_size": 77}).working_size == 77


@pytest.mark.parametrize("fresh", [[], ["decoder.*"]])
def test_other_weights_must_fit(source, fresh):
    folder, _ = source
    with pytest.raises(WeightsError, match=r"for micro_csa with fresh=.*missing.*head\."):
        warm_start("micro_csa", folder, fresh=fresh)


def test_a_pattern_that_matches_nothing_is_an_error(source):
    folder, _ = source
    with pytest.raises(WeightsError, match=r"'haed\.\*' matches no weight of micro_csa"):
        warm_start("micro_csa", folder, fresh=["head.*", "haed.*"])
