"""Photographs that were cut off: what a whole training makes of them."""

import pytest
from fakes import write_folder
from runs import command, folder_fit

from probseg.data import FolderDataModule

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with data, where a training runs."""
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "data", images=9, size=(120, 160))
    return tmp_path


def cut(part):
    """Cut off two photographs of a part, behind the header that has their size; return their paths.

    Args:
        part: ``"train"`` or ``"val"``.
    """
    (objects,) = getattr(FolderDataModule("data", val_fraction=0.3), part)
    paths = sorted({objects.dataset.objects[index][0] for index in objects.indices})[:2]
    for path in paths:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) * 3 // 4])
    return paths


def fit(*more):
    return command(
        *folder_fit(
            "data",
            "--data.val_fraction=0.3",
            "--trainer.max_epochs=1",
            "--trainer.num_sanity_val_steps=0",
            "--evaluation.pictures=0",
            *more,
        )
    )


def test_of_the_training_they_are_left_out_up_to_a_limit(place, capsys):
    paths = cut("train")
    with pytest.warns(UserWarning, match="left out of the training") as warned:
        assert fit("--data.num_workers=1") == 0
    told = [line for line in (str(w.message) for w in warned) if line.startswith("left out of")]
    assert len(told) == 2, told
    for path in paths:
        assert any(f"{path}: cannot be read as an image" in line for line in told)
    with pytest.warns(UserWarning, match="left out of the training"):
        assert fit("--data.num_workers=1", "--data.max_skipped=1") == 2
    error = capsys.readouterr().err
    assert "2 samples cannot be used, more than `max_skipped` (1)" in error
    assert all(f"\n  {path}: cannot be read" in error for path in paths)
    assert "Traceback" not in error


def test_of_the_validation_they_stop_the_run(place, capsys):
    path, _ = cut("val")
    assert fit() == 2
    error = capsys.readouterr().err
    assert f"probseg: error: {path}: cannot be read as an image" in error
    assert "Traceback" not in error
    assert (place / "runs/probseg/version_0/checkpoints/last.ckpt").is_file()
