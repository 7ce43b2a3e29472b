"""What clients read of photographs and objects, as JSON."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probseg.annotate import output
from probseg.annotate.photographs import Photograph
from probseg.annotate.store import Overview, StoredObject, StoredPhotograph

MANY_OBJECTS = 40
"""With fewer objects, trainings take small batches, so that an epoch has several steps."""


def describe_photograph(
    photograph: Photograph, stored: StoredPhotograph, objects: Sequence[StoredObject]
) -> dict[str, Any]:
    """Describe all that a page shows of a photograph.

    Args:
        photograph: The file.
        stored: Its state and revision.
        objects: All of its objects.
    """
    height, width = photograph.size or (None, None)
    return {
        "id": photograph.id,
        "name": photograph.name,
        "width": width,
        "height": height,
        "state": stored.state,
        "error": photograph.error,
        "revision": stored.revision,
        **describe_open(stored, next((one for one in objects if one.open), None)),
        "objects": describe_finished(objects, photograph),
    }


def describe_open(stored: StoredPhotograph, one: StoredObject | None) -> dict[str, Any]:
    """Describe the open object of a photograph, None where there is none."""
    moves = {"undo": stored.undo, "redo": stored.redo}
    if one is None:
        return {**moves, "current": None}
    boxes = [step["box"] for step in one.steps if step["type"] == "box"]
    clicks = [
        {"x": step["x"], "y": step["y"], "positive": step["positive"]}
        for step in one.steps
        if step["type"] == "click"
    ]
    current = {
        "object": one.id,
        "clicks": clicks,
        "box": boxes[-1] if boxes else None,
        "label": one.label,
    }
    return {**moves, "current": current}


def describe_finished(
    objects: Sequence[StoredObject], photograph: Photograph
) -> list[dict[str, Any]]:
    """Describe the finished ones among the objects of a photograph."""
    return [
        {
            "id": one.id,
            "label": one.label,
            "area": one.area,
            "window": output.window(one, photograph.size),
            "clicks": sum(step["type"] == "click" for step in one.steps),
            "seconds": round(one.seconds, 1),
            "quality": one.quality,
        }
        for one in objects
        if not one.open
    ]


def describe_overview(
    photograph: Photograph, stored: Overview | None, files: int
) -> dict[str, Any]:
    """Describe a photograph in the list of all.

    Args:
        photograph: The file.
        stored: What is stored of it; None if it was never opened.
        files: Number of its mask files, the objects of photographs that were never opened.
    """
    state, labels, quality = stored or Overview("open", {"": files} if files else {}, None)
    height, width = photograph.size or (None, None)
    return {
        "id": photograph.id,
        "name": photograph.name,
        "width": width,
        "height": height,
        "state": state,
        "objects": sum(labels.values()),
        "labels": labels,
        "quality": quality,
        "error": photograph.error,
    }


def train_command(folder: Path, out: Path, objects: int) -> str:
    """Return the command that fine-tunes the recommended model on the objects of a folder.

    It is empty where photographs and masks are in different folders.
    """
    if out.resolve() != folder.resolve():
        return ""
    root = shlex.quote(str(folder.resolve()))
    command = f"probseg fit --config configs/experiment/folder.yaml --data.root {root}"
    return command if objects >= MANY_OBJECTS else f"{command} --data.batch_size 4"


def answer_header(request: Mapping[str, Any], began: float) -> dict[str, Any]:
    """Return the number of a request and the time since it `began`, for the answer's header."""
    return {
        "sequence": request.get("sequence", 0),
        "milliseconds": round(1000 * (time.perf_counter() - began), 1),
    }
