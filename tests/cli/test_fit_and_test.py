"""Runs as a user starts them, and the files that they leave."""

import csv
import io
import json

import numpy as np
import pytest
import torch
import yaml
from fakes import write_folder
from PIL import Image
from runs import MICRO, QUIET, command, folder_fit, train_two_epochs
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from probseg.data import SamplePhotos

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


def newest(folder):
    return max(folder.glob("version_*"), key=lambda path: int(path.name.split("_")[1]))


def test_training_leaves_checkpoints_config_and_report(run):
    assert sorted(path.name for path in run.parent.glob("*"))[0] == "version_0"
    last = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["epoch"] == 1
    assert last["curriculum_stage"] == "box"
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert len(names) == 2
    assert names <= {"last.ckpt", "epoch000.ckpt", "epoch001.ckpt"}
    assert {path.name for path in (run / "val").iterdir()} == OF_VALIDATION
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["data"]["init_args"]["crop_size"] == 32
    assert config["model"]["init_args"]["model"]["class_path"] == "probseg.models.Segmenter"


def test_training_logs_curves_and_pictures(run):
    events = EventAccumulator(str(run), size_guidance={"images": 0, "scalars": 0})
    events.Reload()
    scalars = set(events.Tags()["scalars"])
    assert {"val/miou@5", "val/folder/miou@0", "val/folder/noc@90", "train/stage"} <= scalars
    assert any(name.startswith("lr-") for name in scalars)
    assert len(events.Scalars("val/miou@5")) == 2
    assert {"train/crops", "val/curve", "val/overlays"} <= set(events.Tags()["images"])
    picture = events.Images("val/overlays")[-1].encoded_image_string
    logged = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))
    written = np.asarray(Image.open(run / "val" / "overlays.png").convert("RGB"))
    np.testing.assert_array_equal(logged, written)


def test_the_configuration_of_a_run_evaluates_its_checkpoint(run, capsys):
    config = ("--config", run / "config.yaml", "--ckpt_path", "last")
    assert command("test", *config, *SHORT, "--evaluation.protocols=[gabbur2021,ritm]") == 0
    assert "mIoU@2" in capsys.readouterr().out
    folder = newest(run.parent) / "test"
    assert {path.name for path in folder.iterdir()} == {"gabbur2021", "ritm"}
    for protocol in folder.iterdir():
        assert {path.name for path in protocol.iterdir()} == REPORT
        results = json.loads((protocol / "results.json").read_text())
        network = results["metadata"]["model"]["class_path"]
        assert network == "probseg.models.Segmenter"
        rows = list(csv.DictReader((protocol / "objects.csv").open()))
        assert [row["k"] for row in rows] == ["0", "1", "2"], "one object, one trial"
        last = [float(row["iou"]) for row in rows if row["k"] == "2"]
        assert results["datasets"]["folder"]["miou"][2] == pytest.approx(np.mean(last))


def test_validating_a_checkpoint_gives_the_figures_of_its_training(run):
    figures = [
        event.value for event in EventAccumulator(str(run)).Reload().Scalars("val/folder/miou@5")
    ]
    config = ("--config", run / "config.yaml", "--ckpt_path", "last")
    assert command("validate", *config) == 0
    results = json.loads((newest(run.parent) / "val" / "results.json").read_text())
    assert results["datasets"]["folder"]["miou"][5] == pytest.approx(figures[-1], abs=1e-6)


def test_quickstart_on_photographs_without_a_download(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quickstart = ("test", "--config", "configs/quickstart.yaml", *MICRO, *QUIET, *SHORT)
    assert command(*quickstart, "--evaluation.pictures=1", "--model.model.working_size=96") == 0
    folder = tmp_path / "runs" / "quickstart" / "version_0" / "test" / "gabbur2021"
    assert {path.name for path in folder.iterdir()} == REPORT
    results = json.loads((folder / "results.json").read_text())
    assert results["datasets"]["SamplePhotos"]["n_objects"] == len(SamplePhotos())
    assert results["protocol"]["max_clicks"] == 2


def test_weights_and_biases_gets_curves_pictures_and_configuration(tmp_path, monkeypatch):
    """The same experiment with another logger, offline."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    root = write_folder(tmp_path / "data", images=4, size=(24, 32))
    logger = ("--trainer.logger", "WandbLogger", "--trainer.logger.offline", "true")
    place = ("--trainer.logger.project", "p", "--trainer.logger.save_dir", tmp_path / "logs")
    try:
        assert command(*folder_fit(root, *logger, *place, "--trainer.max_epochs", 2)) == 0
        identifier = wandb.run.id
        summary = dict(wandb.run.summary)
        config = dict(wandb.run.config)
    finally:
        wandb.teardown()
    run = tmp_path / "logs" / "p" / identifier
    assert (run / "config.yaml").is_file()
    assert (run / "checkpoints" / "last.ckpt").is_file()
    assert {path.name for path in (run / "val").iterdir()} == OF_VALIDATION
    assert {"val/miou@5", "val/folder/miou@0", "val/folder/noc@90", "train/stage"} <= set(summary)
    assert config["config"]["data"]["init_args"]["crop_size"] == 32
    (offline,) = (tmp_path / "logs" / "wandb").glob(f"offline-run-*-{identifier}")
    media = offline / "files" / "media"
    for panel in ("train/crops", "val/overlays", "val/curve"):
        files = list((media / "images").glob(f"{panel}_*.png"))
        assert len(files) == 2, f"{panel}: one picture per epoch"
        assert all(np.asarray(Image.open(file)).std() > 0 for file in files)
    tables = list((media / "table").glob("val/folder/clicks_*.table.json"))
    table = json.loads(tables[0].read_text())
    assert table["columns"] == ["clicks", "mIoU"]
    assert len(table["data"]) == 6
