"""Messages about paths: what is missing, and what is there instead."""

import json

import pytest
from jsonargparse import Namespace

from probseg.cli.faults import explain
from probseg.cli.processes import check_accelerator
from probseg.errors import UsageError
from support.fakes import write_folder
from support.rows import each
from support.runs import MICRO, QUIET, usage_error

FIT = ("fit", "--config", "configs/experiment/folder.yaml", *MICRO, *QUIET)
HAVE = "expected images/ and masks/"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with folders, files and results of all kinds."""
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "good", images=2)
    write_folder(tmp_path / "outer" / "inner", images=2)
    for name in ("empty", "run/checkpoints", "run/test/ritm"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("file", "run/checkpoints/last.ckpt", "run/config.yaml"):
        (tmp_path / name).write_text("x\n", encoding="utf-8")
    protocol = {"protocol": {"name": "ritm"}}
    (tmp_path / "run" / "test" / "ritm" / "results.json").write_text(json.dumps(protocol))
    return tmp_path


@pytest.mark.usefixtures("here")
@each(
    ("arguments", "words"),
    [
        ((*FIT, "--data.root=none"), ["none, which does not exist", HAVE, "$PROBSEG_DATA"]),
        ((*FIT, "--data.root=file"), ["file, which is a file", HAVE]),
        ((*FIT, "--data.root=empty"), [HAVE, "it has neither"]),
        ((*FIT, "--data.root=good/images"), ["2 photographs, but no masks/", "Did you mean /"]),
        ((*FIT, "--data.root=outer"), ["it has neither", "Did you mean outer/inner?"]),
        ((*FIT, "--data.root=good", "--ckpt_path=none"), ["--ckpt_path none: no such file"]),
        (
            (*FIT, "--data.root=good", "--ckpt_path=run"),
            ["--ckpt_path run: is a folder", "here run/checkpoints/last.ckpt"],
        ),
        (
            (*FIT, "--data.root=good", "--trainer.logger.save_dir=file"),
            ["--trainer.logger.save_dir", "cannot be written", "Not a directory"],
        ),
        ((*FIT, "--data.root=good", "--trainer.devices=[0,1]"), ["must be a number of processes"]),
        (("test", "--config", "run"), ["--config run: is a folder", "mean run/config.yaml?"]),
        (("compare", "none", "run"), ["none: no such folder", "`probseg test`"]),
        (("compare", "run", "none"), ["none: no such folder", "`probseg test`"]),
        (("compare", "run", "file"), ["file: is a file, expected a folder"]),
        (("compare", "run", "empty"), ["empty/results.json: no such file"]),
        (("annotate", "none"), ["none: no such folder"]),
        (("annotate", "file"), ["file: is a file, expected a folder"]),
        (("annotate", "good/images", "--out=file"), ["--out file: is a file, expected a folder"]),
        (("serve", "label-studio", "--images=none"), ["--images none: no such folder"]),
        (("serve", "label-studio", "--images=file"), ["--images file: is a file"]),
        (("data", "check", "file"), ["file: is a file, expected a folder"]),
        (("data", "check", "good/none"), ["good/none: no such folder"]),
        (("data", "check", "empty"), [HAVE, "it has neither"]),
        (("data", "check", "good", "--against=empty"), ["A photograph was not found in empty"]),
        (("data", "convert", "empty", "new", "--from=coco", "--to=png"), ["empty: is a folder"]),
        (("data", "convert", "file", "new", "--from=png", "--to=coco"), ["file: is a file"]),
        (("data", "convert", "none", "new", "--from=png", "--to=coco"), ["none: no such folder"]),
        (("predict", "good/images", "--prompts=none.csv", "--output=new"), ["none.csv: no such"]),
        (("export", "empty/", "--to=onnx", "--output=new"), ["empty/config.json: no such file"]),
        (("export", "empty", "--to=onnx", "--output=new"), ["for the folder", "give empty/"]),
        (("tune", "empty/", "--data=good"), ["empty/config.json: no such file"]),
    ],
)
def test_messages_name_what_is_there(arguments, words, capsys):
    message = usage_error(capsys, *arguments)
    assert all(word in message for word in words), message


@pytest.mark.parametrize("name", ["gpu", "cuda", "mps", "tpu"])
def test_devices_that_are_not_there(name, monkeypatch):
    for kind in ("CUDA", "MPS", "XLA"):
        place = f"probseg.cli.processes.{kind}Accelerator.is_available"
        monkeypatch.setattr(place, staticmethod(lambda: False))
    with pytest.raises(UsageError, match=rf"--trainer.accelerator {name}: .* choose cpu or auto"):
        check_accelerator(name)
    for other in ("cpu", "auto", "unknown"):  # which Lightning reports
        check_accelerator(other)
    monkeypatch.setattr("probseg.cli.processes.MPSAccelerator.is_available", lambda: True)
    check_accelerator("gpu")


def test_a_file_that_cannot_be_read_is_not_called_unwritable(tmp_path, monkeypatch):
    path = tmp_path / "weights.bin"
    path.touch()
    error = PermissionError(13, "Permission denied", str(path))
    monkeypatch.setattr("os.access", lambda *_: False)  # permissions do not stop a superuser
    message = str(explain(error, "fit", Namespace(), None))
    assert message == f"cannot read {path}: Permission denied; change its permissions"
