import os
import subprocess
import sys

import pytest
import torch
import yaml
from fakes import micro_model, write_folder
from runs import MICRO, QUIET, command, folder_fit, train_two_epochs
from zoos import add_model, ship

import probseg
import probseg.cli
from probseg.cli.trainer import with_shipped_configs
from probseg.paths import configs_dir
from probseg.zoo.index import WEIGHTS

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, as an installed package knows it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path / "nowhere"))
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A data folder and a checkpoint of a small network."""
    root, run = train_two_epochs(tmp_path_factory.mktemp("trained"))
    return root, run / "checkpoints" / "last.ckpt"


def refused(capsys, *arguments):
    """Return what the user is told; the rest of the answer must be that of a usage error."""
    capsys.readouterr()
    assert command(*arguments) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert "usage:" not in captured.err
    assert "Namespace(" not in captured.err
    lines = captured.err.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("probseg: error: ")]
    assert len(starts) == 1
    return "\n".join(lines[starts[0] :])


def test_help_needs_none_of_the_heavy_packages():
    heavy = {"torch", "lightning", "jsonargparse", "timm", "wandb", "albumentations", "numpy"}
    code = (
        "import sys; from probseg.cli import main; status = main(['--help']); "
        f"print('loaded:', sorted({heavy!r} & set(sys.modules))); raise SystemExit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "loaded: []" in done.stdout
    for verb in probseg.cli.VERBS:
        assert f"\n  {verb} " in done.stdout


def test_launcher_of_a_checkout(repository):
    launcher = [sys.executable, str(repository / "cli.py")]
    done = subprocess.run([*launcher, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"probseg {probseg.__version__}\n"
    assert subprocess.run([*launcher, "fti"], capture_output=True, check=False).returncode == 2


def test_without_arguments_the_usage_is_shown(capsys):
    assert command() == 0
    assert "usage: probseg" in capsys.readouterr().out


@pytest.mark.parametrize("verb", probseg.cli.VERBS)
def test_verbs_explain_themselves(verb, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        command(verb, "--help")
    told = " ".join(capsys.readouterr().out.split())
    assert "example" in told
    assert f"probseg {verb} " in told.split("example")[1]


def test_examples_name_files_that_ship(capsys):
    for verb in probseg.cli.VERBS:
        with pytest.raises(SystemExit):
            command(verb, "--help")
    told = (probseg.cli.USAGE + capsys.readouterr().out).split()
    named = {word for word in told if word.startswith("configs/")}
    assert {"configs/experiment/folder.yaml", "configs/quickstart.yaml"} <= named
    for path in named:
        assert configs_dir().joinpath(*path.split("/")[1:]).is_file()


def test_unknown_verb(capsys):
    told = refused(capsys, "tets")
    assert told == "probseg: error: unknown verb 'tets': did you mean 'test' or 'tune'?"


def test_errors_of_the_program_keep_their_traceback(monkeypatch):
    def broken(arguments):
        raise ValueError(arguments)

    monkeypatch.setitem(probseg.cli.VERBS, "fit", broken)
    with pytest.raises(ValueError, match="fit"):
        command("fit")


def test_missing_data(here, capsys):
    told = refused(capsys, *folder_fit(here / "no_such_folder"))
    assert "no_such_folder: expected the folders images/ and masks/" in told
    told = refused(capsys, "test", "--config", "configs/experiment/grabcut.yaml", *MICRO, *QUIET)
    assert "GrabCut was not found in" in told
    assert "`probseg data fetch GrabCut`" in told
    assert "GrabCut.zip" in told


def test_unusable_data(here, capsys):
    root = write_folder(here / "data", images=1)
    assert "at least 2 images" in refused(capsys, *folder_fit(root))
    (root / "images" / "photo0.jpg").write_bytes(b"")
    (root / "masks" / "photo0.png").write_bytes(b"")
    assert "photo0" in refused(capsys, *folder_fit(root))


def test_unknown_names(here, trained, monkeypatch, capsys):
    by_name = ("--config", "configs/experiment/folder.yaml", "--data.root", trained[0], *QUIET)
    preset = ("--model.model.pretrained", "false", "--model.model.name", "micro_cas")
    assert "unknown model 'micro_cas': did you mean 'micro_csa'" in refused(
        capsys, "fit", *by_name, *preset
    )
    add_model(here / "zoo", "micro_csa.a")
    ship(monkeypatch, here / "zoo")
    assert "unknown zoo model 'micro_cas': did you mean 'micro_csa'" in refused(
        capsys, "fit", *by_name, "--model.model.name", "micro_cas"
    )
    told = "model must be a Segmenter, for interactive segmentation, got a SemanticSegmenter"
    semantic = ("--model.model.pretrained=false", "--model.model.name=micro_emanet")
    classes = ("--model.model.dict_kwargs.head", '{"num_classes": 3}')
    assert told in refused(capsys, "fit", *by_name, *semantic, *classes)
    flag = "--model.model.head.attention"
    assert "unknown attention 'probabilistc': did you mean 'probabilistic'" in refused(
        capsys, *folder_fit(trained[0]), flag, "probabilistc"
    )
    assert "unknown protocol 'rtim': did you mean 'ritm'" in refused(
        capsys, *folder_fit(trained[0]), "--evaluation.protocols=[rtim]"
    )


def test_missing_and_damaged_zoo(here, monkeypatch, capsys):
    ship(monkeypatch, here)
    quickstart = ("test", "--config", "configs/quickstart.yaml", *QUIET)
    assert "no zoo index; reinstall probseg" in refused(capsys, *quickstart)
    assert "no zoo index; reinstall probseg" in refused(capsys, "zoo", "list")
    add_model(here, "micro_conv.a")
    path = here / "micro_conv.a" / WEIGHTS
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    for arguments in ((*quickstart, "--model.model.name", "micro_conv"), ("zoo", "verify")):
        told = refused(capsys, *arguments)
        assert str(path) in told
        assert "damaged" in told


def test_wrong_keys_and_values_are_named(here, trained, capsys):
    fit = folder_fit(trained[0])
    assert "--trainer.max_epchs" in refused(capsys, *fit, "--trainer.max_epchs", "3")
    assert "'val_fractoin' is not accepted" in refused(capsys, *fit, "--data.val_fractoin", "0.5")
    told = refused(capsys, *fit, "--trainer.max_epochs", "many")
    assert "trainer.max_epochs" in told
    assert "many" in told
    told = refused(capsys, *fit, "--data.val_fraction", "2")
    assert told == "probseg: error: val_fraction must lie between 0 and 1, got 2.0"
    assert "arguments are required: root" in refused(
        capsys, "fit", "--data", "probseg.data.FolderDataModule"
    )
    assert "arguments are required: fit.data, fit.model" in refused(capsys, "fit")


def test_wrong_keys_in_a_file_are_named(here, capsys):
    (here / "mine.yaml").write_text("trainer:\n  max_epochs: 3\n  gradient_clip: 1.0\n")
    assert "gradient_clip" in refused(capsys, "fit", "--config", "mine.yaml")


def test_missing_configuration(here, capsys):
    told = refused(capsys, "fit", "--config", "configs/experiment/fodler.yaml")
    assert "fodler.yaml" in told
    assert "does not exist" in told


def test_checkpoints_that_cannot_be_used(here, trained, capsys):
    root, checkpoint = trained
    fit = folder_fit(root)
    assert "nothing.ckpt: no such file" in refused(capsys, *fit, "--ckpt_path", "nothing.ckpt")
    content = checkpoint.read_bytes()
    (here / "cut.ckpt").write_bytes(content[: len(content) // 2])
    assert "cut.ckpt: cannot be read" in refused(capsys, *fit, "--ckpt_path", "cut.ckpt")
    torch.save({"weight": torch.zeros(1)}, here / "weights.ckpt")
    told = refused(capsys, *fit, "--ckpt_path", "weights.ckpt")
    assert "weights.ckpt: holds no training state" in told
    torch.save({"state_dict": {}, "hyper_parameters": {"model": micro_model()}}, "objects.ckpt")
    told = refused(capsys, *fit, "--ckpt_path", "objects.ckpt")
    assert "objects.ckpt: holds Python objects" in told
    (here / "text.ckpt").write_text("no checkpoint at all")
    assert "text.ckpt: cannot be read" in refused(capsys, *fit, "--ckpt_path", "text.ckpt")
    assert "give the file's path" in refused(capsys, *fit, "--ckpt_path", "best")
    assert not (here / "runs").exists(), "refused before anything was written"


def test_checkpoint_of_another_network(here, trained, capsys):
    root, checkpoint = trained
    other = (*folder_fit(root), "--model.model", "configs/model/micro_conv.yaml")
    evaluate = ("test", *other[1:], "--evaluation.trials=1", "--evaluation.max_clicks=1")
    for arguments in (evaluate, other):
        told = refused(capsys, *arguments, "--ckpt_path", checkpoint)
        assert "the weights are those of another architecture" in told


def test_too_few_objects_for_a_batch(here, trained, capsys):
    told = refused(capsys, *folder_fit(trained[0]), "--data.batch_size=99")
    assert "batch_size 99 is larger than the 4 training objects" in told


def test_paths_of_shipped_configurations(here):
    def shipped(name):
        return str(configs_dir() / name)

    asked = ["test", "--config", "configs/quickstart.yaml", "--x=configs/model/micro_csa.yaml"]
    assert with_shipped_configs(asked) == [
        "test",
        "--config",
        shipped("quickstart.yaml"),
        f"--x={shipped('model/micro_csa.yaml')}",
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
    assert model["working_size"] is None
    assert model["click_maps"] is None


@pytest.mark.parametrize("chosen", [None, "ACTIVE"])
def test_threads_wait_without_spinning_unless_somebody_wants_it(chosen):
    # OpenMP asks when torch is loaded, so that it must not be loaded before.
    code = (
        "import os, sys, probseg.cli; assert 'torch' not in sys.modules; "
        "probseg.cli.main(['--version']); print(os.environ['OMP_WAIT_POLICY'])"
    )
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    if chosen is not None:
        environment["OMP_WAIT_POLICY"] = chosen
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.split()[-1] == (chosen or "PASSIVE")
