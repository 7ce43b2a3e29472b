"""Wrong input: refused by a message that names it, before slow imports where that is possible."""

import errno
import json
import os
import subprocess
import sys

import pytest
import yaml

import probseg.cli.trainer as trainer_module
from probseg.cli.invocation import GROUPS, Invocation, trainer_arguments
from probseg.cli.trainer import ProbsegCLI
from probseg.errors import UsageError
from probseg.paths import configs_dir
from probseg.zoo.index import WEIGHTS
from support.fakes import write_berkeley, write_folder, write_grabcut
from support.rows import each
from support.runs import MICRO, QUIET, finished, folder_fit, usage_error
from support.zoos import add_model, ship

QUICK = """
import sys
from probseg.cli import main
for line in [*sys.stdin.read().splitlines(), "data|list"]:
    assert main(line.split("|")) == (0 if line == "data|list" else 2), line
    heavy = {"torch", "lightning", "jsonargparse", "cv2", "scipy"} & set(sys.modules)
    assert not heavy, (line, heavy)
assert main(["test", "--config", "configs/experiment/grabcut.yaml"]) == 2
heavy = {"lightning", "jsonargparse", "torchvision", "timm", "scipy"} & set(sys.modules)
assert not heavy, heavy
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
    "fit|--config|made.yaml": "probseg.zoo.create_interactive",
    "test|--config|keys.yaml": "--config keys.yaml: unknown key 'modle': did you mean 'model'",
}


def test_no_heavy_import_before_a_refusal_and_for_the_list_of_data(tmp_path):
    write_folder(tmp_path / "data", images=2, size=(24, 32))
    moved = (configs_dir() / "experiment" / "scratch.yaml").read_text(encoding="utf-8")
    (tmp_path / "moved.yaml").write_text(moved, encoding="utf-8")
    (tmp_path / "made.yaml").write_text("model: {model: {class_path: probseg.create_model}}")
    (tmp_path / "keys.yaml").write_text("modle: {}")
    (tmp_path / "trainer.yaml").write_text("trainer: {devices: 1, acelerator: cpu}")
    (tmp_path / "IMG.ARW").write_bytes(b"x")
    done = subprocess.run(
        [sys.executable, "-c", QUICK],
        input="\n".join(REFUSED),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PROBSEG_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    *messages, missing = done.stderr.splitlines()
    assert missing.startswith(f"probseg: error: GrabCut was not found in {tmp_path}")
    for message, part in zip(messages, REFUSED.values(), strict=True):
        assert message.startswith("probseg: error: ")
        assert part in message


@each(
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
        options = ["--config", "configs/quickstart.yaml", "--semantic_evaluation.flip=false"]
        trainer_module.run(Invocation(verb, options))
    assert {name.partition(".")[0] for name in asked} == set(GROUPS)
    of_trainer = {name.split(".")[1] for name in asked if name.startswith("trainer.")}
    assert of_trainer == set(trainer_arguments())


BROKEN = bytes([0, 1, 255])


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """Folders, files, results, data and a zoo, some of which are of no use."""
    place = tmp_path_factory.mktemp("faulty")
    write_folder(place / "data", images=5, size=(24, 32))
    write_folder(place / "good", images=2)
    write_folder(place / "outer" / "inner", images=2)
    write_folder(place / "single", images=1)
    for path in write_folder(place / "broken", images=1).rglob("photo0.*"):
        path.write_bytes(b"")
    write_folder(place / "deep", images=1)
    (place / "deep" / "images" / "photo0.jpg").rename(place / "deep" / "photo.jpg")
    (place / "deep" / "images" / "photos").mkdir()
    (place / "deep" / "photo.jpg").rename(place / "deep" / "images" / "photos" / "photo0.jpg")
    for name in ("empty", "run/checkpoints", "run/test/ritm"):
        (place / name).mkdir(parents=True)
    for name in ("file", "run/checkpoints/last.ckpt", "run/config.yaml"):
        (place / name).write_text("x\n", encoding="utf-8")
    protocol = {"protocol": {"name": "ritm"}}
    (place / "run" / "test" / "ritm" / "results.json").write_text(json.dumps(protocol))
    (place / "mine.yaml").write_text("trainer:\n  max_epochs: 3\n  gradient_clip: 1.0\n")
    micro = (configs_dir() / "model" / "micro_csa.yaml").read_text()
    (place / "option.yaml").write_text(micro.replace("channels: 16", "chanels: 16"))
    (place / "class.yaml").write_text(micro.replace("FPNDecoder", "FPNDecodr"))
    (place / "empty.yaml").touch()
    (place / "noise.yaml").write_bytes(BROKEN)
    add_model(place / "zoo", "micro_csa.a")
    return place


@pytest.fixture
def here(faulty, monkeypatch):
    """The working directory is `faulty`, and there are no published data sets."""
    monkeypatch.chdir(faulty)
    monkeypatch.setenv("PROBSEG_DATA", str(faulty / "nowhere"))
    ship(monkeypatch, faulty / "zoo")
    return faulty


FIT = tuple(folder_fit("data"))
BY_NAME = ("fit", "--config", "configs/experiment/folder.yaml", "--data.root=data", *QUIET)
SEMANTIC = (
    *("--model.model.pretrained=false", "--model.model.name=micro_emanet"),
    *("--model.model.dict_kwargs.head", '{"num_classes": 3}'),
)


@each(
    ("arguments", "parts"),
    [
        (("fit",), ["--config FILE is missing", "probseg fit --config configs/experiment/folder"]),
        (("trian",), ["unknown verb 'trian': did you mean 'fit'"]),
        (("test", "--config=unheard.yaml"), ["unheard.yaml: does not exist\n"]),
        (("test", "micro_csa", "--evaluation.trials=1"), ["--folder DIR is missing", "micro_csa"]),
        (("test", "--folder=data", "micro_csa"), ["micro_csa: no option", "right after the verb"]),
        (("test", "micro_cas", "--folder=data"), ["unknown zoo model", "'micro_csa'"]),
        ((*FIT, "--model.optimizer.learning_rate=1"), ["did you mean 'lr'"]),
        ((*FIT, "--model.optimizer=SDG"), ["--model.optimizer 'SDG': did you mean 'SGD'?"]),
        ((*FIT, "--trainer.logger=WandbLoger"), ["'WandbLoger': did you mean 'WandbLogger'?"]),
        ((*FIT, "--model.loss=NormalizedFocalLos"), ["': did you mean 'NormalizedFocalLoss'?"]),
        ((*FIT, "--model.optimizer.lr=fast"), ["--model.optimizer.lr must be a number, got fast"]),
        ((*FIT, "--model.curriculum.help"), ["--model.curriculum.help CLASS"]),
        ((*FIT, "--data.root=dat"), ["dat, which does not exist", "Did you mean data?"]),
        ((*FIT, "--data.root=deep"), ["photos is a folder with a picture, not used; move"]),
        ((*FIT, "--data.crop_size=7"), ["`crop_size` must be at least 32, got 7"]),
        (("fit", "--config", "mine.yaml"), ["gradient_clip"]),
        (("fit", "--config", "empty.yaml"), ["empty.yaml", "empty file"]),
        (("fit", "--config=noise.yaml"), ["noise.yaml", "UTF-8"]),
        ((*FIT, "--trainer.max_epochs=many"), [".max_epochs must be a whole number, got many\n"]),
        ((*FIT, "--data.batch_size=ten"), ["--data.batch_size must be a whole number, got ten\n"]),
        ((*FIT, "--model.every_round=no!"), ["--model.every_round must be true or false, got no!"]),
        (
            (*FIT, "--model.lr_interval=no"),
            ["--model.lr_interval must be one of 'epoch', 'step', got no"],
        ),
        ((*FIT, "--model.model=micro_cas"), ["--model.model 'micro_cas'", "'micro_csa'"]),
        ((*FIT, "--model.model=option.yaml"), ["'chanels': did you mean 'channels'?"]),
        ((*FIT, "--model.model=class.yaml"), ["no attribute 'FPNDecodr'"]),
        (
            (*BY_NAME, *SEMANTIC),
            ["'micro_emanet'", "semantic segmentation", 'list_models(task="interactive")'],
        ),
        ((*FIT, "--ckpt_path=best"), ["--ckpt_path best"]),
        ((*FIT, "--ckpt_path=last"), ["runs/probseg/*/checkpoints/last.ckpt"]),
        ((*FIT, "--data.root=empty"), ["expected images/ and masks/", "it has neither"]),
        ((*FIT, "--ckpt_path=none"), ["--ckpt_path none: no such file"]),
        (
            (*FIT, "--ckpt_path=run"),
            ["--ckpt_path run: is a folder", "here run/checkpoints/last.ckpt"],
        ),
        (
            (*FIT, "--trainer.logger.save_dir=file"),
            ["--trainer.logger.save_dir", "cannot be written", "Not a directory"],
        ),
        ((*FIT, "--trainer.devices=9999"), ["--trainer.devices must be at most"]),
        (("test", "--config", "run"), ["--config run: is a folder", "mean run/config.yaml?"]),
        (("compare", "run", "none"), ["none: no such folder", "`probseg test`"]),
        (("annotate", "file"), ["file: is a file, expected a folder"]),
        (("annotate", "good/images", "--out=file"), ["--out file: is a file, expected a folder"]),
        (("data", "check", "file"), ["file: is a file, expected a folder"]),
        (("data", "convert", "empty", "new", "--from=coco", "--to=png"), ["empty: is a folder"]),
        (("export", "empty/", "--to=onnx", "--output=new"), ["empty/config.json: no such file"]),
        (("export", "empty", "--to=onnx", "--output=new"), ["for the folder", "give empty/"]),
        ((*FIT, "--conf=mine.yaml"), ["did you mean 'config'"]),
        ((*FIT, "--data.root=single"), ["2 images"]),
        ((*FIT, "--evaluation.protocols=human,rtim"), ["'rtim'", "'ritm'"]),
        ((*BY_NAME, "--model.model.name=micro_cas"), ["unknown", "'micro_csa'"]),
    ],
)
def test_wrong_input_is_named_before_anything_is_written(arguments, parts, here, capsys):
    message = usage_error(capsys, *arguments)
    for part in parts:
        assert part in message
    assert not (here / "runs").exists()


def test_missing_and_damaged_zoo(tmp_path, monkeypatch, capsys):
    ship(monkeypatch, tmp_path)
    quickstart = ("test", "--config", "configs/quickstart.yaml", *QUIET)
    for arguments in (quickstart, ("zoo", "list")):
        assert "no zoo index; reinstall probseg" in usage_error(capsys, *arguments)
    add_model(tmp_path, "micro_conv.a")
    path = tmp_path / "micro_conv.a" / WEIGHTS
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    for arguments in ((*quickstart, "--model.model.name=micro_conv"), ("zoo", "verify")):
        message = usage_error(capsys, *arguments)
        assert str(path) in message
        assert "damaged" in message


TASK = "probseg.tasks.InteractiveSegmentation"
BACKBONE = {"class_path": "probseg.backbones.ResNet", "init_args": {"pretrainde": False}}
NETWORK = {"class_path": "probseg.models.Segmenter", "init_args": {"backbone": BACKBONE}}
CHECKPOINTS = {
    "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
    "init_args": {"monitr": "x"},
}
ADAM = {"class_path": "torch.optim.AdamW", "init_args": {"wieght_decay": 1}}


OF_FILES = ("fit", "--config", "configs/experiment/folder.yaml", "--data.root", "objects")


@each(
    ("settings", "meant"),
    [
        ({"trainer": {"callbacks": [CHECKPOINTS]}}, "monitor"),
        ({"evaluation": {"adaptation": {"key_iteration": 1}}}, "key_iterations"),
        ({"data": {"init_args": {"batch_sise": 3}}}, "batch_size"),
        ({"model": {"class_path": TASK, "init_args": {"optimizer": ADAM}}}, "weight_decay"),
        ({"model": {"class_path": TASK, "init_args": {"model": NETWORK}}}, "pretrained"),
    ],
)
def test_keys_of_a_file(settings, meant, tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(settings))
    message = usage_error(capsys, *OF_FILES, "--config", path)
    assert f"did you mean {meant!r}" in message


TEST = (
    *("test", "--config", "configs/experiment/gabbur2021_sbd.yaml", *MICRO, *QUIET),
    *("--data.train=null", "--data.val=null"),
)


@pytest.fixture
def with_grabcut(tmp_path, monkeypatch):
    """A working directory whose data folder has GrabCut alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path / "data"))
    write_grabcut(tmp_path / "data" / "GrabCut")
    return tmp_path


def test_the_faulty_one_of_several_data_sets_is_named(with_grabcut, capsys):
    root = with_grabcut / "data" / "Berkeley"
    assert f"Berkeley was not found in {root}" in usage_error(capsys, *TEST)
    mask = next((write_berkeley(root) / "masks").iterdir())
    mask.rename(mask.with_name("stranger.png"))
    assert "['stranger']" in usage_error(capsys, *TEST)
    sets = [{"class_path": "probseg.data.GrabCut", "init_args": {"rot": "x"}}]
    assert "'rot'" in usage_error(capsys, *TEST, f"--data.test={json.dumps(sets)}")


ARGUMENTS = {"fit": FIT, "test": ["test", "--config", "configs/quickstart.yaml", *MICRO, *QUIET]}


def numbers(settings, path=()):
    """Keys of all numbers in a configuration, but of the network, whose preset has them."""
    for key, value in settings.items():
        here = (*path, key)
        if isinstance(value, dict):
            yield from numbers(value, here) if here != ("model", "init_args", "model") else ()
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield ".".join(here), -7 if isinstance(value, int) else float("nan")


@pytest.mark.parametrize("verb", ARGUMENTS)
def test_numbers_out_of_range(verb, here, monkeypatch):
    """Refused in words, or harmless. Parsing takes most of the time of a run: it is done once."""
    monkeypatch.setattr(ProbsegCLI, "_run_subcommand", lambda *_: None)
    cli = finished(*ARGUMENTS[verb])
    config = cli.config.clone()
    parts = ("trainer", "model", "data", "evaluation")
    settings = {part: config[verb][part].as_dict() for part in parts}
    keys = list(numbers(settings))
    assert len(keys) > (10 if verb == "test" else 25)
    refused = {}
    for key, value in keys:
        cli.config = config.clone()
        cli.config[verb][key] = value
        try:
            cli.instantiate_classes()
        except UsageError as error:
            refused[key] = str(error)
    expected = {"evaluation.batch_size", "evaluation.val_clicks"}
    if verb != "test":
        expected |= {"data.init_args.batch_size", "data.init_args.num_workers"}
    assert refused.keys() >= expected
    for key, message in refused.items():
        name = key.rpartition(".")[2]
        assert name in message or "-7" in message or "nan" in message, (key, message)
    assert not (here / "runs").exists()
