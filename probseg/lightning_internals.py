"""All that is taken from Lightning beyond its documented interface.

Each function and class here relies on names that Lightning may change in any version; a test of
each says which one it was.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import yaml
from jsonargparse import Namespace, set_dumper
from jsonargparse import Path as ConfigPath
from lightning.pytorch.callbacks.model_summary import ModelSummary, log
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.core import saving
from lightning.pytorch.core.mixins.hparams_mixin import _given_hyperparameters
from lightning.pytorch.loggers import (
    CSVLogger,
    Logger,
    TensorBoardLogger,
    csv_logs,
    tensorboard,
)
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from lightning.pytorch.utilities.model_summary.model_summary import _format_summary_table

from probseg.paths import replacing
from probseg.texts import read_text


def made_by_command_line() -> bool:
    """Return whether the object under construction gets its arguments from `LightningCLI`."""
    return _given_hyperparameters.get() is not None


def without_version(logger: Logger) -> bool:
    """Return whether a logger is going to choose the number of its run."""
    return isinstance(logger, TensorBoardLogger | CSVLogger) and logger._version is None


def set_version(logger: Logger, version: int | str | None) -> None:
    """Set the number or name of a logger's run, before its first record."""
    if version is not None and isinstance(logger, TensorBoardLogger | CSVLogger):
        logger._version = version


def launched_processes(trainer: L.Trainer) -> list[subprocess.Popen[bytes]]:
    """Return the other processes of a training, which the first one has started.

    Lightning watches this list: whoever ends the processes empties it first, or Lightning kills
    this process, too.
    """
    launcher = trainer.strategy.launcher
    return launcher.procs if isinstance(launcher, _SubprocessScriptLauncher) else []


def logged_step(trainer: L.Trainer) -> int:
    """Return the step that Lightning gives to numbers; after a batch, `global_step` is one ahead.

    Pictures and numbers of one moment then stand at one step, and steps never go back.
    """
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def position(trainer: L.Trainer) -> tuple[int, int]:
    """Return the epoch and batch at which a training begins or resumes."""
    epochs: Any = trainer.fit_loop.epoch_progress.current  # annotated as its base class
    if epochs.ready == epochs.processed:  # between two epochs, or at the very beginning
        return epochs.processed, 0
    batches: Any = trainer.fit_loop.epoch_loop.batch_progress
    if batches.is_last_batch:
        return epochs.processed + 1, 0
    return epochs.processed, batches.current.processed


def recount_batches(trainer: L.Trainer, before: int, now: int) -> None:
    """Convert the number of finished batches of an epoch to another batch size, in place.

    Where that does not come out even, the crops of less than a batch are seen again.
    """
    current: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    open_batches = current.processed - current.completed  # whose end Lightning makes up for
    current.ready = current.started = current.processed = current.processed * before // now
    current.completed = current.processed - open_batches


def end_readers(trainer: L.Trainer) -> None:
    """End the processes that read training data, which Lightning leaves running in a validation."""
    trainer.fit_loop.teardown()


def mark_validation_as_begun(checkpoint: Mapping[str, Any]) -> None:
    """Make a training that resumes from a checkpoint repeat the validation, in place.

    Lightning takes a checkpoint from between a batch and its validation for one from after it.
    """
    begun = {"ready": 1, "started": 1, "processed": 0, "completed": 0}
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
    progress.update(total=dict(begun), current=dict(begun), is_last_batch=False)


def uncount_open_validation(trainer: L.Trainer) -> None:
    """Count the batches of an interrupted validation once, in the repetition that now begins.

    Lightning would count the open one again, and repeat this validation whenever the run goes on.
    """
    total: Any = trainer.fit_loop.epoch_loop.val_loop.batch_progress.total
    total.reset_on_restart()


def finished_epochs(checkpoint: Mapping[str, Any]) -> int | None:
    """Return the number of epochs in a checkpoint; None if it holds weights alone."""
    if "optimizer_states" not in checkpoint:
        return None
    epochs: int = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    return epochs


class NetworkSummary(ModelSummary):
    """Lightning's table of a network without its operations, of which it counts none here."""

    def __init__(self, replaced: ModelSummary) -> None:
        super().__init__(max_depth=replaced._max_depth)

    @staticmethod
    def summarize(
        summary_data: list[tuple[str, list[str]]],
        *totals: Any,  # noqa: ANN401
        **options: Any,  # noqa: ANN401
    ) -> None:
        """Log the table."""
        columns = [column for column in summary_data if column[0] != "FLOPs"]
        table = _format_summary_table(*totals, options["total_flops"], *columns)
        log.info("\n%s", table.rpartition("\n")[0])


class _Dumper(yaml.SafeDumper):
    """Writes texts such as `1e3` in quotes: the parser takes more for numbers than YAML 1.1."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[\d_]+(\.[\d_]*)?e[-+]?\d+$", re.I), None
)
_style = {"default_flow_style": False, "allow_unicode": True, "sort_keys": False}
set_dumper("yaml", partial(yaml.dump, Dumper=_Dumper, **_style))


def _read_text(path: ConfigPath) -> str:
    """Read a configuration as all other texts, in any encoding with a mark; or from an address."""
    local = Path(path.absolute)
    return read_text(local) if local.is_file() else _read_remote(path)


_read_remote, ConfigPath.read_text = ConfigPath.read_text, _read_text


def _save_whole(path: str, hparams: Any, **options: Any) -> None:  # noqa: ANN401
    """Write a logger's `hparams.yaml` whole, or not at all: Lightning never writes it again."""
    if "://" in path:
        saving.save_hparams_to_yaml(path, hparams, **options)
        return
    with replacing(Path(path)) as draft:
        saving.save_hparams_to_yaml(draft, hparams, **options)


for _module in (csv_logs, tensorboard):
    vars(_module).update(save_hparams_to_yaml=_save_whole)


class DataFirstParser(LightningArgumentParser):
    """Makes the data before the model: missing data are found before weights are loaded."""

    _actions: list[argparse.Action]

    def instantiate(self, *args: Any, **kwargs: Any) -> Namespace:  # noqa: ANN401
        """Make the classes of a configuration; see jsonargparse."""
        in_order = self._actions
        self._actions = sorted(in_order, key=lambda action: action.dest != "data")
        try:
            return super().instantiate(*args, **kwargs)
        finally:
            self._actions = in_order


class VerbCLI(LightningCLI):
    """LightningCLI for one verb, with places for code around it; the first of `args` is the verb.

    Its parser alone is made, to start sooner.
    """

    def __init__(self, verb: str, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
        self.verb = verb
        super().__init__(*arguments, **options)

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Return the verb, with the arguments that Lightning fills in itself."""
        return {self.verb: LightningCLI.subcommands()[self.verb]}

    def option_names(self) -> list[str]:
        """Return the names of the options of the verb."""
        return list(self._parser(self.verb).get_defaults(skip_validation=True).keys())

    def prepare_parser(self, parser: LightningArgumentParser) -> None:
        """Change the parser of the verb, in place."""

    def run_verb(self) -> None:
        """Run the verb."""
        super()._run_subcommand(self.verb)

    def _prepare_subcommand_parser(
        self,
        klass: type,
        subcommand: str,
        **kwargs: Any,  # noqa: ANN401
    ) -> LightningArgumentParser:
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        self.prepare_parser(parser)
        return parser

    def _run_subcommand(self, subcommand: str) -> None:
        self.run_verb()
