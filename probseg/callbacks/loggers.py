"""The loggers of a configuration: their classes, and their versions when a run resumes."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger

from probseg.callbacks.artifacts import ArtifactLogger
from probseg.callbacks.continued_csv import ContinuedCSVLogger
from probseg.callbacks.run_folder import versions_of


def make_logger(kind: type[Logger], **arguments: Any) -> Logger:  # noqa: ANN401
    """Make a logger of a configuration; for CSV and Weights & Biases, probseg's class."""
    ours: dict[type[Logger], type[Logger]] = {
        CSVLogger: ContinuedCSVLogger,
        WandbLogger: ArtifactLogger,
    }
    return ours.get(kind, kind)(**arguments)


def missing_versions(logger: Any, run: Path) -> list[tuple[MutableMapping[str, Any], str]]:  # noqa: ANN401
    """Return the versions that loggers of a configuration need to resume a run.

    Args:
        logger: Value of `trainer.logger`: a description, a list of them, True, False or None.
        run: Folder of the run.

    Returns:
        The `init_args` of each logger without `version`, and the version of the run in it.
        Where the run had another number of loggers, for the first one alone.
    """
    loggers = logger if isinstance(logger, list) else [logger]
    names = versions_of(run)
    if len(names) != len(loggers):
        names = [run.name]
    described = [
        (one["init_args"], name)
        for one, name in zip(loggers, names, strict=False)
        if one is not None and not isinstance(one, bool)
    ]
    return [(options, name) for options, name in described if options.get("version", "") is None]
