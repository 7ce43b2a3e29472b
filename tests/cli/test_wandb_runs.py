"""Weights & Biases from the command line, offline: runs that go on, uploads, sweeps."""

import csv
import json
import os
import signal
import struct
import subprocess
import sys
import time

import pytest
import torch
import yaml
from fakes import write_folder
from runs import MICRO, QUIET, SMALL, command, finished, folder_fit
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from probseg.paths import configs_dir

wandb = pytest.importorskip("wandb")

PATIENCE = 180
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


def probseg(place, *arguments):
    """Start a command line in a process of its own."""
    code = "from probseg.cli import main; raise SystemExit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, *(str(argument) for argument in arguments)],
        cwd=place,
        env={**os.environ, **OFFLINE, "OMP_NUM_THREADS": "1", "PROBSEG_DATA": str(place)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_epoch(process, place, epoch):
    """Wait until the checkpoint of an epoch is written; return it."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()[0]
        for last in place.glob("logs/p/*/checkpoints/last.ckpt"):
            stored = torch.load(last, weights_only=True)
            if stored["epoch"] >= epoch:
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


def history(folder):
    """What an offline run logged: a dictionary for each call."""
    return [
        {(i.key or ".".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item}
        for record in records(folder)
        if record.WhichOneof("record_type") == "history"
    ]


def identifier(folder):
    (found,) = {r.run.run_id for r in records(folder) if r.WhichOneof("record_type") == "run"}
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Folder of a run with three loggers that was killed and went on."""
    place = tmp_path_factory.mktemp("wandb")
    root = write_folder(place / "data", images=5, size=(24, 32))
    fit = (*folder_fit(root, *SHORT), "--trainer.logger", json.dumps(LOGGERS))
    process = probseg(place, *fit, "--trainer.max_epochs=1000000")
    try:
        wait_for_epoch(process, place, 2)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    (last,) = place.glob("logs/p/*/checkpoints/last.ckpt")
    before = torch.load(last, weights_only=True)
    (place / "before.json").write_text(json.dumps([before["epoch"], before["global_step"]]))
    (table,) = place.glob("logs/table/*/metrics.csv")
    (place / "before.csv").write_bytes(table.read_bytes())
    more = (f"--trainer.max_epochs={before['epoch'] + 3}", "--ckpt_path", "last")
    process = probseg(place, *fit, *more)
    told = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 0, told
    assert told.count("Weights & Biases is offline: no checkpoint is uploaded") == 1
    return place


def offline_runs(place):
    return sorted(place.glob("logs/wandb/offline-run-*"))


def test_a_run_that_goes_on_keeps_its_identifier_and_its_folder(place):
    first, second = offline_runs(place)
    assert identifier(first) == identifier(second)
    (run,) = (place / "logs" / "p").iterdir()
    assert run.name == identifier(first)
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert "last.ckpt" in names
    assert len(names) == 2, "the best and the last, of both parts together"


def test_steps_go_on_and_never_back(place):
    epoch, step = json.loads((place / "before.json").read_text())
    first, second = (
        [(row["trainer/global_step"], row.get("epoch")) for row in history(folder)]
        for folder in offline_runs(place)
    )
    for rows in (first, second):
        assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert first[0][0] < step
    assert second[0][0] >= step - 1, "Lightning counts from 0"
    assert max(row[1] for row in second if row[1] is not None) == epoch + 2


def test_the_other_loggers_of_a_run_go_on_too(place):
    epoch, _ = json.loads((place / "before.json").read_text())
    assert [path.name for path in (place / "logs" / "table").iterdir()] == ["version_0"]
    assert [path.name for path in (place / "logs" / "events").iterdir()] == ["version_0"]
    rows = list(csv.DictReader((place / "logs/table/version_0/metrics.csv").open(newline="")))
    validated = [int(row["epoch"]) for row in rows if row["val/miou@5"]]
    assert sorted(set(validated)) == list(range(epoch + 3)), "rows of before the kill are kept"
    kept = list(csv.DictReader((place / "before.csv").open(newline="")))
    assert [{key: row[key] for key in kept[0]} for row in rows[: len(kept)]] == kept
    events = EventAccumulator(str(place / "logs/events/version_0")).Reload()
    assert len(events.Scalars("val/miou@5")) == len(validated)


def test_each_start_of_a_run_is_written_down(place):
    (run,) = (place / "logs" / "p").iterdir()
    starts = [json.loads(line) for line in (run / "starts.jsonl").read_text().splitlines()]
    assert [start["verb"] for start in starts] == ["fit", "fit"]
    assert starts[0]["checkpoint"] is None
    assert starts[1]["checkpoint"] == str(run / "checkpoints" / "last.ckpt")
    for start in starts:
        assert start["versions"] == [run.name, "version_0", "version_0"]
        assert start["environment"]["versions"]["probseg"]
    config = yaml.safe_load((run / "config.yaml").read_text())
    versions = [logger["init_args"].get("version") for logger in config["trainer"]["logger"]]
    assert versions == [None] * 3, "the configuration begins a run of its own"


def test_weights_and_biases_knows_the_code(place):
    for folder in offline_runs(place):
        sent = {}
        for record in records(folder):
            for update in (*record.run.config.update, *record.config.update):
                sent[update.key] = json.loads(update.value_json)
        assert sent["environment"]["versions"]["probseg"]
        assert {"commit", "dirty"} <= sent["environment"].keys()
        assert sent["config"]["trainer"]["max_epochs"] > 0


def test_without_a_network_nothing_is_uploaded(place):
    for folder in offline_runs(place):
        artifacts = [
            r.artifact for r in records(folder) if r.WhichOneof("record_type") == "artifact"
        ]
        assert "model" not in {artifact.type for artifact in artifacts}
    assert not list(place.rglob("artifacts.json"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory with a drawn folder, and no network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    write_folder(tmp_path / "my_folder", images=4, size=(24, 32))
    yield tmp_path
    wandb.teardown()


def test_uploads_and_offline_exclude_each_other(here, capsys):
    logger = ("--trainer.logger=WandbLogger", "--trainer.logger.log_model=true")
    assert command(*folder_fit("my_folder", *logger, "--trainer.logger.offline=true")) == 2
    told = capsys.readouterr().err
    assert "log_model True of WandbLogger: checkpoints cannot be uploaded" in told
    assert "Traceback" not in told


SWEEPS = sorted(path.name for path in (configs_dir() / "sweep").glob("*.yaml"))
SLOW = {"adaptation.yaml"}  # tests the shipped model


def chosen(parameter):
    """A value that a sweep may choose for a parameter."""
    if "values" in parameter:
        return parameter["values"][-1]
    assert parameter["distribution"] == "log_uniform_values"
    return parameter["max"]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in SWEEPS]
)
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


def test_there_are_sweeps():
    assert {"adaptation.yaml", "folder.yaml"} <= set(SWEEPS)
