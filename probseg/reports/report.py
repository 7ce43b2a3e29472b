"""Files of an evaluation: first the numbers, then tables, figures and an HTML page.

`objects.csv` has one row per object, trial and number of clicks, and all scores follow from it;
`results.json` has the scores with all that is needed to repeat the evaluation.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from probseg.errors import log_drawing_errors
from probseg.evaluation.journal import RESULTS
from probseg.evaluation.protocols import Protocol
from probseg.evaluation.records import ObjectRecord, unique, write_objects
from probseg.evaluation.summary import Scores, Summary, percents_up_to, scores_of, summaries_of
from probseg.images import opened
from probseg.metrics import area_under_curve, noc
from probseg.paths import rewriting, write_text
from probseg.reports import figures
from probseg.reports.gallery import data_uri, render_gallery
from probseg.reports.tables import clicks_so_far, ending, markdown_table, render, score_tables

Floats = npt.NDArray[np.float64]

ALL_OBJECTS = 1000  # objects in all that are listed; of more only the worst and the best are
# number of the worst and of the best objects of each data set that are then listed
SOME_OBJECTS = 200
# numbers of clicks after which the list has the IoU, besides the first answer and the last
LISTED_CLICKS = (1, 3, 5, 10)

LISTED_PERCENT = 90
"""IoU in percent to which the list has the number of clicks, or the next one below that runs have
a chance to reach."""


def write_report(
    folder: Path | str,
    records: Sequence[ObjectRecord],
    protocol: Protocol,
    metadata: Mapping[str, Any],
    *,
    brief: bool = False,
) -> dict[str, Path]:
    """Write all files of an evaluation, `results.json` last, as a sign of completeness.

    `objects.csv` holds every click, `report.md` the tables, `report.html` a page of all that
    needs no other file and no network, `curve.png` and `survival.png` the figures and
    `overlays.png` a sheet of runs.

    Args:
        folder: Where to write; created if missing. An earlier `results.json` is removed first.
        records: All runs, in any order; repeated ones count once.
        protocol: How they were made.
        metadata: What else belongs to the result (model, data, seed, `environment`); JSON values.
        brief: Whether to leave out `report.html` and `survival.png`, which take seconds.

    Returns:
        Path of each file by its name without suffix; `table` is `report.md` and `page` is
        `report.html`. `overlays` is there only if a record has a picture. Figures and a page that
        cannot be drawn are logged and left out.

    Raises:
        ValueError: If there is no record, or an object lacks a trial that others have.
    """
    records = unique(records)
    scores = scores_of(records, protocol.first_result)
    summaries = summaries_of(scores, protocol)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {
        "results": folder / RESULTS,
        "objects": folder / "objects.csv",
        "table": folder / "report.md",
        "curve": folder / "curve.png",
    }
    paths["results"].unlink(missing_ok=True)
    with rewriting(paths["objects"]) as file:
        write_objects(file, records)
    write_text(paths["table"], markdown_table(summaries, protocol))
    with log_drawing_errors(paths["curve"]):
        figures.draw_curve(paths["curve"], summaries, protocol)
    if any(record.picture is not None for record in records):
        paths["overlays"] = folder / "overlays.png"
        with log_drawing_errors(paths["overlays"]):
            figures.draw_overlays(paths["overlays"], records, protocol)
    if not brief:
        paths |= {"survival": folder / "survival.png", "page": folder / "report.html"}
        with log_drawing_errors(paths["survival"]):
            figures.draw_survival(paths["survival"], summaries, protocol)
        with log_drawing_errors(paths["page"]):
            page = render_page(records, scores, summaries, protocol, metadata)
            write_text(paths["page"], page)
    results = {
        "protocol": asdict(protocol),
        "datasets": {name: summary.as_json() for name, summary in summaries.items()},
        "metadata": dict(metadata),
    }
    write_text(paths["results"], json.dumps(results, indent=2) + "\n")
    return {name: path for name, path in paths.items() if path.is_file()}


def render_page(
    records: Sequence[ObjectRecord],
    scores: Mapping[str, Scores],
    summaries: Mapping[str, Summary],
    protocol: Protocol,
    metadata: Mapping[str, Any],
) -> str:
    """Return an HTML document with tables, figures, runs, objects and how all was measured."""
    # Area under the curve of each run, (objects, trials).
    areas = {name: area_under_curve(of_set.ious, of_set.first) for name, of_set in scores.items()}
    sections = {
        table.title: render(
            "table.html", table=table, chart=_chart(table.title, summaries, protocol)
        )
        for table in score_tables(summaries, protocol)
    }
    gallery = render_gallery(records, areas)
    if gallery:
        sections["Worst and best runs"] = gallery
    sections["Objects"] = render_objects(records, scores, areas, protocol)
    sections["How this was measured"] = render_options(protocol, metadata)
    stage = [metadata["stage"]] if "stage" in metadata else []  # of two results of a training
    return render(
        "report.html",
        title=", ".join(
            [model_name(metadata) or "Evaluation", *stage, f"protocol {protocol.name}"]
        ),
        lead=f"{protocol.description} On {', '.join(summaries)}.",
        sections=sections,
        cards=[_card(name, summary, protocol) for name, summary in summaries.items()],
        clicks_so_far=clicks_so_far(protocol),
    )


def listed_percent(protocol: Protocol) -> int | None:
    """Return the IoU in percent to which clicks are counted, None where none are to be counted."""
    if protocol.max_clicks == 0:
        return None
    known = percents_up_to(protocol.target_iou)
    return max((percent for percent in known if percent <= LISTED_PERCENT), default=None)


def render_objects(
    records: Sequence[ObjectRecord],
    scores: Mapping[str, Scores],
    areas: Mapping[str, Floats],
    protocol: Protocol,
) -> Markup:
    """Return an HTML table of objects, worst first, that a script may sort and search.

    The records are sorted by data set, object and trial; `areas` under each run's curve are of
    shape `(objects, trials)` by data set.
    """
    last = protocol.max_clicks
    clicks = sorted({protocol.first_result, last, *(k for k in LISTED_CLICKS if k < last)})
    header = ["data", "object", "AUC", *(f"IoU@{k}" for k in clicks)]
    percent = listed_percent(protocol)
    header += [] if percent is None else [f"NoC@{percent}"]
    header += ["clicks"] if last > 0 else []
    total = sum(len(of_set.photos) for of_set in scores.values())
    rows: list[dict[str, Any]] = []
    for name, of_set in scores.items():
        runs = [record for record in records if record.dataset == name]
        order = areas[name].mean(axis=1).argsort(kind="stable")
        if total > ALL_OBJECTS and len(order) > 2 * SOME_OBJECTS:
            order = np.concatenate([order[:SOME_OBJECTS], order[-SOME_OBJECTS:]])
        n_trials = areas[name].shape[1]
        digits = 0 if n_trials == 1 else 1
        for number in order.tolist():
            mine = runs[number * n_trials : (number + 1) * n_trials]
            ious = of_set.ious[number]  # (trials, K + 1)
            cells = [_cell(100 * areas[name][number].mean(), 1)]
            cells += [_cell(100 * ious[:, k].mean(), 1) for k in clicks]
            if percent is not None:
                reached = bool((ious.max(axis=1) >= percent / 100).all())
                needed = noc(ious[None], percent / 100).mean()
                cells.append(_cell(needed, digits, "" if reached else "> "))
            if last > 0:
                cells.append(_cell(float(np.mean([run.clicks for run in mine])), digits))
            rows.append({"dataset": name, "name": mine[0].name, "cells": cells})
    return render(
        "objects.html",
        rows=rows,
        total=total,
        some=SOME_OBJECTS,
        percent=percent,
        clicks=last > 0,
        ending=ending(protocol),
        header=header,
    )


def render_options(protocol: Protocol, metadata: Mapping[str, Any]) -> Markup:
    """Return HTML tables of the options of a protocol with their meaning, and of all metadata."""
    return render("options.html", options=list(_options(protocol)), facts=list(_leaves(metadata)))


def _cell(value: float, digits: int, prefix: str = "") -> dict[str, Any]:
    return {"value": float(value), "text": f"{prefix}{value:.{digits}f}"}


def _options(options: Any, prefix: str = "") -> Iterator[tuple[str, Any, str]]:  # noqa: ANN401
    """Yield name, value and documented meaning of the fields of a dataclass, and of those in it."""
    kind = type(options)
    documented = inspect.getdoc(kind) or ""
    if sys.flags.optimize > 1:  # `python -OO` leaves docstrings out
        (defined,) = ast.parse(inspect.getsource(kind)).body
        assert isinstance(defined, ast.ClassDef), "the source of a class"
        documented = ast.get_docstring(defined) or ""
    meanings = dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", documented, flags=re.MULTILINE))
    for field in dataclasses.fields(options):
        value, name = getattr(options, field.name), prefix + field.name
        meaning = " ".join(meanings.get(field.name, "").split())
        if dataclasses.is_dataclass(value):
            yield name, "", meaning
            yield from _options(value, f"{name}.")
        else:
            yield name, value, meaning


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted name and value of all that is not a mapping itself."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def model_name(metadata: Mapping[str, Any]) -> str | None:
    """Return the name of an evaluated model, the argument `name` of its description or its class.

    It is None if there is no model.
    """
    model = metadata.get("model")
    if isinstance(model, Mapping):
        arguments = model.get("init_args") or {}
        model = arguments.get("name") or str(model.get("class_path", "")).rpartition(".")[2]
    return str(model) if model else None


def _card(name: str, summary: Summary, protocol: Protocol) -> dict[str, Any]:
    """Return the most important numbers of a data set."""
    last = protocol.max_clicks
    shown = sorted({protocol.first_result, min(5, last), last})
    stats = {f"mIoU@{k}": f"{100 * summary.miou[k]:.1f}\u00a0%" for k in shown}
    percent = listed_percent(protocol)
    if percent is not None:
        stats[f"NoC@{percent}"] = f"{summary.noc[percent]:.2f}"
    k = shown[len(shown) // 2]
    return {
        "name": name,
        "stats": stats,
        "objects": summary.n_objects,
        "photos": summary.n_photos,
        "trials": summary.n_trials,
        "k": k,
        "miou": f"{100 * summary.miou[k]:.1f}\u00a0%",
        "interval": summary.interval(k),
        "percent": percent,
        "failures": None if percent is None else summary.failures_never[percent],
    }


def _chart(
    title: str, summaries: Mapping[str, Summary], protocol: Protocol
) -> dict[str, Any] | None:
    """Return the figure that belongs to a table, on light and on dark paper; None without one."""
    charts: dict[str, tuple[Callable[..., None], str]] = {
        "Mean IoU": (figures.draw_curve, "Curves of mean IoU over clicks"),
        "Number of clicks": (figures.draw_survival, "Share of runs below an IoU over clicks"),
    }
    if title not in charts:
        return None
    draw, words = charts[title]
    light, dark = io.BytesIO(), io.BytesIO()
    with log_drawing_errors(f"the figure of {title!r} on the page"):
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
