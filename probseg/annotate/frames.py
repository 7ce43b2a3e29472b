"""The binary answer of the annotation server: a JSON header, then a mask or a map of bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from probseg.clicks.boxes import mask_box

Window = tuple[int, int, int, int]
"""Part of an image as `(x, y, width, height)` in pixels."""


def bounding_window(mask: npt.NDArray[np.bool_]) -> Window | None:
    """Return the smallest window around the pixels of a mask `(H, W)`; None if it is empty."""
    if not mask.any():
        return None
    x0, y0, x1, y1 = mask_box(mask)
    return x0, y0, x1 - x0, y1 - y0


def crop(maps: npt.NDArray[Any], window: Window) -> npt.NDArray[Any]:
    """Cut a window out of a map `(H, W)`."""
    x, y, width, height = window
    return maps[y : y + height, x : x + width]


def pack(header: Mapping[str, Any], maps: npt.NDArray[Any] | None) -> bytes:
    """Encode a frame.

    Layout: the length of the JSON as uint32, little-endian; the JSON in UTF-8 with the keys
    `kind` (`"bits"`, `"bytes"` or `"none"`) and `window` added; the payload. A mask is
    cut to its bounding window and stored row by row with one bit a pixel, the most significant bit
    of each byte first.

    Args:
        header: What else the JSON says.
        maps: A mask, bool, or a map, uint8, of shape `(H, W)`; None for no payload.
    """
    window: Window | None = None
    kind, payload = "none", b""
    if maps is not None and maps.dtype == np.bool_:
        kind, window = "bits", bounding_window(maps)
        if window is not None:
            payload = np.packbits(crop(maps, window)).tobytes()
    elif maps is not None:
        kind, window = "bytes", (0, 0, maps.shape[1], maps.shape[0])
        payload = maps.tobytes()
    text = json.dumps({**header, "kind": kind, "window": window}).encode()
    return struct.pack("<I", len(text)) + text + payload


def unpack(
    frame: bytes, size: tuple[int, int]
) -> tuple[dict[str, Any], npt.NDArray[np.bool_] | npt.NDArray[np.uint8] | None]:
    """Decode a frame for an image of `(H, W)`.

    Returns:
        The header, and the mask (bool) or map (uint8) of shape `(H, W)`; None without a payload.
    """
    (length,) = struct.unpack_from("<I", frame)
    header: dict[str, Any] = json.loads(frame[4 : 4 + length])
    payload = np.frombuffer(frame, np.uint8, offset=4 + length)
    if header["kind"] == "none":
        return header, None
    if header["kind"] == "bytes":
        return header, payload.reshape(size)
    whole = np.zeros(size, np.bool_)
    if header["window"] is not None:
        _, _, width, height = header["window"]
        bits = np.unpackbits(payload, count=width * height).astype(np.bool_)
        crop(whole, header["window"])[:] = bits.reshape(height, width)
    return header, whole
