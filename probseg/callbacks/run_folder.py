"""The folder of a run: its configuration, its starts, and the score that it began with."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

from probseg.callbacks.loggers import ArtifactLogger, use_checkpoint
from probseg.evaluation import environment
from probseg.lightning_internals import set_version, without_version
from probseg.paths import LOCK, alone_in, replacing, write_text

_logger = logging.getLogger(__name__)

# file in a run's folder with a line for each start of the run, see `SaveConfig`
STARTS = "starts.jsonl"
START = "start.json"  # file in a run's folder with the score before the first step, by its name


def run_folder(trainer: L.Trainer) -> Path:
    """Return the folder of the current run, which also holds its checkpoints.

    It is `<save_dir>/<name>/<version>`, or the trainer's root folder without a logger.
    """
    logger = trainer.logger
    if logger is None or logger.save_dir is None:
        return Path(trainer.default_root_dir)
    return Path(logger.save_dir) / str(logger.name) / version_name(logger)


def claim_folders(loggers: Sequence[Logger]) -> set[Path]:
    """Make the folders of loggers that number their runs, which then are this run's alone.

    Of several runs that begin at one moment each gets a number of its own. Loggers of one run that
    share a folder keep sharing it. Returns the folders.
    """
    claimed = set()
    roots: dict[Path, list[Logger]] = {}
    for logger in filter(without_version, loggers):
        roots.setdefault(Path(str(logger.save_dir)) / str(logger.name), []).append(logger)
    for root, sharing in roots.items():
        number = int(sharing[0].version or 0)
        root.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                (root / f"version_{number}").mkdir()
                claimed.add(root / f"version_{number}")
                break
            except FileExistsError:
                number += 1
        for logger in sharing:
            set_version(logger, number)
    return claimed


@contextmanager
def own_folder(trainer: L.Trainer, verb: str) -> Iterator[None]:
    """Keep the folder of a run for one command while it runs; the first process claims it."""
    known = isinstance(trainer.logger, TensorBoardLogger | CSVLogger | WandbLogger | None)
    # Without a logger, only a training writes: its checkpoints.
    writes = not is_dry(trainer) and (trainer.logger is not None or verb == "fit")
    if not (known and writes and trainer.is_global_zero):
        yield
        return
    local = [one for one in trainer.loggers if ":/" not in str(one.save_dir)]
    claimed = claim_folders(local)
    new = trainer.logger is not None and trainer.logger.version is None
    if new or (trainer.logger is not None and trainer.logger not in local):
        yield  # Weights & Biases makes an identifier that no other run has
        return
    folder = run_folder(trainer)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with alone_in(folder, verb):
            yield
    finally:
        if folder in claimed and {path.name for path in folder.iterdir()} <= {LOCK}:
            shutil.rmtree(folder)  # of a command that was refused before it began


def keeps_files(trainer: L.Trainer) -> bool:
    """Return whether a run has a folder for files besides its checkpoints.

    One with `fast_dev_run` or without a logger leaves none, wherever it was started.
    """
    return trainer.logger is not None and not is_dry(trainer)


def is_dry(trainer: L.Trainer) -> bool:
    """Return whether a run with `fast_dev_run` leaves no files at all."""
    return bool(getattr(trainer, "fast_dev_run", False))  # an attribute without a declared type


def version_name(logger: Logger) -> str:
    """Return the name that a logger gives to the run: `version_3`, or Weights & Biases' id."""
    version = logger.version
    return version if isinstance(version, str) else f"version_{version}"


def missing_versions(logger: Any, run: Path) -> list[tuple[MutableMapping[str, Any], str]]:  # noqa: ANN401
    """Return the versions that the loggers of a configuration need to resume a run.

    `logger` is a description, a list of them, True, False or None. To the `init_args` of each
    without a `version` belongs the name that the logger gave to the run, as `starts.jsonl` says.
    Where there is none, or the run had another number of loggers, the first one has the folder.
    """
    loggers = logger if isinstance(logger, list) else [logger]
    names = [run.name]
    if (run / STARTS).is_file():
        last = (run / STARTS).read_text(encoding="utf-8").splitlines()[-1]
        names = list(json.loads(last)["versions"])
    if len(names) != len(loggers):
        names = [run.name]
    described = [
        (description["init_args"], name)
        for description, name in zip(loggers, names, strict=False)
        if description is not None and not isinstance(description, bool)
    ]
    return [(options, name) for options, name in described if options.get("version", "") is None]


class SaveConfig(SaveConfigCallback):
    """Writes `config.yaml` and `starts.jsonl` into the run's folder.

    Each start of a run adds a line to `starts.jsonl`: time, verb, working directory, checkpoint,
    the names of the run in its loggers, and `probseg.evaluation.environment` (versions, commit,
    uncommitted changes, machine). Weights & Biases gets configuration, environment, and the
    artifact of the checkpoint.

    Lightning's own callback writes into the logger's root with Weights & Biases, where the second
    run meets the first one's file.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **{**kwargs, "save_to_log_dir": False})

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Take the numbers of the first process in all of them, and write the files."""
        if trainer.world_size > 1:
            versions = trainer.strategy.broadcast([logger.version for logger in trainer.loggers])
            for logger, version in zip(trainer.loggers, versions, strict=True):
                set_version(logger, version)
        super().setup(trainer, pl_module, stage)

    def save_config(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Write the files; called by Lightning once per start, on the first process."""
        folder = run_folder(trainer)
        folder.mkdir(parents=True, exist_ok=True)
        # A resumed run keeps its folder; its configuration is replaced. A training's names no
        # checkpoint: with it, a test takes the best one of the run, and a training starts again.
        saved = self.config.clone()
        if stage == "fit" and "ckpt_path" in saved:
            saved.ckpt_path = None
        options = {"skip_validation": True, "overwrite": True, "multifile": False}
        with replacing(folder / "config.yaml") as draft:
            self.parser.save(saved, draft, **options)
        code = environment(trainer.strategy.root_device)
        checkpoint = self.config.get("ckpt_path")  # a trainer that fits has none
        # Where modules may be that its classes come from, see `probseg.cli.trainer.add_code`.
        configs = [Path(str(path)) for path in self.config.get("config") or ()]
        start = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "verb": stage,
            "folder": str(Path.cwd()),  # which relative paths of the configuration start from
            "code": sorted({str(path.absolute().parent) for path in configs}),
            "checkpoint": str(checkpoint) if checkpoint else None,
            "versions": [version_name(logger) for logger in trainer.loggers],
            "environment": code,
        }
        starts = folder / STARTS
        earlier = starts.read_text(encoding="utf-8") if starts.is_file() else ""
        write_text(starts, earlier + json.dumps(start) + "\n")
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                known = {"config": self.config.as_dict(), "stage": stage, "environment": code}
                logger.log_hyperparams(known)
                if checkpoint:
                    use_checkpoint(logger, Path(checkpoint))
            if isinstance(logger, ArtifactLogger) and stage == "fit":
                for callback in trainer.checkpoint_callbacks:
                    if isinstance(callback, ModelCheckpoint):
                        logger.adopt(callback)


class StartScore(L.Callback):
    """Compares each validation with the network that the training began with.

    That network is validated in Lightning's sanity check, which must then cover all validation
    data (`num_sanity_val_steps=-1`). Its score, the one that checkpoints are chosen by, is logged
    at step 0 and kept in `start.json`, where a training that continues finds it.
    """

    def on_fit_start(self, trainer: L.Trainer, *_: object, **__: object) -> None:
        """Forget the score of an earlier training, where the folder is not new."""
        if trainer.is_global_zero and trainer.ckpt_path is None:
            (run_folder(trainer) / START).unlink(missing_ok=True)

    def on_sanity_check_end(self, trainer: L.Trainer, *_: object, **__: object) -> None:
        """Keep and log the score."""
        name = monitored(trainer)
        whole = trainer.num_sanity_val_steps == float("inf")
        if not whole or name is None or name not in trainer.callback_metrics:
            return
        score = float(trainer.callback_metrics[name])
        for logger in trainer.loggers:
            logger.log_metrics({name: score}, step=0)
        if trainer.is_global_zero:
            write_text(run_folder(trainer) / START, json.dumps({name: score}) + "\n")
            _logger.info("before the training: %s %.4f", name, score)

    def on_validation_end(self, trainer: L.Trainer, *_: object, **__: object) -> None:
        """Log a score and its difference."""
        name = monitored(trainer)
        if trainer.sanity_checking or not trainer.is_global_zero or name is None:
            return
        start = start_score(run_folder(trainer), name)
        if start is None or name not in trainer.callback_metrics:
            return
        score = float(trainer.callback_metrics[name])
        text = "epoch %d: %s %.4f (%+.4f against the start)"
        _logger.info(text, trainer.current_epoch, name, score, score - start)


def chooser(trainer: L.Trainer) -> ModelCheckpoint | None:
    """Return the callback that chooses the best checkpoint by a score, or None."""
    chosen = (c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint))
    return next((callback for callback in chosen if callback.monitor is not None), None)


def monitored(trainer: L.Trainer) -> str | None:
    """Return the name of the score that checkpoints are chosen by, or None."""
    callback = chooser(trainer)
    return None if callback is None else callback.monitor


def start_score(run: Path, name: str) -> float | None:
    """Return the score of the network that a run began with, or None if it is not known."""
    path = run / START
    if not path.is_file():
        return None
    score: float | None = json.loads(path.read_text(encoding="utf-8")).get(name)
    return score
