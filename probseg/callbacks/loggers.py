"""Loggers that resume with a run, checkpoints as artifacts, and pictures and curves for loggers."""

from __future__ import annotations

import csv
import json
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import lightning as L
import numpy as np
import numpy.typing as npt
import torch
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.utilities import rank_zero_only

from probseg.errors import UsageError, log_drawing_errors
from probseg.evaluation import environment
from probseg.images import read_image
from probseg.lightning_internals import logged_step
from probseg.paths import digest, write_text

_logger = logging.getLogger(__name__)

# file in the folder of the checkpoints: the artifact of each upload, by its checksum
RECORD = "artifacts.json"


class ArtifactLogger(WandbLogger):
    """Weights & Biases logger with resumable runs, and artifacts with epoch, code and settings.

    Lightning's own logger uploads score and file name alone, moves the alias `best` to the last
    checkpoint where a second callback keeps that one, and replaces a run where `resume` is None.

    An artifact has the aliases `latest`, `best` (of the best score so far) and
    `epoch<e>-step<s>`. Nothing is uploaded while Weights & Biases is offline or disabled.

    Args:
        offline: Write into a folder, for `wandb sync`.
        log_model: True uploads the checkpoints of a finished training, `"all"` each one at once.
        **kwargs: Other arguments of Lightning's logger, and of `wandb.init`.

    Raises:
        UsageError: If checkpoints should be uploaded, but the run is offline.
    """

    def __init__(
        self,
        *,
        offline: bool = False,
        log_model: Literal["all"] | bool = False,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        if log_model and (offline or kwargs.get("mode") == "offline"):
            raise UsageError(
                f"`log_model` of WandbLogger must be False in an offline run, got {log_model}; "
                "leave out `log_model` or `offline`"
            )
        if kwargs.get("resume") is None:  # as a parsed configuration has it for what was not given
            kwargs["resume"] = "allow"  # with None, a run that continues would replace itself
        super().__init__(offline=offline, **kwargs)  # whose own uploads stay off
        self.uploads = log_model
        self._callbacks: dict[str, ModelCheckpoint] = {}

    def adopt(self, callback: ModelCheckpoint) -> None:
        """Also upload the checkpoints of a callback, old ones included."""
        if self.uploads and (self.experiment.offline or self.experiment.disabled):
            self.uploads = False
            if self.experiment.offline:
                _logger.warning("Weights & Biases is offline: no checkpoint is uploaded")
        if self.uploads:
            self._callbacks[callback.state_key] = callback

    def after_save_checkpoint(self, checkpoint_callback: ModelCheckpoint) -> None:
        """Record new checkpoints of a callback; upload them if `log_model` is `"all"`."""
        self.adopt(checkpoint_callback)
        if self.uploads == "all":
            self._upload_new(checkpoint_callback)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Upload the checkpoints of a training, if it is complete."""
        if status == "success":
            for callback in self._callbacks.values():
                self._upload_new(callback)

    def _upload_new(self, callback: ModelCheckpoint) -> None:
        """Upload the new files of a callback, the oldest first."""
        scores = {Path(path): float(score) for path, score in callback.best_k_models.items()}
        best, last = Path(callback.best_model_path), Path(callback.last_model_path)
        files = filter(Path.is_file, {*scores, best, last})  # others gave way to better ones
        for path in sorted(files, key=lambda file: file.stat().st_mtime_ns):
            known, checksum = _known(path), digest(path)
            if checksum not in known:
                about = {"monitor": callback.monitor, "score": scores.get(path)}
                is_best = path == best and callback.monitor is not None
                known[checksum] = self._upload(path, about, ["best"] if is_best else [])
                write_text(path.parent / RECORD, json.dumps(known, indent=1) + "\n")

    def _upload(self, path: Path, about: dict[str, Any], aliases: list[str]) -> dict[str, str]:
        """Upload a checkpoint; return its entry for the record."""
        import wandb

        run, code = self.experiment, environment()
        stored = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        about |= {
            "epoch": stored["epoch"],
            "step": stored["global_step"],
            "file": path.name,
            "commit": code["commit"],
            "dirty": code["dirty"],
            "probseg": code["versions"]["probseg"],
            "config": run.config.get("config"),
        }
        name = f"model-{run.id}"
        artifact = wandb.Artifact(name, type="model", metadata=about)
        artifact.add_file(str(path), name="model.ckpt", policy=self.add_file_policy)
        alias = f"epoch{about['epoch']}-step{about['step']}"
        run.log_artifact(artifact, aliases=["latest", alias, *aliases])
        return {"artifact": f"{run.entity}/{run.project}/{name}:{alias}", "run": run.id}


def use_checkpoint(logger: WandbLogger, checkpoint: Path) -> None:
    """Record in Weights & Biases the artifact that a run starts from or tests.

    Nothing is recorded if the checkpoint was not uploaded, or by this same run (it goes on), or if
    the run is offline or disabled. An artifact that no longer exists is named in the log.
    """
    import wandb

    run = logger.experiment
    if run.disabled or run.offline or not checkpoint.is_file():
        return
    record = _known(checkpoint).get(digest(checkpoint))
    if record is None or record["run"] == run.id:
        return
    try:
        run.use_artifact(record["artifact"], type="model")
    except (ValueError, wandb.errors.Error) as error:
        text = "Weights & Biases cannot show that this run uses %s, from which %s is: %s"
        _logger.warning(text, record["artifact"], checkpoint, error)


def _known(checkpoint: Path) -> dict[str, dict[str, str]]:
    """Return the recorded artifacts of the checkpoints in a folder, by checksum of content."""
    record = checkpoint.parent / RECORD
    return dict(json.loads(record.read_text(encoding="utf-8"))) if record.is_file() else {}


class ContinuedCSVLogger(CSVLogger):
    """Lightning's logger, but it keeps `metrics.csv` when a run resumes.

    Rows that were written between the last checkpoint and the interruption stay too: the same
    steps are trained again, and have two rows, as they have two points in TensorBoard.
    """

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:  # noqa: ANN401
        """The writer, which Lightning makes when it is first asked for."""
        if self._experiment is not None:
            return self._experiment
        table = Path(self.log_dir) / ExperimentWriter.NAME_METRICS_FILE
        earlier = table.with_name("metrics.kept.csv")
        if table.exists():
            table.replace(earlier)
        with warnings.catch_warnings():  # it says that files are deleted, which are not
            warnings.filterwarnings("ignore", "Experiment logs directory")
            writer = super().experiment
        if earlier.exists():  # also where a start was killed on these lines
            with earlier.open("r+b") as file:  # without a last row that a killed process left torn
                file.truncate(file.read().rfind(b"\n") + 1)
            with earlier.open(newline="", encoding="utf-8") as rows:
                writer.metrics_keys = next(csv.reader(rows), [])
            earlier.replace(table)
        return writer


def make_logger(kind: type[Logger], **arguments: Any) -> Logger:  # noqa: ANN401
    """Make a logger of a configuration; for CSV and Weights & Biases, probseg's class."""
    ours: dict[type[Logger], type[Logger]] = {
        CSVLogger: ContinuedCSVLogger,
        WandbLogger: ArtifactLogger,
    }
    return ours.get(kind, kind)(**arguments)


def log_picture(trainer: L.Trainer, key: str, picture: Path | npt.NDArray[np.uint8]) -> None:
    """Send an image file, or RGB `(H, W, 3)`, to TensorBoard and Weights & Biases.

    What a logger does not take is logged as a warning, and the run continues.
    """
    for logger in trainer.loggers:
        with log_drawing_errors(f"{key} in {type(logger).__name__}"):
            if isinstance(picture, Path):
                picture = read_image(picture)
            if isinstance(logger, WandbLogger):
                logger.log_image(key, [picture], step=logged_step(trainer))
            elif isinstance(logger, TensorBoardLogger):
                logger.experiment.add_image(key, picture, logged_step(trainer), dataformats="HWC")


def log_curve(trainer: L.Trainer, key: str, miou: Sequence[float]) -> None:
    """Send mean IoU against clicks to Weights & Biases as a table, from which it plots curves.

    The numbers themselves are logged as `miou@k`, which all loggers get.
    """
    for logger in trainer.loggers:
        with log_drawing_errors(f"{key} in {type(logger).__name__}"):
            if isinstance(logger, WandbLogger):
                rows = [[k, value] for k, value in enumerate(miou)]
                logger.log_table(
                    key, columns=["clicks", "mIoU"], data=rows, step=logged_step(trainer)
                )
