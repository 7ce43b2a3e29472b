"""An evaluation as one page that needs no other file, no network and, to be read, no script."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from probseg.evaluation.arrays import Scores
from probseg.evaluation.protocols import Protocol
from probseg.evaluation.records import ObjectRecord
from probseg.evaluation.summary import Summary
from probseg.metrics import area_under_curve
from probseg.reports.figures import draw_curve, draw_survival
from probseg.reports.gallery import KEY, data_uri, render_run
from probseg.reports.listing import listed_percent, render_objects, render_options
from probseg.reports.tables import ScoreTable, clicks_so_far, count, score_tables

Floats = npt.NDArray[np.float64]

PICTURED = 4
"""Number of the worst and of the best runs of each data set that are drawn."""


def render_page(
    records: Sequence[ObjectRecord],
    scores: Mapping[str, Scores],
    summaries: Mapping[str, Summary],
    protocol: Protocol,
    metadata: Mapping[str, Any],
) -> str:
    """Return an HTML document with tables, figures, runs, objects and how all was measured.

    Args:
        records: Each run once, sorted by data set, object and trial.
        scores: Their scores by data set.
        summaries: The summaries of these.
        protocol: How they were made.
        metadata: What else belongs to the result; JSON values. ``model`` goes into the title, see
            `model_name`.
    """
    # Area under the curve of each run, (objects, trials).
    areas = {name: area_under_curve(of_set.ious, of_set.first) for name, of_set in scores.items()}
    sections = {
        table.title: _chart(table.title, summaries, protocol) + _score_table(table)
        for table in score_tables(summaries, protocol)
    }
    gallery = _gallery(records, areas)
    if gallery:
        sections["Worst and best runs"] = gallery
    sections["Objects"] = render_objects(records, scores, areas, protocol)
    sections["How this was measured"] = render_options(protocol, metadata)
    title = escape(f"{model_name(metadata) or 'Evaluation'}, protocol {protocol.name}")
    links = "".join(f'<li><a href="#{_anchor(name)}">{name}</a></li>' for name in sections)
    cards = "".join(_card(name, summary, protocol) for name, summary in summaries.items())
    contents = "".join(
        f'<section aria-labelledby="{_anchor(name)}">\n<h2 id="{_anchor(name)}">{name}</h2>\n'
        f"{content}</section>\n"
        for name, content in sections.items()
    )
    template = (files("probseg.reports") / "report.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        title=title,
        lead=escape(f"{protocol.description} On {', '.join(summaries)}."),
        links=links,
        cards=cards,
        contents=contents,
    )


def model_name(metadata: Mapping[str, Any]) -> str | None:
    """Return a short name of an evaluated model.

    Args:
        metadata: Has the name as ``model``, or ``class_path`` and ``init_args`` of a configuration
            there, of which the argument ``name`` or the class counts.

    Returns:
        The name, or None if there is no model.
    """
    model = metadata.get("model")
    if isinstance(model, Mapping):
        arguments = model.get("init_args") or {}
        model = arguments.get("name") or str(model.get("class_path", "")).rpartition(".")[2]
    return str(model) if model else None


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _card(name: str, summary: Summary, protocol: Protocol) -> str:
    """Return what one looks at first of a data set, as numbers and as a sentence."""
    last = protocol.max_clicks
    shown = sorted({protocol.first_answer, min(5, last), last})
    stats = {f"mIoU@{k}": f"{100 * summary.miou[k]:.1f}&nbsp;%" for k in shown}
    percent = listed_percent(protocol)
    failed = ""
    if percent is not None:
        stats[f"NoC@{percent}"] = f"{summary.noc[percent]:.2f}"
        runs = count(summary.n_objects * summary.n_trials, "run")
        failed = f"; <b>{summary.failures_never[percent]}</b> of {runs} never reached "
        failed += f"{percent}&nbsp;%"
    items = "".join(f"<div><dt>{key}</dt><dd>{value}</dd></div>" for key, value in stats.items())
    k = shown[len(shown) // 2]
    interval = ""
    if summary.ci_low is not None and summary.ci_high is not None:
        low, high = 100 * summary.ci_low[k], 100 * summary.ci_high[k]
        interval = f" (95 % interval {low:.1f} to {high:.1f})"
    return (
        f'<article class="card"><h2>{escape(name)}</h2><dl class="stats">{items}</dl>\n'
        f"<p>{count(summary.n_objects, 'object')} in {count(summary.n_photos, 'photo')}, "
        f"{count(summary.n_trials, 'trial')}. After {k} {clicks_so_far(protocol)} the mean IoU is "
        f"<b>{100 * summary.miou[k]:.1f}&nbsp;%</b>{interval}{failed}."
        "</p></article>\n"
    )


def _chart(title: str, summaries: Mapping[str, Summary], protocol: Protocol) -> str:
    """Return the figure that belongs to a table, on light and on dark paper."""
    charts: dict[str, tuple[Callable[..., None], str]] = {
        "Mean IoU": (draw_curve, "Curves of mean IoU over clicks"),
        "Number of clicks": (draw_survival, "Share of runs below an IoU over clicks"),
    }
    if title not in charts:
        return ""
    draw, words = charts[title]
    light, dark = io.BytesIO(), io.BytesIO()
    draw(light, summaries, protocol)
    draw(dark, summaries, protocol, dark=True)
    width, height = Image.open(light).size
    return (
        '<div class="chart"><picture><source media="screen and (prefers-color-scheme: dark)" '
        f'srcset="{data_uri(dark.getvalue(), "image/png")}">'
        f'<img src="{data_uri(light.getvalue(), "image/png")}" '
        f'alt="{words}; the table below has the numbers." '
        f'width="{width // 2}" height="{height // 2}"></picture></div>\n'
    )


def _score_table(table: ScoreTable) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.header)
    rows = []
    for name, *cells in table.rows:
        columns = "".join(f"<td>{_lines(cell)}</td>" for cell in cells)
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{columns}</tr>\n')
    return (
        f'<p class="legend">{escape(table.legend)}</p>\n'
        f'<div class="scroll" tabindex="0"><table><caption>{escape(table.title)}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{''.join(rows)}</tbody></table></div>\n"
    )


def _lines(cell: str) -> str:
    """Return the text of a cell, its second line smaller."""
    first, _, second = escape(cell).replace("±", "&thinsp;±&thinsp;").partition("\n")
    return f"{first}<small>{second}</small>" if second else first


def _gallery(records: Sequence[ObjectRecord], areas: Mapping[str, Floats]) -> str:
    """Return the worst and best runs that have a picture by data set; nothing without pictures."""
    parts: list[str] = []
    for name, of_set in areas.items():
        runs = [record for record in records if record.dataset == name]
        ranked = sorted(
            (area, number)
            for number, (run, area) in enumerate(zip(runs, of_set.flat, strict=True))
            if run.picture is not None
        )
        best = ranked[PICTURED:][-PICTURED:][::-1]
        for rank, chosen in (("worst", ranked[:PICTURED]), ("best", best)):
            if chosen:
                parts.append(f"<h3>{escape(name)}, {rank}</h3>\n")
            parts += [
                render_run(runs[number], float(area), f"{rank}-{len(parts)}-{place}")
                for place, (area, number) in enumerate(chosen)
            ]
    return KEY + "".join(parts) if parts else ""
