"""Model cards in the format of the Hugging Face hub, and the table of models for a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from probseg.errors import UsageError
from probseg.paths import write_text
from probseg.release.evaluations import Evaluation, Figures
from probseg.zoo.index import WEIGHTS, Entry, class_figures, figure, in_words, is_clicks

BEGIN, END = "<!-- zoo: begin -->", "<!-- zoo: end -->"

# columns of models for clicks, all on GrabCut: IoUs after a box, clicks without one
FIGURES = {
    "mIoU@0": "GrabCut/gabbur2021/miou@0",
    "mIoU@5": "GrabCut/gabbur2021/miou@5",
    "NoC@85": "GrabCut/ritm/noc@85",
    "NoC@90": "GrabCut/ritm/noc@90",
}


def render_card(
    entry: Entry, evaluations: Sequence[Evaluation], untrained: Sequence[Evaluation] = ()
) -> str:
    """Write the card of a model in Markdown, after a front matter in YAML.

    The evaluations are in the order of the card; those of the untrained network are for comparison.
    """
    task = {"type": "image-segmentation", "name": f"{entry.task.capitalize()} segmentation"}
    results: list[dict[str, Any]] = [
        {
            "task": dict(task),
            "dataset": {
                "type": evaluation.dataset.lower(),
                "name": evaluation.dataset,
                "config": evaluation.key.removeprefix(evaluation.dataset).lstrip("/+") or "default",
            },
            "metrics": [
                {
                    "type": name.split("@")[0].replace("miou", "mean_iou"),
                    "name": label(name),
                    "value": round(figure.value, 4),
                }
                for name, figure in evaluation.figures.items()
            ],
        }
        for evaluation in evaluations
    ]
    front: dict[str, Any] = {
        "license": entry.license,
        "library_name": "probseg",
        "pipeline_tag": "image-segmentation",
        "tags": [f"{entry.task}-segmentation"],
    }
    if results:  # the table on the page of the hub
        front["model-index"] = [{"name": entry.name, "results": results}]
    previous = "; the previous mask is an input, too" if entry.input.get("previous_mask") else ""
    return _ENVIRONMENT.get_template("card.md.j2").render(
        front_matter=yaml.safe_dump(front, sort_keys=False, allow_unicode=True),
        entry=entry,
        previous_mask=previous,
        weights=entry.files[WEIGHTS],
        weights_file=WEIGHTS,
        evaluations=evaluations,
        untrained=untrained,
    )


def label(figure: str) -> str:
    """Return the title of a figure in tables: `mIoU@5`, `NoC@90`, `pixel accuracy`."""
    return figure.replace("miou", "mIoU").replace("noc", "NoC").replace("_", " ")


def render_table(entries: Iterable[Entry]) -> str:
    """Write models as a table in Markdown, with a column for the mean IoU of classes if one has it.

    The descriptions end before their remarks on training.
    """
    entries = list(entries)
    semantic = any(entry.task == "semantic" for entry in entries)
    header = ["model", "task", "parameters", "MB", *FIGURES]
    header += ["mIoU of classes"] if semantic else []
    lines = [f"| {' | '.join(header)} | what it is |", f"|:--|:--|{'--:|' * (len(header) - 2)}:--|"]
    for entry in entries:
        words = entry.description.partition(", trained ")[0].removesuffix(".").replace("|", "\\|")
        cells = [
            f"`{entry.name}`",
            entry.task,
            f"{entry.parameters / 1e6:.2f} M",
            f"{entry.nbytes / 1e6:.1f}",
            *(figure(entry, key) for key in FIGURES.values()),
            *([", ".join(class_figures(entry))] if semantic else []),
            words,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write_table(path: Path, table: str, *, check: bool = False) -> None:
    """Put a table between the marks of a page; with `check`, only refuse another one there."""
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(f"{BEGIN}\n")
    old, end, after = rest.partition(f"{END}\n")
    if not begin or not end or BEGIN in old + after or END in after:
        raise UsageError(f"{path}: expected one line {BEGIN} and below it one line {END}; add them")
    if old == f"\n{table}\n":
        return
    if check:
        raise UsageError(
            f"{path}: its table is not that of the zoo; run `probseg zoo table --into {path}`"
        )
    write_text(path, f"{before}{begin}\n{table}\n{end}{after}")


def _cells(names: Figures, evaluation: Evaluation) -> str:
    """Return the cells of a row of a card."""
    figures = evaluation.figures
    return " | ".join(in_words(name, figures[name]) if name in figures else "" for name in names)


def _extent(evaluation: Evaluation) -> str:
    count = evaluation.count
    if "photographs" in count:
        return f"{count['photographs']} photographs"
    trials = f" x {count['trials']} trials" if count["trials"] > 1 else ""
    return f"{count['objects']} objects{trials}"


def _largest_move(evaluation: Evaluation) -> str:
    """Return the largest effect of half precision on shares and on numbers of clicks."""
    parity = evaluation.parity or {}
    shares = [abs(move) for name, move in parity.items() if not is_clicks(name)]
    clicks = [abs(move) for name, move in parity.items() if is_clicks(name)]
    parts = [f"{100 * max(shares):.2f} points"] if shares else []
    return " or ".join(parts + ([f"{max(clicks):.3f} clicks"] if clicks else []))


_ENVIRONMENT = Environment(
    loader=PackageLoader("probseg.release"),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=StrictUndefined,
)
_ENVIRONMENT.filters |= {
    "cells": _cells,
    "extent": _extent,
    "label": label,
    "largest_move": _largest_move,
}
