"""JSON files in the format of COCO, with masks as run lengths or as polygons."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pycocotools import mask as coco_mask

import probseg
from probseg.paths import write_text

Entry = dict[str, Any]


def measures(rle: Mapping[str, Any]) -> Entry:
    """Return the keys of an annotation that follow from its mask.

    Args:
        rle: Compressed run lengths; see `probseg.formats.run_lengths.encode`.

    Returns:
        `area` in pixels, `bbox` as `[x, y, width, height]`, and `iscrowd` 0.
    """
    area, bbox = int(coco_mask.area(rle)), coco_mask.toBbox(rle).tolist()
    return {"area": area, "bbox": bbox, "iscrowd": 0}


def write(
    path: Path,
    images: Sequence[Entry],
    annotations: Sequence[Entry],
    categories: Sequence[Entry],
) -> None:
    """Write the file; it appears whole.

    Args:
        path: The file to be.
        images: With `id`, `file_name`, `height` and `width`.
        annotations: With `id`, `image_id`, `category_id`, `segmentation` and the keys of
            `measures`; others are written too.
        categories: With `id` and `name`.
    """
    content = {
        "info": {"description": f"annotated with probseg {probseg.__version__}"},
        "images": images,
        "categories": categories,
        "annotations": annotations,
    }
    write_text(path, json.dumps(content))


def numbered(names: Mapping[str, int]) -> list[Entry]:
    """Return the entries of `categories` for numbers by names."""
    return [{"id": number, "name": name} for name, number in names.items()]
