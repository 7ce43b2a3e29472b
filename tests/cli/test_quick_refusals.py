"""Missing data sets are refused before Lightning is loaded, unless options may change them."""

import os
import subprocess
import sys

import pytest

from probseg.cli.missing_data import check_data
from probseg.errors import DatasetNotFoundError

QUICK = """
import sys
from probseg.cli import main
assert main(["test", "--config", "configs/experiment/grabcut.yaml"]) == 2
heavy = {"lightning", "jsonargparse", "torchvision", "timm", "scipy"} & set(sys.modules)
assert not heavy, heavy
"""

NESTED = """
class_path: InteractiveDataModule
init_args:
  val: {class_path: SamplePhotos}
  test:
    - {class_path: probseg.data.SBD, init_args: {split: val, root: moved}}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path))
    (tmp_path / "data.yaml").write_text(NESTED)
    (tmp_path / "mine.yaml").write_text("data: data.yaml")
    return tmp_path


def test_the_refusal_needs_no_lightning(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", QUICK],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PROBSEG_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr.startswith(f"probseg: error: GrabCut was not found in {tmp_path}")


def test_a_data_set_in_a_file_that_the_configuration_names(place):
    with pytest.raises(DatasetNotFoundError, match="SBD was not found in moved"):
        check_data(["test", "--config=mine.yaml", "--trainer.devices=1"])
    (place / "moved").mkdir()  # what is in it is the business of the data set
    check_data(["test", "--config=mine.yaml"])


@pytest.mark.parametrize(
    "option", ["--data.test=SamplePhotos", "--folder=mine", "--print_config", "--config=more.yaml"]
)
def test_options_that_may_change_the_data_are_parsed_first(option, place):
    (place / "more.yaml").write_text("data: {init_args: {test: {class_path: SamplePhotos}}}")
    check_data(["test", "--config", "mine.yaml", option])


@pytest.mark.parametrize(
    ("old", "new"),
    [("probseg.data.SBD", "mine.SBD"), ("split:", "splits:"), ("init_args:", "init_args: [")],
)
def test_what_the_parser_must_judge_is_left_to_it(old, new, place):
    (place / "data.yaml").write_text(NESTED.replace(old, new))
    check_data(["test", "--config", "mine.yaml"])
