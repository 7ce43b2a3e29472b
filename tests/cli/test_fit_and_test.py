"""Runs as a user starts them, and the files that they leave."""

import csv
import json
import shutil
import sys
from pathlib import Path

import pytest
import timm.models._builder
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from probseg import create_model
from probseg.data import FolderDataModule, SamplePhotos
from probseg.errors import UsageError
from probseg.models import read_preset
from probseg.zoo.store import save
from probseg.zoo.trained import best_checkpoint, weights_digest
from support.fakes import micro_model, write_folder
from support.runs import (
    MICRO,
    QUIET,
    SMALL,
    command,
    finished,
    folder_fit,
    only_made,
    train_two_epochs,
    usage_error,
)

REPORT = {
    "results.json",
    "objects.csv",
    "report.html",
    "report.md",
    "curve.png",
    "survival.png",
    "overlays.png",
}
OF_VALIDATION = REPORT - {"report.html", "survival.png"}
SHORT = ("--evaluation.trials=1", "--evaluation.max_clicks=2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_two_epochs(tmp_path_factory.mktemp("fit"))


@pytest.fixture
def run(trained, monkeypatch):
    """Folder of the training run, with its starting point as working directory."""
    monkeypatch.chdir(trained[0].parent)
    return trained[1]


def names(folder):
    return {path.name for path in folder.iterdir()}


def newest(folder):
    return max(folder.glob("version_*"), key=lambda path: int(path.name.split("_")[1]))


def test_training_leaves_checkpoints_configuration_curves_and_pictures(run):
    last = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    assert (last["epoch"], last["curriculum_stage"]) == (1, "box")
    (best,) = names(run / "checkpoints") - {"last.ckpt"}
    assert best in ("epoch000.ckpt", "epoch001.ckpt")
    assert names(run / "val") == OF_VALIDATION
    text = (run / "config.yaml").read_text()
    config = yaml.safe_load(text)
    assert config["data"]["init_args"]["crop_size"] == 32
    assert config["model"]["init_args"]["model"]["class_path"] == "probseg.models.Segmenter"
    assert config["trainer"].get("plugins") is None
    assert "FiniteLoss" not in text, "each training adds what guards it"
    events = EventAccumulator(str(run), size_guidance={"images": 0, "scalars": 0}).Reload()
    scalars = set(events.Tags()["scalars"])
    assert "train/loss" in scalars, "of two epochs of two batches"
    assert {"val/miou@5", "val/folder/miou@0", "val/folder/noc@90", "train/stage"} <= scalars
    assert any(name.startswith("lr-") for name in scalars)
    assert len(events.Scalars("val/miou@5")) == 2
    assert {"train/crops", "val/curve", "val/overlays"} <= set(events.Tags()["images"])


@pytest.mark.usefixtures("undrawn")  # tests/reports looks at the figures of a test
def test_the_configuration_of_a_run_evaluates_its_checkpoint(run, capsys):
    scores = EventAccumulator(str(run)).Reload().Scalars("val/folder/miou@5")
    config = ("--config", run / "config.yaml", "--ckpt_path", "last")
    assert command("validate", *config) == 0
    results = json.loads((newest(run.parent) / "val" / "results.json").read_text())
    assert results["datasets"]["folder"]["miou"][5] == pytest.approx(scores[-1].value, abs=1e-6)
    assert command("test", *config, *SHORT, "--evaluation.protocols=[gabbur2021,ritm]") == 0
    assert "mIoU@2" in capsys.readouterr().out
    folder = newest(run.parent) / "test"
    assert names(folder) == {"gabbur2021", "ritm"}
    for protocol in folder.iterdir():
        assert names(protocol) == REPORT
        results = json.loads((protocol / "results.json").read_text())
        assert results["metadata"]["model"]["class_path"] == "probseg.models.Segmenter"
        rows = list(csv.DictReader((protocol / "objects.csv").open()))
        assert [row["k"] for row in rows] == ["0", "1", "2"], "one object, one trial"
        assert results["datasets"]["folder"]["miou"][2] == pytest.approx(float(rows[2]["iou"]))


@pytest.mark.usefixtures("undrawn")
def test_a_run_is_tested_on_all_of_another_folder(run, capfd):
    write_folder(Path("other"), images=2, objects=2, size=(32, 32))
    config = ("--config", run / "config.yaml", *SHORT, "--evaluation.protocols=[gabbur2021]")
    assert command("test", *config, "--folder", "other") == 0
    results = json.loads((newest(run.parent) / "test/gabbur2021/results.json").read_text())
    assert results["datasets"]["folder"]["n_objects"] == 4
    assert str(run) in results["metadata"]["checkpoint"], "the best of the run"
    assert "was trained on most of its photographs" not in capfd.readouterr().err
    assert command("test", *config, "--folder", "data") == 0
    notice = "--folder data: this run was trained on most of its photographs"
    assert notice in capfd.readouterr().err


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("verb", "place"), [("test", "test/gabbur2021"), ("validate", "val")])
def test_the_network_of_a_run_is_tested_without_its_configuration(
    run, tmp_path, monkeypatch, verb, place
):
    """Which may be a stranger's, and imports what it names."""
    shutil.copytree(run, tmp_path / "theirs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("foreign.py").write_text("raise SystemExit('it was imported')")
    config = yaml.safe_load(Path("theirs", "config.yaml").read_text())
    config["trainer"]["callbacks"] = [{"class_path": "foreign.Callback"}]
    Path("theirs", "config.yaml").write_text(yaml.safe_dump(config))
    write_folder(Path("other"), images=1, objects=2, size=(32, 32))
    protocol = "--evaluation.protocols=[gabbur2021]"
    assert command(verb, "theirs", "--folder", "other", *QUIET, *SHORT, protocol) == 0
    results = json.loads((tmp_path / "runs/probseg/version_0" / place / "results.json").read_text())
    weights = torch.load(best_checkpoint(run), weights_only=True)["state_dict"]
    assert results["metadata"]["weights_sha256"] == weights_digest(weights)
    assert results["datasets"]["folder"]["n_objects"] == 2
    assert "foreign" not in sys.modules


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_began_with_a_model_folder_needs_it_no_more(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    save(micro_model("micro_csa"), read_preset("micro_csa"), Path("models/base"))
    root = write_folder(Path("data"), images=5, size=(24, 32))
    fit = ("fit", "--config", "configs/experiment/folder.yaml", "--data.root", root, *QUIET, *SMALL)
    begin = ("--model.model.name=models/base/", "--model.model.dict_kwargs.working_size=48")
    assert command(*fit, *begin, "--trainer.max_steps=1") == 0
    shutil.rmtree("models")
    run = Path("runs/probseg/version_0")
    assert f"probseg test {run} --folder" in capfd.readouterr().err
    model = create_model(str(run), pretrained=True)
    weights = torch.load(best_checkpoint(run), weights_only=True)["state_dict"]
    assert model.working_size == 48
    assert weights_digest({f"model.{k}": v for k, v in model.state_dict().items()}) == (
        weights_digest(weights)
    )


@pytest.mark.usefixtures("undrawn")
def test_quickstart_on_photographs_without_a_download(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quickstart = ("test", "--config", "configs/quickstart.yaml", *MICRO, *QUIET, *SHORT)
    assert command(*quickstart, "--evaluation.pictures=1", "--model.model.working_size=96") == 0
    folder = tmp_path / "runs" / "quickstart" / "version_0" / "test" / "gabbur2021"
    assert names(folder) == REPORT
    results = json.loads((folder / "results.json").read_text())
    assert results["datasets"]["SamplePhotos"]["n_objects"] == len(SamplePhotos())
    assert results["protocol"]["max_clicks"] == 2


# --- runs that start from a checkpoint fetch no pretrained weights, which it would replace ---

FETCHED = "no weights for you"
REPLACED = {
    "backbone": {
        "class_path": "probseg.backbones.TimmBackbone",
        "init_args": {"name": "test_resnet.r160_in1k", "pretrained": True},
    },
}
VARIANT = ("--model.model=probseg.models.variant", "--model.model.of=micro_csa")
NETWORKS = {
    "described": (*MICRO, "--model.model.backbone.pretrained=true"),
    "varied": (*VARIANT, '--model.model.changes={"backbone": {"pretrained": true}}'),
    "replaced": (*VARIANT, f"--model.model.changes={json.dumps(REPLACED)}"),
    "by name": (
        *("--model.model.name=micro_csa", "--model.model.pretrained=false"),
        *("--model.model.dict_kwargs.backbone", '{"pretrained": true}'),
    ),
}
"""The ways to name a network whose backbone has weights to download."""


@pytest.mark.usefixtures("undrawn")
def test_weights_are_fetched_for_new_trainings_only(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(FETCHED)

    def fit(*more):
        recipe = ("--config", "configs/experiment/folder.yaml", "--data.root=objects")
        return ("fit", *recipe, *QUIET, *SMALL, "--evaluation.pictures=0", *more)

    def asks_for_weights(node):
        return "'pretrained': True" in str(node) or "pretrained: true" in str(node)

    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "objects", images=4, size=(24, 32))
    finished(*fit(*MICRO, "--trainer.max_epochs=1"))
    monkeypatch.setattr(timm.models._builder, "load_pretrained", refuse)
    run = Path("runs/probseg/version_0")
    last = run / "checkpoints" / "last.ckpt"
    for network in NETWORKS.values():
        cli = only_made(*fit(*network, "--ckpt_path", last))
        assert asks_for_weights(cli.config.fit.model.as_dict()), "as the configuration to be saved"
        cli.checkpoint = None
        with pytest.raises(UsageError, match=FETCHED):
            cli.instantiate_classes()

    # As if it had begun with fetched weights, which its configuration says.
    config = yaml.safe_load((run / "config.yaml").read_text())
    backbone = config["model"]["init_args"]["model"]["init_args"]["backbone"]
    backbone["init_args"]["pretrained"] = True
    Path("begun.yaml").write_text(yaml.safe_dump(config))
    finished("fit", "--config", "begun.yaml", "--ckpt_path=last", "--trainer.max_epochs=2")
    stored = torch.load(last, weights_only=True)
    assert stored["epoch"] == 1
    cli = finished("validate", "--config", run / "config.yaml", "--ckpt_path", last)
    loaded = cli.model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in stored["state_dict"].items())
    for number in (0, 1):
        assert asks_for_weights(Path(f"runs/probseg/version_{number}/config.yaml").read_text())


# --- photographs that were cut off: what a whole training makes of them ---

CUT_OFF = (
    *("--trainer.max_epochs=1", "--trainer.num_sanity_val_steps=0", "--data.val_fraction=0.3"),
    *("--evaluation.pictures=0", "--data.num_workers=1"),
)


@pytest.mark.usefixtures("undrawn")
def test_they_are_left_out_of_trainings_up_to_a_limit_and_stop_validations(
    tmp_path, monkeypatch, capsys
):
    def cut(part):
        """Cut off two photographs of a part behind the header with their size."""
        (objects,) = getattr(FolderDataModule("data", val_fraction=0.3), part)
        for path in objects.photographs[:2]:
            content = path.read_bytes()
            path.write_bytes(content[: len(content) * 3 // 4])
        return objects.photographs[:2]

    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "data", images=9, size=(120, 160))
    paths = cut("train")
    with pytest.warns(UserWarning, match="left out of the training") as warned:
        assert command(*folder_fit("data", *CUT_OFF)) == 0
    left_out = [str(w.message) for w in warned if str(w.message).startswith("left out of")]
    assert len(left_out) == 2, left_out
    unnamed = [path for path in paths if not any(str(path) in line for line in left_out)]
    assert unnamed == [], left_out
    with pytest.warns(UserWarning, match="left out of the training"):
        message = usage_error(capsys, *folder_fit("data", *CUT_OFF, "--data.max_skipped=1"))
    assert all(f"  {path}: cannot be read" in message for path in paths)
    path, _ = cut("val")
    message = usage_error(capsys, *folder_fit("data", *CUT_OFF, "--data.num_workers=0"))
    assert f"{path}: cannot be read" in message
