"""What is kept of a run: its configuration, code and numbers, and its checkpoints as artifacts."""

import csv
import inspect
import json
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import pytest
import torch
import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn

from probseg.callbacks.loggers import RECORD, ArtifactLogger, ContinuedCSVLogger, use_checkpoint
from probseg.callbacks.run_folder import SaveConfig, missing_versions
from probseg.errors import UsageError
from probseg.evaluation import environment
from support.trainings import quiet_trainer

wandb = pytest.importorskip("wandb")
from wandb.wandb_run import Run  # noqa: E402

pytestmark = pytest.mark.usefixtures("undrawn")


class FakeRun:
    """A run of Weights & Biases that is online, and remembers what it is asked."""

    offline = False
    disabled = False
    entity = "me"
    project = "p"

    def __init__(self, identifier="abc", gone=()):
        self.id = identifier
        self.config = {"config": {"seed_everything": 0}}
        self.gone = gone
        self.logged = []
        self.used = []

    def log(self, *arguments, **named):
        inspect.signature(Run.log).bind(self, *arguments, **named)

    def log_artifact(self, *arguments, **named):
        call = inspect.signature(Run.log_artifact).bind(self, *arguments, **named).arguments
        self.logged.append((call["artifact_or_path"], call["aliases"]))

    def use_artifact(self, *arguments, **named):
        call = inspect.signature(Run.use_artifact).bind(self, *arguments, **named).arguments
        if call["artifact_or_name"] in self.gone:
            raise wandb.errors.CommError("artifact not found")
        self.used.append(call["artifact_or_name"])


class Falling(L.LightningModule):
    """A network whose score is best after the second of three epochs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def training_step(self, batch):
        return self.layer(batch).sum()

    def on_train_epoch_end(self):
        self.log("score", [0.5, 0.9, 0.7][self.current_epoch])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def trained(logger, *callbacks):
    """Train for three epochs of two steps."""
    trainer = quiet_trainer(Path.cwd(), *callbacks, logger=logger, max_epochs=3)
    trainer.fit(Falling(), torch.utils.data.DataLoader(torch.ones(2, 1)))


def kept(folder, run, log_model):
    """Train with the best and the last checkpoint in a folder; return the logger."""
    logger = ArtifactLogger(save_dir=str(folder), project="p", experiment=run, log_model=log_model)
    best = ModelCheckpoint(
        folder, "epoch{epoch}", "score", mode="max", auto_insert_metric_name=False
    )
    trained(logger, best, ModelCheckpoint(folder, "last", enable_version_counter=False))
    return logger


def uploaded(run):
    """File, aliases and score of the artifacts that a run logged."""
    return [(a.metadata["file"], names, a.metadata["score"]) for a, names in run.logged]


def test_a_finished_training_uploads_its_best_and_its_last_checkpoint(tmp_path):
    run = FakeRun()
    kept(tmp_path, run, True)
    assert uploaded(run) == [
        ("epoch1.ckpt", ["latest", "epoch1-step4", "best"], pytest.approx(0.9)),
        ("last.ckpt", ["latest", "epoch2-step6"], None),
    ]
    best = run.logged[0][0]
    assert (best.name, best.type) == ("model-abc", "model")
    assert list(best.manifest.entries) == ["model.ckpt"]
    code = environment()
    assert best.metadata == {
        "epoch": 1,
        "step": 4,
        "monitor": "score",
        "score": pytest.approx(0.9),
        "file": "epoch1.ckpt",
        "commit": code["commit"],
        "dirty": code["dirty"],
        "probseg": code["versions"]["probseg"],
        "config": {"seed_everything": 0},
    }


@pytest.mark.parametrize(
    ("log_model", "state"), [(False, None), ("all", "offline"), ("all", "disabled"), ("all", None)]
)
def test_checkpoints_are_uploaded_as_they_come_or_not_at_all(log_model, state, tmp_path, caplog):
    run = FakeRun()
    if state is not None:
        setattr(run, state, True)
    kept(tmp_path, run, log_model)
    assert (tmp_path / RECORD).exists() == (log_model == "all" and state is None)
    best = [file for file, names, _ in uploaded(run) if "best" in names]
    last = [names for file, names, _ in uploaded(run) if file == "last.ckpt"]
    if not (tmp_path / RECORD).exists():
        assert not run.logged
    else:
        assert best == ["epoch0.ckpt", "epoch1.ckpt"]
        assert [last[0], last[-1]] == [["latest", "epoch0-step2"], ["latest", "epoch2-step6"]]
    assert caplog.text.count("no checkpoint is uploaded") == (state == "offline")


def test_arguments_of_weights_and_biases(monkeypatch):
    """Lightning would replace a run where the configuration has no `resume`."""
    asked = {}
    monkeypatch.setattr(wandb, "run", None)
    monkeypatch.setattr(wandb, "init", lambda **named: asked.update(named) or FakeRun())
    for given, resume in ((None, "allow"), ("must", "must")):
        assert ArtifactLogger(version="abc", resume=given).experiment.id == "abc"
        assert (asked["id"], asked["resume"]) == ("abc", resume)
    for flag in ({"offline": True}, {"mode": "offline"}):
        with pytest.raises(UsageError, match="log_model"):
            ArtifactLogger(log_model="all", **flag)


def test_what_was_uploaded_before_an_interruption_is_not_uploaded_again(tmp_path):
    logger = kept(tmp_path, FakeRun(), True)
    (best, last) = logger._callbacks.values()
    again = ArtifactLogger(save_dir=str(tmp_path), experiment=FakeRun(), log_model=True)
    again.adopt(best)
    again.adopt(last)
    again.finalize("failed")
    assert not again.experiment.logged
    again.finalize("success")
    assert not again.experiment.logged
    (tmp_path / RECORD).unlink()
    other = ArtifactLogger(save_dir=str(tmp_path), experiment=FakeRun(), log_model=True)
    other.adopt(best)
    other.finalize("success")
    assert [file for file, _, _ in uploaded(other.experiment)] == ["epoch1.ckpt"]


def test_a_run_names_the_artifact_that_it_loads(tmp_path, caplog):
    kept(tmp_path, FakeRun(), True)
    best = tmp_path / "epoch1.ckpt"

    def uses(run, checkpoint):
        use_checkpoint(SimpleNamespace(experiment=run), checkpoint)
        return run.used

    assert uses(FakeRun("other"), best) == ["me/p/model-abc:epoch1-step4"]
    assert uses(FakeRun("other"), tmp_path / "last.ckpt") == ["me/p/model-abc:epoch2-step6"]
    assert uses(FakeRun("abc"), best) == [], "a run that goes on does not use itself"
    assert uses(FakeRun("other"), tmp_path / "none.ckpt") == []
    for state in ("offline", "disabled"):
        away = FakeRun("other")
        setattr(away, state, True)
        assert uses(away, best) == []
    assert "cannot show" not in caplog.text
    assert uses(FakeRun("other", gone=["me/p/model-abc:epoch1-step4"]), best) == []
    assert "artifact not found" in caplog.text
    best.write_bytes(best.read_bytes() + b"0")
    assert uses(FakeRun("other"), best) == [], "another content is another checkpoint"


def rows_of(path):
    return list(csv.DictReader(path.open(newline="")))


@pytest.mark.parametrize("left", ["", "9,0.1", '3,"', None])
def test_a_table_goes_on(left, tmp_path, recwarn):
    """Behind whole rows, a torn one, or a start that was killed between the files."""
    first = ContinuedCSVLogger(tmp_path, "n", "version_0")
    first.log_metrics({"loss": 1.0}, step=0)
    first.save()
    table = tmp_path / "n" / "version_0" / "metrics.csv"
    if left is None:
        table.rename(table.with_name("metrics.kept.csv"))
    else:
        with table.open("a") as file:
            file.write(left)
    second = ContinuedCSVLogger(tmp_path, "n", "version_0")
    second.log_metrics({"score": 0.1}, step=1)
    second.save()
    assert rows_of(table) == [
        {"loss": "1.0", "score": "", "step": "0"},
        {"loss": "", "score": "0.1", "step": "1"},
    ]
    assert [path.name for path in table.parent.iterdir()] == ["metrics.csv"]
    assert not [w for w in recwarn if "will be deleted" in str(w.message)]


def test_names_of_loggers(tmp_path):
    run = tmp_path / "version_4"
    run.mkdir()

    def named(version=None):
        return {"class_path": "L", "init_args": {"version": version}}

    one, other, fixed = named(), named(), named("mine")
    assert missing_versions(one, run) == [(one["init_args"], "version_4")]
    assert missing_versions([one, other], run) == [(one["init_args"], "version_4")]
    assert missing_versions(True, run) == missing_versions(None, run) == []
    assert missing_versions(fixed, run) == []
    starts = [{"versions": ["a"]}, {"versions": ["version_4", "1a2b", "version_0"]}]
    (run / "starts.jsonl").write_text("".join(json.dumps(start) + "\n" for start in starts))
    assert missing_versions([one, other, fixed], run) == [
        (one["init_args"], "version_4"),
        (other["init_args"], "1a2b"),
    ]


LOGGERS = {
    "TensorBoard": lambda run: TensorBoardLogger("logs", "n"),
    "CSV": lambda run: ContinuedCSVLogger("logs", "n"),
    "Weights & Biases": lambda run: ArtifactLogger(save_dir="logs", project="n", experiment=run),
    "none": lambda run: False,
}


@pytest.mark.parametrize("name", LOGGERS)
def test_each_run_keeps_its_own_configuration_and_code(name, tmp_path, monkeypatch):
    """Two runs one after the other into the same place; without a logger it is one folder."""
    monkeypatch.chdir(tmp_path)
    parser = ArgumentParser()
    parser.add_argument("--seed_everything", type=int)
    seen = set()
    for seed in (1, 2):
        fake = FakeRun(f"run{seed}")
        config = parser.parse_args([f"--seed_everything={seed}"])
        trained(LOGGERS[name](fake), SaveConfig(parser, config))
        folders = {path.parent for path in tmp_path.rglob("config.yaml")}
        (folder,) = folders - seen if name != "none" else folders
        seen.add(folder)
        assert yaml.safe_load((folder / "config.yaml").read_text()) == {"seed_everything": seed}
        starts = [json.loads(line) for line in (folder / "starts.jsonl").read_text().splitlines()]
        assert len(starts) == (seed if name == "none" else 1)
        code = json.loads(json.dumps(environment()))
        assert starts[-1]["environment"] == code
        assert starts[-1]["versions"] == ([] if name == "none" else [folder.name])
        if name == "Weights & Biases":
            assert folder.name == fake.id
            assert fake.config["config"] == {"seed_everything": seed}
            assert json.loads(json.dumps(fake.config["environment"])) == code
    assert len(list(tmp_path.rglob("config.yaml"))) == (1 if name == "none" else 2)
