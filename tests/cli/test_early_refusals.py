"""What can be refused or listed at once is, before torch is imported or a network is loaded."""

import errno
import os
import subprocess
import sys

import pytest

from probseg.cli.configs import GROUPS, trainer_arguments
from probseg.cli.trainer import ProbsegCLI, run
from probseg.paths import configs_dir
from support.fakes import write_folder
from support.runs import usage_error

QUICK = """
import sys
from probseg.cli import main
for line in [*sys.stdin.read().splitlines(), "data|list"]:
    assert main(line.split("|")) == (0 if line == "data|list" else 2), line
    heavy = {"torch", "lightning", "jsonargparse", "cv2", "scipy"} & set(sys.modules)
    assert not heavy, (line, heavy)
"""

PHOTO = "predict|data/images/photo0.jpg"
OUT = "--output|mask.png"
REFUSED = {
    f"{PHOTO}|{OUT}|--clik|1,1": "did you mean '--click'",
    f"{PHOTO}|--click|1,1": "--output",
    f"{PHOTO}|{OUT}|--click|1": "'1'",
    f"{PHOTO}|{OUT}|--click|1,1|--device|gpu": "'gpu'",
    f"predict|IMG.ARW|{OUT}|--click|1,1": "ARW is not supported",
    f"predict|none.jpg|{OUT}|--click|1,1": "none.jpg: no such photograph",
    f"{PHOTO}|--output|data/masks/photo0.png/m.png|--click|1,1": "cannot be written",
    "predict|data|--output|out|--click|1,1": "--prompts",
    "fit|--config|configs/experiment/fodler.yaml": "did you mean configs/experiment/folder.yaml?",
    "fit|--config|moved.yaml": "probseg fit --config ORIGINAL --print_config > mine.yaml",
    "test|--config=none.yaml": "--config none.yaml: does not exist",
    "fit|--tainer.max_epochs|3": "unknown probseg fit option 'tainer': did you mean 'trainer'",
    "fit|--trainer.max_epoch|3": "unknown option '--trainer.max_epoch': did you mean 'trainer.max",
    "fit|--trainer.callbacks+=x|--trainer.devises=1": "did you mean 'trainer.devices'",
    "test|--config|trainer.yaml": "--config trainer.yaml: unknown key 'trainer.acelerator'",
    "test|--config|keys.yaml": "--config keys.yaml: unknown key 'modle': did you mean 'model'",
}


def test_no_heavy_import_before_a_refusal_and_for_the_list_of_data(tmp_path):
    write_folder(tmp_path / "data", images=2, size=(24, 32))
    moved = (configs_dir() / "experiment" / "folder.yaml").read_text(encoding="utf-8")
    (tmp_path / "moved.yaml").write_text(moved, encoding="utf-8")
    (tmp_path / "keys.yaml").write_text("modle: {}")
    (tmp_path / "trainer.yaml").write_text("trainer: {devices: 1, acelerator: cpu}")
    (tmp_path / "IMG.ARW").write_bytes(b"x")
    done = subprocess.run(
        [sys.executable, "-c", QUICK],
        input="\n".join(REFUSED),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    messages = done.stderr.splitlines()
    for message, part in zip(messages, REFUSED.values(), strict=True):
        assert message.startswith("probseg: error: ")
        assert part in message


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("predict", "data/images/photo0.jpg", "--click=1,1", "--output=m.png"), "--output m.png"),
        (("predict", "data", "--prompts=none.json", "--output=new/r"), "--output new/r"),
        (("export", "none/", "--to=onnx", "--output=new"), "--output new"),
        (("compare", "none", "nothing", "--output=new"), "--output new"),
        (("data", "convert", "data/masks", "new", "--from=png", "--to=coco"), "B new"),
        (("data", "check", "none", "--json=new.json"), "new.json"),
        (("zoo", "publish", "none", "mine.tag", "--zoo=new"), "--zoo new"),
        (("tune", "none/", "--data=data", "--output=new.yaml"), "new.yaml"),
        (("annotate", "data", "--out=new", "--model=none/"), "--out new"),
    ],
)
def test_results_that_cannot_be_written(arguments, named, tmp_path, monkeypatch, capsys):
    """Permissions do not stop a superuser, so the system's answer is given here."""

    def read_only(dir):
        raise OSError(errno.EROFS, "Read-only file system", str(dir))

    monkeypatch.setattr("probseg.cli.arguments.TemporaryFile", read_only)
    monkeypatch.setattr("probseg.annotate.verbs.need_server", lambda: None)
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "data", images=2, size=(24, 32))
    message = usage_error(capsys, *arguments)
    assert f"{named} cannot be written: .: Read-only file system" in message
    assert not list(tmp_path.glob("new*"))


def test_the_names_that_are_checked_early_are_those_of_the_parser(monkeypatch):
    asked = set()
    monkeypatch.setattr(ProbsegCLI, "run_verb", lambda self: None)
    monkeypatch.setattr(
        ProbsegCLI, "instantiate_classes", lambda self: asked.update(self.option_names())
    )
    for verb in ("fit", "validate", "test"):
        run(verb, ["--config", "configs/quickstart.yaml", "--semantic_evaluation.flip=false"])
    assert {name.partition(".")[0] for name in asked} == set(GROUPS)
    of_trainer = {name.split(".")[1] for name in asked if name.startswith("trainer.")}
    assert of_trainer == set(trainer_arguments())
