"""Photographs that were cut off: what a whole training makes of them."""

import pytest

from probseg.data import FolderDataModule
from support.fakes import write_folder
from support.runs import command, folder_fit, usage_error

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with data, where a training runs."""
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "data", images=9, size=(120, 160))
    return tmp_path


def cut(part):
    """Cut off two photographs of a part behind the header with their size; return their paths.

    Args:
        part: `"train"` or `"val"`.
    """
    (objects,) = getattr(FolderDataModule("data", val_fraction=0.3), part)
    paths = objects.photographs[:2]
    for path in paths:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) * 3 // 4])
    return paths


def fit(*more):
    short = ("--trainer.max_epochs=1", "--trainer.num_sanity_val_steps=0")
    quick = ("--data.val_fraction=0.3", "--evaluation.pictures=0", "--data.num_workers=1")
    return folder_fit("data", *short, *quick, *more)


def test_of_the_training_they_are_left_out_up_to_a_limit(place, capsys):
    paths = cut("train")
    with pytest.warns(UserWarning, match="left out of the training") as warned:
        assert command(*fit()) == 0
    left_out = [str(w.message) for w in warned if str(w.message).startswith("left out of")]
    assert len(left_out) == 2, left_out
    assert all(any(str(path) in line for line in left_out) for path in paths)
    with pytest.warns(UserWarning, match="left out of the training"):
        message = usage_error(capsys, *fit("--data.max_skipped=1"))
    assert "max_skipped" in message
    assert all(f"\n  {path}: cannot be read" in message for path in paths)


def test_of_the_validation_they_stop_the_run(place, capsys):
    path, _ = cut("val")
    assert f"{path}: cannot be read" in usage_error(capsys, *fit("--data.num_workers=0"))
    assert (place / "runs/probseg/version_0/checkpoints/last.ckpt").is_file()
