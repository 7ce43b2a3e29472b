"""Training from Python, and classes in files beside the configuration."""

import json
import re
from importlib import import_module

import numpy as np
import pytest

import probseg
from probseg.data import InteractiveDataModule
from probseg.errors import DataError, UsageError
from probseg.types import Sample
from support.fakes import FakeObjects, draw_scene, save, write_folder
from support.rows import each
from support.runs import separately

EXAMPLE = re.compile(r"^```python\n(# my_sets\.py\n.*?)^```\n.*?^```yaml\n(.*?)^```\n", re.S | re.M)
"""A data set and its configuration in docs/data.md."""

MICRO = {
    "model.model": "configs/model/micro_csa.yaml",
    "data.batch_size": 2,
    "data.crop_size": 64,
    "trainer.max_epochs": 1,
    "trainer.enable_progress_bar": False,
    "trainer.enable_model_summary": False,
}


@pytest.fixture
def own(tmp_path, repository):
    """The example of the documentation, in a folder below the current one."""
    for number in range(6):
        image, mask = draw_scene(40, 48, seed=number)
        place = tmp_path / "horses" / ("val" if number < 2 else "train")
        save(image, place / f"{number}.jpg")
        save(255 * mask, place / f"{number}_mask.png")
    module, config = EXAMPLE.search((repository / "docs" / "data.md").read_text("utf-8")).groups()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "my_sets.py").write_text(module)
    (tmp_path / "own" / "mine.yaml").write_text(config)
    return tmp_path


ATTENTION = """
from probseg.attention import StandardAttention2d

class Cosine(StandardAttention2d):
    \"\"\"Somebody's attention.\"\"\"
"""


@pytest.mark.process
def test_classes_beside_their_configuration(own, monkeypatch):
    (own / "own" / "my_attention.py").write_text(ATTENTION)
    recipe, save_dir = "--config=configs/experiment/folder.yaml", "--trainer.logger.save_dir=runs"
    small = [f"--{name}={value}" for name, value in MICRO.items()]
    small.append("--model.model.init_args.head.init_args.attention=my_attention.Cosine")
    said = separately(own, "fit", recipe, "--config=own/mine.yaml", save_dir, *small)
    run = own / "runs" / "probseg" / "version_0"
    (own / "elsewhere").mkdir()
    few = ("--evaluation.max_clicks=1", "--evaluation.trials=1")
    # Module and relative paths are found where the training was started.
    separately(own / "elsewhere", "test", f"--config={run / 'config.yaml'}", *few)
    (results,) = run.parent.glob("version_1/test/*/results.json")
    assert json.loads(results.read_text())["datasets"].keys() == {"horses"}
    assert "import my_attention; probseg.Predictor.from_pretrained" in said
    with pytest.raises(KeyError, match="import its module"):
        probseg.Predictor.from_pretrained(run)
    monkeypatch.syspath_prepend(own / "own")
    import_module("my_attention")
    predictor = probseg.Predictor.from_pretrained(run)
    assert "Cosine" in {type(part).__name__ for part in predictor.model.modules()}


class Odd(FakeObjects):
    """A first object that is not what a data set must return."""

    def __init__(self, **changes):
        super().__init__(2)
        self.changes = changes

    def __getitem__(self, index: int) -> Sample:
        return super().__getitem__(index)._replace(**self.changes)


@each(
    ("changes", "part"),
    [
        ({"image": np.zeros((3, 48, 64), np.uint8)}, "`image` must be a NumPy array of uint8"),
        ({"image": np.zeros((48, 64, 3))}, "float64"),
        ({"mask": np.full((48, 64), 7, np.uint8)}, "got 7"),
        ({"mask": np.zeros((48, 64), np.uint8)}, "no such pixel in 'object0'"),
        ({"mask": np.zeros((48, 64), bool)}, "bool"),
    ],
)
def test_what_a_data_set_returns_is_checked(changes, part):
    with pytest.raises(DataError, match=part) as refused:
        InteractiveDataModule(val=Odd(**changes))
    assert "Odd.__getitem__" in str(refused.value)


def test_training_from_python(tmp_path, monkeypatch, caplog, capfd):
    monkeypatch.chdir(tmp_path)
    folder = write_folder(tmp_path / "data", images=5, size=(40, 48))
    run = probseg.train(folder, {**MICRO, "trainer.enable_model_summary": True})
    said = caplog.text + str(capfd.readouterr())
    assert "Total params" in said
    assert "FLOPs" not in said
    assert run == tmp_path / "runs" / "probseg" / "version_0"
    assert (run.before, run.after, run.saved, run.sentence) == (None, None, None, "")
    assert not run.better
    probseg.Predictor.from_pretrained(run)
    probseg.create_model(run, pretrained=True)
    assert probseg.train(folder, {**MICRO, "ckpt_path": "last"}) == run
    with pytest.raises(UsageError, match="batch_sise"):
        probseg.train(folder, {**MICRO, "data.batch_sise": 2})
