"""`--folder`: any folder as the data of a test or a validation."""

import pytest

from probseg.data import FolderDataModule
from support.fakes import write_folder
from support.rows import each
from support.runs import MICRO, MICRO_EMANET, QUIET, only_made, usage_error


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A working directory with `mine`, six objects of three photographs, and no other data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path))
    write_folder(tmp_path / "mine", images=3, objects=2)
    return tmp_path


@pytest.mark.parametrize(
    ("verb", "name", "is_first"),
    [
        ("test", "folder", True),
        ("validate", "folder", False),
        ("test", "grabcut", False),
        ("validate", "gabbur2021_sbd", True),  # whose data set has a `split`, too
    ],
)
def test_all_objects_of_the_folder_replace_the_data_of_any_recipe(verb, name, is_first):
    config = ("--config", f"configs/experiment/{name}.yaml")
    options = (*MICRO, *QUIET, "--data.eval_batch_size=3")
    first, last = (("--folder", "mine"), ()) if is_first else ((), ("--folder=mine",))
    data = only_made(verb, *first, *config, *options, *last).datamodule
    evaluated, other = (data.test, data.val) if verb == "test" else (data.val, data.test)
    assert [len(of) for of in evaluated] == [6]
    assert (other, data.train, data.val_objects, data.eval_batch_size) == ([], [], None, 3)


def test_the_shipped_model_needs_no_configuration():
    made = only_made("test", "--folder", "mine", *QUIET)
    assert [len(of) for of in made.datamodule.test] == [6]
    assert made.config.test.model.init_args.model.init_args.name == "lite2_unet_prop"
    made = only_made("test", "--folder", "mine", *QUIET, *MICRO)
    assert [len(of) for of in made.datamodule.test] == [6]
    assert "micro_csa" in str(made.config.test.model)


def test_a_recipe_for_a_folder_says_that_it_tests_the_held_out_part(monkeypatch):
    data = FolderDataModule("mine")
    said = []
    monkeypatch.setattr("probseg.data.datamodule.rank_zero_info", said.append)
    for stage in ("fit", "validate"):
        data.setup(stage)
        assert not said
    data.setup("test")
    assert "the test has the 1 of 3 photographs of mine" in said[0]
    assert "--folder mine" in said[0]


@each(
    ("arguments", "words"),
    [
        (("test", "--folder"), ["--folder must be given once"]),
        (("test", "--folder", "mine", "--folder=b"), ["must be given once", "'mine', 'b'"]),
        (("test", "--folder=mine", "--data.root=b"), ["--folder mine and --data.root"]),
        (("test", "--folder=mine", "--data.test", "GrabCut"), ["--folder mine and --data.test"]),
        (("test", "--folder=mine", "--data.test.root=b"), ["and --data.test.root"]),
        (("validate", "--folder=mine", "--data", "b.yaml"), ["--folder mine and --data"]),
        (("fit", "--folder=mine"), ["is for test and validate", "--data.root"]),
        (("test", "--folder=none"), ["none, which does not exist", "images/ and masks/"]),
        (("test", "--folder=mine/images"), ["3 photographs, but no masks/", "Did you mean"]),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, words, capsys):
    config = ("--config", "configs/experiment/folder.yaml", *MICRO, *QUIET)
    message = usage_error(capsys, arguments[0], *config, *arguments[1:])
    assert all(word in message for word in words), message


def test_a_model_of_classes_is_refused(capsys):
    config = ("--config", "configs/experiment/emanet_camvid_cpu.yaml", *MICRO_EMANET, *QUIET)
    message = usage_error(capsys, "test", *config, "--folder", "mine")
    assert "needs photographs with a class for each pixel" in message
    assert "--folder" in message
