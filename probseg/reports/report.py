"""Files of an evaluation: first the numbers, then tables and figures.

`objects.csv` has one row per object, trial and number of clicks, and all scores follow from it;
`results.json` has the scores with all that is needed to repeat the evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from probseg.drawing import drawing
from probseg.evaluation.arrays import scores_of
from probseg.evaluation.journal import RESULTS
from probseg.evaluation.protocols import Protocol
from probseg.evaluation.records import ObjectRecord, unique, write_objects
from probseg.evaluation.summary import summaries_of
from probseg.paths import write_text
from probseg.reports.tables import markdown_table


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
        folder: Where to; made if need be. The `results.json` of an earlier evaluation goes first.
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
    from probseg.reports import figures, html  # matplotlib is slow and not needed for numbers

    records = unique(records)
    scores = scores_of(records, protocol)
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
    with paths["objects"].open("w", newline="", encoding="utf-8") as file:
        write_objects(file, records)
    paths["table"].write_text(markdown_table(summaries, protocol), encoding="utf-8")
    with drawing(paths["curve"]):
        figures.draw_curve(paths["curve"], summaries, protocol)
    if any(record.picture is not None for record in records):
        paths["overlays"] = folder / "overlays.png"
        with drawing(paths["overlays"]):
            figures.draw_overlays(paths["overlays"], records, protocol)
    if not brief:
        paths |= {"survival": folder / "survival.png", "page": folder / "report.html"}
        with drawing(paths["survival"]):
            figures.draw_survival(paths["survival"], summaries, protocol)
        with drawing(paths["page"]):
            page = html.render_page(records, scores, summaries, protocol, metadata)
            paths["page"].write_text(page, encoding="utf-8")
    results = {
        "protocol": asdict(protocol),
        "datasets": {name: summary.as_json() for name, summary in summaries.items()},
        "metadata": dict(metadata),
    }
    write_text(paths["results"], json.dumps(results, indent=2) + "\n")
    return {name: path for name, path in paths.items() if path.is_file()}
