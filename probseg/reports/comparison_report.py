"""A comparison as text and files: verdicts, tables, `comparison.json` and the figure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import probseg
from probseg.errors import log_drawing_errors
from probseg.paths import write_text
from probseg.reports.comparison import (
    LEVEL,
    METRIC_STYLES,
    SIGNIFICANT,
    Comparison,
    Curves,
    Row,
    style_of,
    title_of,
)
from probseg.reports.tables import ScoreTable, listed, render
from probseg.texts import count

_PERCENT = [style.title for style in METRIC_STYLES.values() if style.scale == 100]
_HIGHER = [style.title for style in METRIC_STYLES.values() if style.higher_is_better]

LEGEND = (
    f"Means over objects (of these, means over trials); {listed(_PERCENT)} in "
    f"percent, their differences in points, NoC in clicks. Higher is better for {listed(_HIGHER)}, "
    "lower for the others. Failures: objects that most trials never brought to the "
    "IoU. The interval (95 %, not corrected) is of the mean difference, by a bootstrap over "
    "photographs. p: Wilcoxon's signed-rank test of the photographs' mean differences, for "
    "failures McNemar's exact test; corrected p: after Holm (1979)."
)
"""Legend of a table."""

# metrics of which the first available one leads in a verdict
LEADING = ("miou@5", "miou@3", "miou@2", "miou@1", "miou@0")


class Verdict(NamedTuple):
    """Result of a comparison with the reference on one data set, in sentences."""

    dataset: str
    other: str
    text: str


def verdicts(comparison: Comparison) -> list[Verdict]:
    """Return a verdict for each data set and other result.

    A result is called better only where a test is significant after correction and agrees with the
    mean difference. Without one no difference was shown, which is not the same as none.
    """
    reference, tests = comparison.results[0].name, len(comparison.rows)
    return [
        Verdict(of.dataset, other, _sentences(reference, other, rows, of, tests))
        for of, other, rows in _pairs(comparison)
    ]


def comparison_tables(comparison: Comparison) -> list[ScoreTable]:
    """Return one table per data set and other result, a row per metric."""
    reference = comparison.results[0].name
    numbers = [
        "difference",
        "95 % interval",
        "ahead / level / behind",
        "p",
        "corrected p",
        "better",
    ]
    return [
        ScoreTable(
            f"{curves.dataset}: {other} against {reference}, {curves.extent}",
            LEGEND,
            ["metric", reference, other, *numbers],
            [_cells(row, reference) for row in rows],
        )
        for curves, other, rows in _pairs(comparison)
    ]


def remarks(comparison: Comparison) -> list[str]:
    """Return notes and, with three or more results, their mean ranks, in sentences."""
    sentences = list(comparison.notes)
    if len(comparison.results) > 2:
        for curves in comparison.curves:
            names = [result.name for result in comparison.results]
            ranks = [f"{name} {rank:.2f}" for name, rank in zip(names, curves.ranks, strict=True)]
            sentences.append(
                f"Mean rank on {curves.dataset} by the photographs' mean IoU over all clicks "
                f"(1 is best, not tested): {', '.join(ranks)}."
            )
    return sentences


def markdown(comparison: Comparison) -> str:
    """Return the whole comparison as Markdown."""
    return render(
        "comparison.md",
        results=comparison.results,
        tests=len(comparison.rows),
        significant=SIGNIFICANT,
        verdicts=verdicts(comparison),
        tables=comparison_tables(comparison),
        legend=LEGEND,
        remarks=remarks(comparison),
    )


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return all numbers as JSON values; shares and IoUs are fractions, not percent."""
    return {
        "probseg": probseg.__version__,
        "reference": comparison.results[0].name,
        "results": [
            {
                "name": result.name,
                "folder": str(result.folder),
                "weights_sha256": result.metadata.get("weights_sha256"),
                "seed": result.metadata.get("seed"),
                "trials": {name: of.ious.shape[1] for name, of in result.scores.items()},
                "protocol": dict(result.protocol),
            }
            for result in comparison.results
        ],
        "settings": {
            "level": LEVEL,
            "significant": SIGNIFICANT,
            "correction": "Holm (1979)",
            "tests": len(comparison.rows),
            "bootstrap_draws": comparison.draws,
            "bootstrap_seed": comparison.seed,
        },
        "verdicts": [verdict._asdict() for verdict in verdicts(comparison)],
        "notes": list(comparison.notes),
        "rows": [asdict(row) | {"significant": row.significant} for row in comparison.rows],
        "curves": [
            {
                # JSON has no NaN
                name: np.where(np.isnan(value), np.array(None), value).tolist()
                if isinstance(value, np.ndarray)
                else value
                for name, value in asdict(curves).items()
            }
            for curves in comparison.curves
        ],
    }


def write_comparison(folder: Path, comparison: Comparison) -> list[Path]:
    """Write `comparison.md`, `comparison.json` and `curves.png`, or replace them.

    A figure that cannot be drawn is logged and left out of the returned files.
    """
    from probseg.reports.figures import draw_comparison  # matplotlib is slow to import

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in ("comparison.md", "comparison.json", "curves.png")]
    write_text(paths[0], markdown(comparison))
    numbers = json.dumps(as_json(comparison), indent=2, allow_nan=False)
    write_text(paths[1], f"{numbers}\n")
    with log_drawing_errors(paths[2]):
        draw_comparison(paths[2], comparison)
    return [path for path in paths if path.is_file()]


def _pairs(comparison: Comparison) -> Iterator[tuple[Curves, str, list[Row]]]:
    """Yield data set, other result and rows, where there are rows."""
    for curves in comparison.curves:
        for other in (result.name for result in comparison.results[1:]):
            key = (curves.dataset, other)
            if rows := [row for row in comparison.rows if (row.dataset, row.other) == key]:
                yield curves, other, rows


def _sentences(reference: str, other: str, rows: Sequence[Row], of: Curves, n_tests: int) -> str:
    """Return the verdict on one data set and one other result."""
    shown = [row for row in rows if row.significant]
    better = [row for row in shown if row.direction > 0]
    worse = [row for row in shown if row.direction < 0]
    by_metric = {row.metric: row for row in rows}
    leading = next((by_metric[metric] for metric in LEADING if metric in by_metric), rows[0])
    if better and worse:
        first = (
            f"{other} is better than {reference} in some respects on {of.dataset} and worse in "
            f"others: better by {_effects(better, leading)}; worse by {_effects(worse, leading)}"
        )
    elif better or worse:
        side = "better" if better else "worse"
        effects = _effects(better or worse, leading)
        first = f"{other} is {side} than {reference} on {of.dataset}: {effects}"
    elif shown:
        first = f"{other} and {reference} differ on {of.dataset}, but neither is better throughout"
    else:
        title = title_of(leading.metric)
        if leading.low is None or leading.high is None:
            lead = f"the difference in {title} is {_amount(leading)}, and one photograph gives no "
            lead += "interval"
        else:
            lead = f"the interval of {title} is {_interval(leading)} "
            lead = f"{lead}{style_of(leading.metric).unit}".rstrip()
            if leading.low * leading.high > 0:
                corrected = _p(leading.corrected_p, "corrected p")
                lead += f", not corrected ({_p(leading.p, 'p')}, {corrected})"
        first = (
            f"No difference between {reference} and {other} could be shown on {of.dataset} with "
            f"{of.extent}; {lead}"
        )
    if shown:
        first += "".join(
            f"; no difference in {title_of(row.metric)} could be shown "
            f"({_p(row.corrected_p, 'corrected p')})"
            for row in rows
            if (row is leading or row.metric == "noc@90") and not row.significant
        )
    sentences = [f"{first}."]
    for row in shown:
        if row.direction == 0:
            sentences.append(
                f"In {title_of(row.metric)} most objects and the mean disagree: {_effect(row)}, "
                f"but {other} is ahead on {count(row.ahead, 'object')} and behind on {row.behind}."
            )
    lead = f"By {title_of(leading.metric)} {other} is ahead on {leading.ahead}, behind on "
    lead += f"{leading.behind} and level on {leading.level} of {count(of.n_objects, 'object')}"
    sentences.append(
        f"{lead}; {len(shown)} of {len(rows)} tests are significant, corrected for all {n_tests}."
    )
    if not shown:
        sentences.append("This does not show that they perform alike.")
    return " ".join(sentences)


def _effects(rows: Sequence[Row], leading: Row) -> str:
    """Return one effect in full and the names of the other significant metrics."""
    shown = leading if leading in rows else min(rows, key=lambda row: row.corrected_p)
    others = [title_of(row.metric) for row in rows if row is not shown]
    return _effect(shown) + (f"; also in {', '.join(others)}" if others else "")


def _effect(row: Row) -> str:
    interval = "" if row.low is None else f"95 % interval {_interval(row)}, "
    return (
        f"{_amount(row)} of {title_of(row.metric)} ({interval}{_p(row.corrected_p, 'corrected p')})"
    )


def _amount(row: Row) -> str:
    return f"{_signed(row, row.difference)} {style_of(row.metric).unit}".rstrip()


def _interval(row: Row) -> str:
    if row.low is None or row.high is None:
        return "n/a"
    return f"{_signed(row, row.low)} to {_signed(row, row.high)}"


def _signed(row: Row, value: float) -> str:
    style = style_of(row.metric)
    return (
        f"{round(style.scale * value, style.digits) + 0.0:+.{style.digits}f}"  # + 0.0: no "-0.00"
    )


def _p(value: float, name: str) -> str:
    return f"{name} < 0.001" if value < 0.001 else f"{name} = {value:.3f}"


def _cells(row: Row, reference: str) -> list[str]:
    style, better = style_of(row.metric), "-"
    if row.significant:
        better = {1: row.other, -1: reference, 0: "unclear"}[row.direction]
    return [
        title_of(row.metric),
        f"{style.scale * row.reference_mean:.{style.digits}f}",
        f"{style.scale * row.other_mean:.{style.digits}f}",
        _signed(row, row.difference),
        _interval(row),
        f"{row.ahead} / {row.level} / {row.behind}",
        f"{row.p:.2g}",
        f"{row.corrected_p:.2g}",
        better,
    ]
