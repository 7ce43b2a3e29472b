import functools
import logging
import os
import re
import subprocess
import sys

import pytest
import yaml

import probseg
import probseg.cli
import probseg.cli.trainer as trainer_module
from probseg.cli.configs import with_shipped_configs
from probseg.cli.help import ALL, EXAMPLES
from probseg.cli.own_folder import FOLDER, ROLES
from probseg.errors import UnknownNameError, UsageError, user_error
from probseg.paths import configs_dir
from probseg.zoo.index import WEIGHTS
from support.fakes import write_folder
from support.rows import each
from support.runs import MICRO, QUIET, command, folder_fit, usage_error
from support.zoos import add_model, ship


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory away from the checkout, with a folder of objects and no data sets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path / "nowhere"))
    write_folder(tmp_path / "data", images=5, size=(24, 32))
    return tmp_path


@pytest.mark.parametrize("chosen", [None, "ACTIVE"])
def test_help_is_quick_and_threads_wait_without_spinning(chosen):
    heavy = {"torch", "lightning", "jsonargparse", "timm", "wandb", "albumentations", "numpy"}
    code = (
        "import os, sys; from probseg.cli import main; status = main(['--help']); "
        f"print(sorted({heavy!r} & set(sys.modules)), os.environ['OMP_WAIT_POLICY']); "
        "raise SystemExit(status)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    environment |= {} if chosen is None else {"OMP_WAIT_POLICY": chosen}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith(f"[] {chosen or 'PASSIVE'}\n")
    for verb in probseg.cli.VERBS:
        assert f"\n  {verb} " in done.stdout


def test_what_the_library_logs_is_printed_once(capsys):
    for _ in range(2):
        assert command("--version") == 0
    logging.getLogger("probseg.data").info("%d images have no mask", 3)
    assert capsys.readouterr().err == "probseg: 3 images have no mask\n"


@pytest.mark.parametrize("verb", list(EXAMPLES))
def test_short_help_names_options_that_exist(verb, here, capsys):
    assert command(verb, "--config", "nowhere.yaml", "--help") == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) < 60
    assert max(map(len, text.splitlines())) < 100
    options = set(re.findall(r"--[a-z][a-z_.]*", text)) - {ALL, "--data.help", "--model.help"}
    assert len(options) > 15
    assert (FOLDER in options) == (verb in ROLES)
    options.discard(FOLDER)  # which becomes others before the parser
    config = {"fit": "folder", "validate": "folder", "test": "grabcut"}[verb]
    with pytest.raises(SystemExit, match=r"^0$"):
        command(
            *(verb, "--config", f"configs/experiment/{config}.yaml"),
            *("--semantic_evaluation.pictures=1", "--print_config"),
        )
    settings = yaml.safe_load(capsys.readouterr().out)
    for option in options - {"--config", "--print_config"}:
        found = settings
        for key in option.removeprefix("--").split("."):
            found = found["init_args"] if "init_args" in found and key not in found else found
            assert key in found, option
            found = found[key]


def test_launcher_of_a_checkout(repository):
    launcher = [sys.executable, str(repository / "cli.py"), "--version"]
    done = subprocess.run(launcher, capture_output=True, text=True, check=True)
    assert done.stdout == f"probseg {probseg.__version__}\n"


def help_of(verb):
    """Print the help of a verb; parsers exit after it, the short one returns."""
    try:
        status = command(verb, "--help")
    except SystemExit as end:
        status = end.code
    assert status == 0


def test_every_verb_explains_itself_by_examples_that_exist(capsys):
    assert command() == 0
    words = capsys.readouterr().out.split()
    for verb in probseg.cli.VERBS:
        help_of(verb)
        text = " ".join(capsys.readouterr().out.split())
        assert f"probseg {verb} " in text.split("example")[1]
        words += text.split()
    named = {word for word in words if word.startswith("configs/")}
    assert {"configs/experiment/folder.yaml", "configs/quickstart.yaml"} <= named
    for path in named:
        assert configs_dir().joinpath(*path.split("/")[1:]).is_file()


def test_errors_of_the_program_keep_their_traceback(monkeypatch):
    def broken(verb, options):
        raise ValueError(verb)

    monkeypatch.setattr(trainer_module, "run", broken)
    with pytest.raises(ValueError, match="fit"):
        command("fit")


def test_ctrl_c_while_the_command_line_is_read(monkeypatch, capsys):
    def interrupted(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer_module, "ProbsegCLI", interrupted)
    assert command("fit") == 130
    assert "Ctrl-C" in capsys.readouterr().err


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A working directory with data, files and a zoo, some of which are of no use."""
    place = tmp_path_factory.mktemp("faulty")
    write_folder(place / "data", images=5, size=(24, 32))
    (place / "mine.yaml").write_text("trainer:\n  max_epochs: 3\n  gradient_clip: 1.0\n")
    (place / "empty.yaml").touch()
    (place / "noise.yaml").write_bytes(bytes([0, 1, 255]))
    broken = write_folder(place / "broken", images=1)
    write_folder(place / "single", images=1)
    for path in broken.rglob("photo0.*"):
        path.write_bytes(b"")
    add_model(place / "zoo", "micro_csa.a")
    return place


FIT = tuple(folder_fit("data"))
BY_NAME = ("fit", "--config", "configs/experiment/folder.yaml", "--data.root=data", *QUIET)
SEMANTIC = (
    *("--model.model.pretrained=false", "--model.model.name=micro_emanet"),
    *("--model.model.dict_kwargs.head", '{"num_classes": 3}'),
)


@each(
    ("arguments", "parts"),
    [
        (("tets",), ["unknown verb 'tets'", "'test'"]),
        (("fit",), ["fit.data", "fit.model"]),
        (("fit", "--data", "probseg.data.FolderDataModule"), ["root"]),
        (("fit", "--config", "configs/experiment/fodler.yaml"), ["fodler.yaml", "not exist"]),
        (("fit", "--config", "mine.yaml"), ["gradient_clip"]),
        (("fit", "--config", "empty.yaml"), ["empty.yaml", "empty file"]),
        (("fit", "--config=noise.yaml"), ["noise.yaml", "UTF-8"]),
        ((*FIT, "--trainer.max_epchs=3"), ["--trainer.max_epchs"]),
        ((*FIT, "--trainer.max_epochs=many"), ["trainer.max_epochs", "many"]),
        ((*FIT, "--data.val_fractoin=0.5"), ["val_fractoin"]),
        ((*FIT, "--data.root=no_such_folder"), ["no_such_folder", "images/ and masks/"]),
        (
            ("test", "--config", "configs/experiment/grabcut.yaml", *MICRO, *QUIET),
            ["GrabCut was not found", "`probseg data fetch GrabCut`", "GrabCut.zip"],
        ),
        (
            (*BY_NAME, *SEMANTIC),
            ["'micro_emanet'", "semantic segmentation", 'list_models(task="interactive")'],
        ),
        ((*FIT, "--ckpt_path=nothing.ckpt"), ["nothing.ckpt", "no such file"]),
        ((*FIT, "--ckpt_path=best"), ["--ckpt_path best"]),
        ((*FIT, "--ckpt_path=last"), ["runs/probseg/*/checkpoints/last.ckpt"]),
    ],
)
def test_wrong_input_is_named_before_anything_is_written(
    arguments, parts, faulty, monkeypatch, capsys
):
    monkeypatch.chdir(faulty)
    monkeypatch.setenv("PROBSEG_DATA", str(faulty / "nowhere"))
    ship(monkeypatch, faulty / "zoo")
    message = usage_error(capsys, *arguments)
    for part in parts:
        assert part in message
    assert not (faulty / "runs").exists()


NETWORK = "model.init_args.model.init_args"


@pytest.fixture(scope="module")
def parsed(faulty):
    """Parses a training, once for all values that are refused when its parts are made."""

    @functools.cache
    def parse(arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(faulty)
            for method in ("instantiate_classes", "_run_subcommand"):
                patch.setattr(trainer_module.ProbsegCLI, method, lambda *given: None)
            return trainer_module.run(arguments[0], arguments[1:])

    return parse


@each(
    ("arguments", "settings", "parts"),
    [
        (FIT, {"data.init_args.batch_size": 0}, ["`batch_size`", "0"]),
        (FIT, {"data.init_args.num_workers": -1}, ["`num_workers`", "-1"]),
        (FIT, {"data.init_args.val_fraction": 2.0}, ["val_fraction", "2.0"]),
        (FIT, {"data.init_args.root": "single"}, ["2 images"]),
        (FIT, {"data.init_args.root": "broken"}, ["photo0"]),
        (
            BY_NAME,
            {"data.init_args.root": "none", f"{NETWORK}.name": "micro_cas"},
            ["none", "images/ and"],
        ),
        (FIT, {"model.init_args.optimizer.init_args.lr": -1.0}, ["learning rate", "-1"]),
        (
            FIT,
            {"model.init_args.lr_scheduler.init_args.decay_epochs": 0},
            ["`decay_epochs`", "0"],
        ),
        (
            FIT,
            {f"{NETWORK}.head.init_args.attention": "probabilistc"},
            ["unknown attention", "'probabilistic'"],
        ),
        (FIT, {"evaluation.protocols": ["rtim"]}, ["'rtim'", "'ritm'"]),
        (
            BY_NAME,
            {f"{NETWORK}.name": "micro_cas", f"{NETWORK}.pretrained": False},
            ["unknown model 'micro_cas'", "'micro_csa'"],
        ),
        (
            BY_NAME,
            {f"{NETWORK}.name": "micro_cas"},
            ["unknown zoo model 'micro_cas'", "'micro_csa'"],
        ),
    ],
)
def test_wrong_values_are_named_before_anything_is_written(
    arguments, settings, parts, parsed, faulty, monkeypatch
):
    monkeypatch.chdir(faulty)
    ship(monkeypatch, faulty / "zoo")
    cli = parsed(arguments)
    with monkeypatch.context() as patch:
        patch.setattr(cli, "config", cli.config.clone())
        for key, value in settings.items():
            assert f"fit.{key}" in cli.config, key
            cli.config.fit[key] = value
        with pytest.raises((UsageError, UnknownNameError)) as raised:
            cli.instantiate_classes()
    message = str(user_error(raised.value))
    for part in parts:
        assert part in message
    assert not (faulty / "runs").exists()


def test_missing_and_damaged_zoo(here, monkeypatch, capsys):
    ship(monkeypatch, here)
    quickstart = ("test", "--config", "configs/quickstart.yaml", *QUIET)
    for arguments in (quickstart, ("zoo", "list")):
        assert "no zoo index; reinstall probseg" in usage_error(capsys, *arguments)
    add_model(here, "micro_conv.a")
    path = here / "micro_conv.a" / WEIGHTS
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    for arguments in ((*quickstart, "--model.model.name=micro_conv"), ("zoo", "verify")):
        message = usage_error(capsys, *arguments)
        assert str(path) in message
        assert "damaged" in message


def test_paths_of_shipped_configurations(here):
    asked = ["test", "--config", "configs/quickstart.yaml", "--x=configs/model/micro_csa.yaml"]
    assert with_shipped_configs(asked) == [
        "test",
        "--config",
        str(configs_dir() / "quickstart.yaml"),
        f"--x={configs_dir() / 'model/micro_csa.yaml'}",
    ]
    others = ["configs/nowhere.yaml", "other/quickstart.yaml", "configs", "--config=x.yaml", "0.5"]
    assert with_shipped_configs(others) == others
    (here / "configs").mkdir()
    (here / "configs" / "quickstart.yaml").write_text("{}")
    assert with_shipped_configs(asked)[2] == "configs/quickstart.yaml", "one's own comes first"


@pytest.mark.parametrize("form", [["--model.model", "{}"], ["--model.model={}"]])
def test_a_model_file_leaves_nothing_of_the_model_before(form, capsys):
    chosen = [part.format("configs/model/resnet50_deeplab.yaml") for part in form]
    arguments = ["fit", "--config", "configs/experiment/resnet16_csa_cpu.yaml", *chosen]
    with pytest.raises(SystemExit, match=r"^0$"):
        command(*arguments, "--model.model.backbone.output_stride=8", "--print_config")
    model = yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]["model"]["init_args"]
    assert model["backbone"]["class_path"] == "probseg.backbones.ResNet"
    assert model["backbone"]["init_args"]["options"] is None
    assert model["backbone"]["init_args"]["output_stride"] == 8, "later options still count"
    assert model["decoder"]["init_args"]["channels"] == 256
    assert (model["working_size"], model["click_maps"]) == (None, None)
