"""Weights & Biases from the command line, offline: a killed run that goes on, and sweeps."""

import csv
import json
import struct
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from packaging.version import Version
from PIL import Image

from probseg.paths import configs_dir
from support.fakes import write_folder
from support.runs import MICRO, QUIET, SMALL, finished, folder_fit, separately, started

pytestmark = pytest.mark.process

wandb = pytest.importorskip("wandb")

PATIENCE = 600
OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL": "0.05",  # seconds, of which a kill may lose the last
}
LOGGERS = [
    {
        "class_path": "WandbLogger",
        "init_args": {"save_dir": "logs", "project": "p", "log_model": True},
    },
    {"class_path": "CSVLogger", "init_args": {"save_dir": "logs", "name": "table"}},
    {"class_path": "TensorBoardLogger", "init_args": {"save_dir": "logs", "name": "events"}},
]
SHORT = ("--evaluation.pictures=0", "--evaluation.trials=1", "--evaluation.max_clicks=1")


def wait_for_epoch(process, place, epoch):
    """Wait until the checkpoint of an epoch is written."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert process.is_alive(), (place / "output.txt").read_text()
        for last in place.glob("logs/p/*/checkpoints/last.ckpt"):
            if torch.load(last, weights_only=True)["epoch"] >= epoch:
                return
        time.sleep(0.1)
    pytest.fail(f"epoch {epoch} did not end within {PATIENCE} s")


def records(folder):
    """Records that an offline run wrote: blocks of 32 KiB, parts with a head of seven bytes.

    A part's type is 1 whole, 2 first, 3 middle, 4 last; what a kill left unfinished is no record.
    """
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("*.wandb")
    content = path.read_bytes()
    at, parts = 7, b""
    while at + 7 <= len(content):
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        part = content[at + 7 : at + 7 + length]
        if kind == 0 or len(part) < length:
            return
        parts = part if kind in (1, 2) else parts + part
        at += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
        rest = -at % 32768
        at += rest if rest < 7 else 0


def offline_run(folder):
    """Identifier, settings, logged rows and types of artifacts of an offline run."""
    run = SimpleNamespace(folder=folder, identifiers=set(), sent={}, rows=[], artifacts=set())
    for record in records(folder):
        kind = record.WhichOneof("record_type")
        for update in (*record.run.config.update, *record.config.update):
            run.sent[update.key] = json.loads(update.value_json)
        if kind == "run":
            run.identifiers.add(record.run.run_id)
        elif kind == "artifact":
            run.artifacts.add(record.artifact.type)
        elif kind == "history":
            items = record.history.item
            run.rows.append(
                {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in items}
            )
    return run


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """A run with three loggers that was killed and went on.

    Its folder, epoch and step of the checkpoint before the kill, rows of the table then, and both
    parts as Weights & Biases has them.
    """
    place = tmp_path_factory.mktemp("wandb")
    root = write_folder(place / "data", images=5, size=(24, 32))
    fit = (*folder_fit(root), "--trainer.logger", json.dumps(LOGGERS))
    process = started(place, (*fit, "--trainer.max_epochs=1000000"), **OFFLINE)
    try:
        wait_for_epoch(process, place, 2)
    finally:
        process.kill()
        process.join()
    (last,) = place.glob("logs/p/*/checkpoints/last.ckpt")
    before = torch.load(last, weights_only=True)
    rows = table(place)
    more = (f"--trainer.max_epochs={before['epoch'] + 3}", "--ckpt_path", "last")
    output = separately(place, *fit, *more, **OFFLINE)
    assert output.count("offline: no checkpoint is uploaded") == 1
    return SimpleNamespace(
        run=last.parents[1],
        logs=place / "logs",
        epoch=before["epoch"],
        step=before["global_step"],
        rows=rows,
        parts=[offline_run(part) for part in sorted(place.glob("logs/wandb/offline-run-*"))],
    )


flushed = pytest.mark.skipif(
    Version(wandb.__version__) < Version("0.31"),
    reason="knows no interval after which records are written",
)


def table(place):
    """Rows of the table of numbers."""
    (path,) = place.glob("logs/table/*/metrics.csv")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@flushed
def test_a_run_that_goes_on_is_one_run_whose_steps_never_go_back(resumed):
    first, second = resumed.parts
    assert first.identifiers == second.identifiers == {resumed.run.name}
    assert len(list(resumed.run.parent.iterdir())) == 1
    files = {path.name for path in (resumed.run / "checkpoints").iterdir()}
    assert "last.ckpt" in files
    assert len(files) == 2, "the best and the last, of both parts together"
    for part in resumed.parts:
        steps = [row["trainer/global_step"] for row in part.rows]
        assert steps == sorted(steps)
    assert first.rows[0]["trainer/global_step"] < resumed.step
    assert second.rows[0]["trainer/global_step"] >= resumed.step - 1, "Lightning counts from 0"
    assert max(row.get("epoch", 0) for row in second.rows) == resumed.epoch + 2


def test_the_other_loggers_of_a_run_go_on_too(resumed):
    for name in ("table", "events"):
        assert [path.name for path in (resumed.logs / name).iterdir()] == ["version_0"]
    rows = table(resumed.logs.parent)
    validated = [int(row["epoch"]) for row in rows if row["val/miou@5"]]
    assert sorted(set(validated)) == list(range(resumed.epoch + 3))
    kept = [{key: row[key] for key in resumed.rows[0]} for row in rows[: len(resumed.rows)]]
    assert kept == resumed.rows, "rows of before the kill"
    config = yaml.safe_load((resumed.run / "config.yaml").read_text())
    versions = [logger["init_args"].get("version") for logger in config["trainer"]["logger"]]
    assert versions == [None] * 3, "the configuration begins a run of its own"


@flushed
def test_weights_and_biases_gets_code_settings_numbers_and_pictures(resumed):
    for part in resumed.parts:
        assert part.sent["environment"]["versions"]["probseg"]
        assert {"commit", "dirty"} <= part.sent["environment"].keys()
        assert part.sent["config"]["data"]["init_args"]["crop_size"] == 32
        assert "model" not in part.artifacts, "nothing is uploaded without a network"
    assert not list(resumed.logs.rglob("artifacts.json"))
    _, second = resumed.parts
    logged = set().union(*second.rows)
    assert {"val/miou@5", "val/folder/miou@0", "val/folder/noc@90", "train/stage"} <= logged
    media = second.folder / "files" / "media"
    for panel in ("train/crops", "val/overlays", "val/curve"):
        files = list((media / "images").glob(f"{panel}_*.png"))
        assert len(files) in (2, 3), f"{panel}: each epoch, and a validation that was killed"
        assert all(np.asarray(Image.open(file)).std() > 0 for file in files)
    curve, *_ = (media / "table").glob("val/folder/clicks_*.table.json")
    assert len(json.loads(curve.read_text())["data"]) == 6


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory with a drawn folder, and no network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    write_folder(tmp_path / "my_folder", images=4, size=(24, 32))
    yield tmp_path
    wandb.teardown()


SWEEPS = sorted(path.name for path in (configs_dir() / "sweep").glob("*.yaml"))
assert {"adaptation.yaml", "folder.yaml"} <= set(SWEEPS)


def chosen(parameter):
    """A value that a sweep may choose for a parameter."""
    if "values" in parameter:
        return parameter["values"][-1]
    assert parameter["distribution"] == "log_uniform_values"
    return parameter["max"]


@pytest.mark.parametrize("name", SWEEPS)
def test_the_command_of_a_sweep_runs(name, here):
    """As the agent puts it together."""
    from wandb.sdk.launch.sweeps import utils

    sweep = yaml.safe_load((configs_dir() / "sweep" / name).read_text())
    wanted = {path: chosen(values) for path, values in sweep["parameters"].items()}
    given = {path: {"value": value} for path, value in wanted.items()}
    filled = utils.create_sweep_command_args({"args": given})
    words = [
        word
        for part in utils.create_sweep_command(sweep["command"])
        for word in (filled["args"] if part == "${args}" else [part])
    ]
    assert words[0] == "probseg"
    small = (*QUIET, "--trainer.fast_dev_run=1")
    if words[1] == "fit":
        flags = (flag for flag in SMALL if flag.split("=")[0] not in str(words))
        small = (*MICRO, *small, *flags)
    cli = finished(*words[1:], *small, *SHORT)
    assert sweep["metric"]["name"] in cli.trainer.callback_metrics
    config = cli.config[words[1]]
    for path, value in wanted.items():
        place = path.replace("optimizer.", "optimizer.init_args.")
        place = place.replace("model.", "model.init_args.", 1).replace("data.", "data.init_args.")
        assert config[place] == pytest.approx(value), path
