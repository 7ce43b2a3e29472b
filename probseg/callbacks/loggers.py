"""The loggers of a configuration: what is made of them, and how they go on with a run."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger

from probseg.callbacks.artifacts import ArtifactLogger
from probseg.callbacks.continued_csv import ContinuedCSVLogger
from probseg.callbacks.run_folder import versions_of


def make_logger(kind: type[Logger], **arguments: Any) -> Logger:  # noqa: ANN401
    """Make a logger that a configuration names, or what stands in for one of Lightning's."""
    ours: dict[type[Logger], type[Logger]] = {
        CSVLogger: ContinuedCSVLogger,
        WandbLogger: ArtifactLogger,
    }
    return ours.get(kind, kind)(**arguments)


def names_to_give(logger: Any, run: Path) -> list[tuple[MutableMapping[str, Any], str]]:  # noqa: ANN401
    """Return what the loggers of a configuration must be told so that they go on with a run.

    Args:
        logger: Value of ``trainer.logger``: a description, a list of them, True, False or None.
        run: Folder of the run.

    Returns:
        The ``init_args`` of each logger that has no ``version`` yet, and the version that it needs.
        Where the run had another number of loggers, of the first one alone.
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
