"""What clients read: photographs and objects as JSON, masks and maps in binary frames."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from pycocotools import mask as coco_mask

from probseg.annotate.photographs import CHANGED, Photograph
from probseg.annotate.store import Listed, Overview, StoredObject, StoredPhotograph
from probseg.formats.regions import Mask, Region, as_region

Window = tuple[int, int, int, int]
"""Part of an image as `(x, y, width, height)` in pixels."""


def bounding_window(mask: Mask | Region) -> Window | None:
    """Return the smallest window around the pixels of a mask `(H, W)`; None if it is empty."""
    region = as_region(mask)
    height, width = region.inside.shape
    return (region.x, region.y, width, height) if height else None


def pack(header: Mapping[str, Any], maps: npt.NDArray[Any] | Region | None) -> bytes:
    """Encode a frame of a mask, bool, or a map, uint8, of shape `(H, W)`; None for no payload.

    Layout: the length of the JSON as uint32, little-endian; the JSON in UTF-8 with the keys
    `kind` (`"bits"`, `"bytes"` or `"none"`) and `window` added; the payload. A mask is
    cut to its bounding window and stored row by row with one bit a pixel, the most significant bit
    of each byte first. Frames may follow one another.
    """
    window: Window | None = None
    kind, payload = "none", b""
    if isinstance(maps, Region) or (maps is not None and maps.dtype == np.bool_):
        region = as_region(maps)
        kind, window = "bits", bounding_window(region)
        payload = np.packbits(region.inside).tobytes()
    elif maps is not None:
        kind, window = "bytes", (0, 0, maps.shape[1], maps.shape[0])
        payload = maps.tobytes()
    text = json.dumps({**header, "kind": kind, "window": window}).encode()
    return struct.pack("<I", len(text)) + text + payload


def unpack(
    frame: bytes, size: tuple[int, int]
) -> tuple[dict[str, Any], npt.NDArray[np.bool_] | npt.NDArray[np.uint8] | None]:
    """Decode header, and mask (bool) or map (uint8), of a frame for an image of `(H, W)`."""
    (length,) = struct.unpack_from("<I", frame)
    header: dict[str, Any] = json.loads(frame[4 : 4 + length])
    payload = np.frombuffer(frame, np.uint8, offset=4 + length)
    if header["kind"] == "none":
        return header, None
    if header["kind"] == "bytes":
        return header, payload.reshape(size)
    whole = np.zeros(size, np.bool_)
    if header["window"] is not None:
        x, y, width, height = header["window"]
        bits = np.unpackbits(payload, count=width * height).astype(np.bool_)
        whole[y : y + height, x : x + width] = bits.reshape(height, width)
    return header, whole


def describe_photograph(
    photograph: Photograph,
    stored: StoredPhotograph,
    current: StoredObject | None,
    finished: Sequence[Listed],
) -> dict[str, Any]:
    """Describe all that a page shows of a photograph."""
    height, width = photograph.size or (None, None)
    return {
        "id": photograph.id,
        "name": photograph.name,
        "width": width,
        "height": height,
        "state": stored.state,
        "comment": stored.comment,
        "error": photograph.error,
        "changed": photograph.changed,
        "keepable": photograph.error == CHANGED,  # its objects, on the new pixels
        "revision": stored.revision,
        "stamp": photograph.stamp[1] // 1000,
        **describe_open(stored, current),
        "objects": describe_finished(finished, photograph),
    }


def describe_open(stored: StoredPhotograph, current: StoredObject | None) -> dict[str, Any]:
    """Describe the open object of a photograph, or that there is none."""
    moves = {"undo": stored.undo, "redo": stored.redo}
    if current is None:
        return {**moves, "current": None}
    boxes = [step["box"] for step in current.steps if step["type"] == "box"]
    clicks = [
        {"x": step["x"], "y": step["y"], "positive": step["positive"]}
        for step in current.steps
        if step["type"] == "click"
    ]
    described = {
        "object": current.id,
        "clicks": clicks,
        "box": boxes[-1] if boxes else None,
        "label": current.label,
        "fresh": current.mask is None and current.base is None,
    }
    return {**moves, "current": described}


def describe_finished(objects: Sequence[Listed], photograph: Photograph) -> list[dict[str, Any]]:
    """Describe the finished objects of a photograph."""

    def window(stored: Listed) -> list[int]:
        if photograph.size is None:  # pycocotools ends the process for a height of 0
            return [0, 0, 0, 0]
        box = coco_mask.toBbox({"size": list(photograph.size), "counts": stored.counts})
        return [int(value) for value in box]

    return [
        {
            "id": stored.id,
            "label": stored.label,
            "area": stored.area,
            "window": window(stored),
            "clicks": stored.clicks,
            "seconds": round(stored.seconds, 1),
            "quality": stored.quality,
        }
        for stored in objects
    ]


def describe_overview(photograph: Photograph, stored: Overview | None) -> dict[str, Any]:
    """Describe a photograph in the list of all."""
    state, labels, quality, comment, revision = stored or Overview("open", {}, None, None, 0)
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
        "comment": comment,
        "revision": revision,
        "error": photograph.error,
        "changed": photograph.changed,
        "keepable": photograph.error == CHANGED,  # its objects, on the new pixels
        "stamp": photograph.stamp[1] // 1000,
    }
