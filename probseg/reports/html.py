"""An evaluation as a single HTML page, readable offline and without scripts."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from probseg.drawing import drawing
from probseg.evaluation.arrays import Scores
from probseg.evaluation.protocols import Protocol
from probseg.evaluation.records import ObjectRecord
from probseg.evaluation.summary import Summary
from probseg.images import opened
from probseg.metrics import area_under_curve
from probseg.reports.figures import draw_curve, draw_survival
from probseg.reports.gallery import data_uri, render_gallery
from probseg.reports.listing import listed_percent, render_objects, render_options
from probseg.reports.pages import render
from probseg.reports.tables import clicks_so_far, score_tables


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
        metadata: What else belongs to the result; JSON values. `model` goes into the title, see
            `model_name`.
    """
    # Area under the curve of each run, (objects, trials).
    areas = {name: area_under_curve(of_set.ious, of_set.first) for name, of_set in scores.items()}
    sections = {
        table.title: render("table", table=table, chart=_chart(table.title, summaries, protocol))
        for table in score_tables(summaries, protocol)
    }
    gallery = render_gallery(records, areas)
    if gallery:
        sections["Worst and best runs"] = gallery
    sections["Objects"] = render_objects(records, scores, areas, protocol)
    sections["How this was measured"] = render_options(protocol, metadata)
    return render(
        "report",
        title=f"{model_name(metadata) or 'Evaluation'}, protocol {protocol.name}",
        lead=f"{protocol.description} On {', '.join(summaries)}.",
        sections=sections,
        cards=[_card(name, summary, protocol) for name, summary in summaries.items()],
        clicks_so_far=clicks_so_far(protocol),
    )


def model_name(metadata: Mapping[str, Any]) -> str | None:
    """Return a short name of an evaluated model.

    Args:
        metadata: Has the name as `model`, or `class_path` and `init_args` of a configuration
            there, of which the argument `name` or the class counts.

    Returns:
        The name, or None if there is no model.
    """
    model = metadata.get("model")
    if isinstance(model, Mapping):
        arguments = model.get("init_args") or {}
        model = arguments.get("name") or str(model.get("class_path", "")).rpartition(".")[2]
    return str(model) if model else None


def _card(name: str, summary: Summary, protocol: Protocol) -> dict[str, Any]:
    """Return the most important numbers of a data set."""
    last = protocol.max_clicks
    shown = sorted({protocol.first_answer, min(5, last), last})
    stats = {f"mIoU@{k}": f"{100 * summary.miou[k]:.1f}\u00a0%" for k in shown}
    percent = listed_percent(protocol)
    if percent is not None:
        stats[f"NoC@{percent}"] = f"{summary.noc[percent]:.2f}"
    k = shown[len(shown) // 2]
    interval = None
    if summary.ci_low is not None and summary.ci_high is not None:
        interval = (100 * summary.ci_low[k], 100 * summary.ci_high[k])
    return {
        "name": name,
        "stats": stats,
        "objects": summary.n_objects,
        "photos": summary.n_photos,
        "trials": summary.n_trials,
        "k": k,
        "miou": f"{100 * summary.miou[k]:.1f}\u00a0%",
        "interval": interval,
        "percent": percent,
        "failures": None if percent is None else summary.failures_never[percent],
    }


def _chart(
    title: str, summaries: Mapping[str, Summary], protocol: Protocol
) -> dict[str, Any] | None:
    """Return the figure that belongs to a table, on light and on dark paper; None without one."""
    charts: dict[str, tuple[Callable[..., None], str]] = {
        "Mean IoU": (draw_curve, "Curves of mean IoU over clicks"),
        "Number of clicks": (draw_survival, "Share of runs below an IoU over clicks"),
    }
    if title not in charts:
        return None
    draw, words = charts[title]
    light, dark = io.BytesIO(), io.BytesIO()
    with drawing(f"the figure of {title!r} on the page"):
        draw(light, summaries, protocol)
        draw(dark, summaries, protocol, dark=True)
        with opened(light, title) as picture:
            width, height = picture.size
        return {
            "light": data_uri(light.getvalue(), "image/png"),
            "dark": data_uri(dark.getvalue(), "image/png"),
            "words": words,
            "width": width // 2,
            "height": height // 2,
        }
    return None
