"""A CSV logger that resumes after an interruption."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter


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
        kept = table.with_name("metrics.kept.csv")
        if table.exists():
            table.replace(kept)
        with warnings.catch_warnings():  # it says that files are deleted, which are not
            warnings.filterwarnings("ignore", "Experiment logs directory")
            writer = super().experiment
        if kept.exists():  # also where a start was killed on these lines
            _drop_torn_row(kept)
            writer.metrics_keys = _header(kept)
            kept.replace(table)
        return writer


def _drop_torn_row(table: Path) -> None:
    """Cut off a last row that a killed process did not finish."""
    with table.open("r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)


def _header(table: Path) -> list[str]:
    with table.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])
