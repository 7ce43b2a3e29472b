"""Settings of an ablation, each trained with several seeds: means with errors over the seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from probseg.errors import DataError, check_name
from probseg.metrics import standard_error
from probseg.paths import write_text
from probseg.reports.comparison import object_scores, style_of, title_of
from probseg.reports.comparison_inputs import Result, pair, protocol_differences
from probseg.reports.tables import ScoreTable, as_markdown

SHOWN = ("miou@1", "miou@3", "miou@5", "auc", "noc@85", "noc@90")
"""Metrics of the table where none are named, as far as the results have them."""

LEGEND = (
    "Mean over objects and seeds ± standard error over seeds, of trainings on the same data; none "
    "for a single seed."
)


@dataclass(frozen=True)
class Cell:
    """A metric of a setting on one data set."""

    dataset: str
    setting: str
    metric: str
    seeds: tuple[float, ...]  # the mean over objects of each run
    mean: float
    error: float | None  # standard error over seeds

    def text(self, plus_minus: str) -> str:
        """Return mean and error in the unit of tables."""
        style = style_of(self.metric)
        numbers = [self.mean] if self.error is None else [self.mean, self.error]
        return f" {plus_minus} ".join(f"{style.scale * n:.{style.digits}f}" for n in numbers)


def over_seeds(
    settings: Mapping[str, Sequence[Result]], metrics: Sequence[str] | None = None
) -> list[Cell]:
    """Return each metric of each setting on each data set.

    Args:
        settings: Results of the runs of each setting, of all the same objects.
        metrics: As of `probseg compare`; None are those of `SHOWN`.

    Raises:
        DataError: If protocols or objects differ.
        UnknownNameError: If there is no such metric.
    """
    results = [result for runs in settings.values() for result in runs]
    if differences := protocol_differences(results):
        raise DataError(f"the results were made by different protocols: {'; '.join(differences)}")
    cells = []
    for data in pair(results)[0]:
        scores = iter(object_scores(of_run, data.first, data.percents) for of_run in data.scores)
        for setting, runs in settings.items():
            of_runs = [next(scores) for _ in runs]
            for metric in metrics or [name for name in SHOWN if name in of_runs[0]]:
                check_name("metric", metric, of_runs[0])
                means = np.array([of_run[metric].mean() for of_run in of_runs])
                if np.isnan(means).any():
                    raise DataError(
                        f"{metric} of {setting} has no value for some objects of {data.dataset}; "
                        "leave it out of --metric"
                    )
                error = None if len(runs) == 1 else float(standard_error(means))
                cell = (tuple(means.tolist()), float(means.mean()), error)
                cells.append(Cell(data.dataset, setting, metric, *cell))
    return cells


def setting_tables(cells: Sequence[Cell], plus_minus: str = "±") -> list[ScoreTable]:
    """Return a table for each data set: a row for each setting, a column for each metric."""
    tables = []
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        here = [cell for cell in cells if cell.dataset == dataset]
        metrics = dict.fromkeys(cell.metric for cell in here)
        rows: dict[str, list[str]] = {}
        for cell in here:
            row = rows.setdefault(cell.setting, [cell.setting, str(len(cell.seeds))])
            row.append(cell.text(plus_minus))
        header = ["setting", "seeds", *map(title_of, metrics)]
        tables.append(ScoreTable(dataset, LEGEND, header, list(rows.values())))
    return tables


def as_latex(cells: Sequence[Cell]) -> str:
    """Return the tables for a paper, in the commands of the package `booktabs`."""
    special = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"})
    lines = []
    for table in setting_tables(cells, r"$\pm$"):
        rows = [[row[0].translate(special), *row[1:]] for row in table.rows]
        lines += [f"% {table.title}", rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}"]
        lines += [r"\toprule", " & ".join(table.header) + r" \\", r"\midrule"]
        lines += [" & ".join(row) + r" \\" for row in rows]
        lines += [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(lines)


def write_settings(folder: Path, cells: Sequence[Cell], *, latex: bool) -> list[Path]:
    """Write `settings.md` and `settings.json`, and `settings.tex` if it is wanted."""
    folder.mkdir(parents=True, exist_ok=True)
    text: list[str] = ["# Settings over seeds", ""]
    for table in setting_tables(cells):
        text += [f"## {table.title}", "", *as_markdown(table), ""]
    numbers = json.dumps([asdict(cell) for cell in cells], indent=2, allow_nan=False)
    files = {"settings.md": "\n".join([*text, LEGEND, ""]), "settings.json": f"{numbers}\n"}
    if latex:
        files["settings.tex"] = as_latex(cells)
    for name, content in files.items():
        write_text(folder / name, content)
    return [folder / name for name in files]
