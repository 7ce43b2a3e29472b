"""Masks as PNG: binary (0 and 255), or index PNG (a number per pixel, with a palette)."""

from __future__ import annotations

import io
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from probseg.errors import DataError
from probseg.formats.colours import distinct_colours
from probseg.images import opened
from probseg.paths import replacing
from probseg.types import IGNORE

Labels = npt.NDArray[np.uint8]


def encode(labels: Labels) -> bytes:
    """Encode labels, uint8, shape `(H, W)`, as a mask file: black and white with a white object.

    With ignored pixels it is a palette PNG of the labels, so that no reader takes 255 for the
    object.
    """
    if (labels == IGNORE).any():
        return _packed(_coloured(labels))
    # OpenCV takes a quarter of the time of Pillow, which tries five filters on each row.
    return bytes(cv2.imencode(".png", labels * 255)[1])


def decode(content: bytes) -> Labels:
    """Decode a file written by `encode`: uint8, shape `(H, W)`, with 0, 1 and 255."""
    with opened(io.BytesIO(content), "the file") as picture:
        if picture.format != "PNG" or picture.mode not in ("L", "P"):
            got = f"{picture.format} of mode {picture.mode}"
            raise DataError(f"the file: expected a PNG of mode L or P, got {got}; save it as such")
        values = np.array(picture)
        return values if picture.mode == "P" else values // 255


def write_binary(path: Path, mask: npt.NDArray[np.bool_]) -> None:
    """Write a mask, bool of shape `(H, W)`, as a PNG with 0 and 255; the file appears whole."""
    _write(path, encode(mask.astype(np.uint8)))


def write_index(path: Path, labels: Labels, colours: Labels | None = None) -> None:
    """Write numbers, uint8, shape `(H, W)`, as a palette PNG; the file appears whole.

    `colours` are RGB from number 0 on, uint8, shape `(C, 3)`; by default 0 is black and neighbours
    have different hues.

    The palette is for viewers; programs read the numbers.
    """
    _write(path, _packed(_coloured(labels, colours)))


def _coloured(labels: Labels, colours: Labels | None = None) -> Image.Image:
    if colours is None:
        colours = distinct_colours(256)
        colours[0] = 0
    picture = Image.fromarray(labels)
    picture.putpalette(colours.ravel().tolist())
    return picture


def _packed(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as unfinished:
        unfinished.write_bytes(content)
