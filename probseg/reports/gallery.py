"""Runs as pieces of a page: the photograph, the predictions after some clicks, and all clicks.

Pictures are embedded: the photograph as JPEG, once for each run, and every mask on top of it as PNG
of four colours. Boxes, clicks and curves are vectors.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.colors import to_rgb
from PIL import Image

from probseg.clicks.annotators import BoolMap
from probseg.errors import log_drawing_errors
from probseg.evaluation.records import ObjectRecord, Picture
from probseg.formats.colours import CLICK_COLOURS
from probseg.reports.figures import BOX, PREDICTION, TRUTH
from probseg.reports.tables import render
from probseg.texts import count
from probseg.types import IGNORE

Floats = npt.NDArray[np.float64]

LARGEST_SIDE = 512  # pictures are made smaller until no side is longer, in pixels
MANY_CLICKS = 8  # more clicks than these are drawn smaller, so that they hide less

_TILE = (200, 260)  # usual width and height of a picture on the page, which marks are measured by
_OUTSIDE, _INSIDE, _EDGE, _IGNORED = range(4)
_ALPHAS = bytes((130, 95, 255, 150))  # of outside, inside, edge and ignored pixels
_GREY = (128, 128, 128)
_COLOURS = {
    "box": BOX,
    "truth": TRUTH,
    "prediction": PREDICTION,
    "positive": CLICK_COLOURS[True],
    "negative": CLICK_COLOURS[False],
}

PICTURED = 4  # number of the worst and of the best runs of each data set that are drawn


class _Mark(NamedTuple):
    """A numbered click on a picture; all lengths are in its pixels."""

    x: float
    y: float
    side: float
    corner: float
    colour: str
    mark: float


class _Tile(NamedTuple):
    """One of the pictures of a run, the photograph itself or with a mask on it."""

    caption: str
    alternative: str  # for those who do not see it
    iou: float | None = None
    mask: str | None = None  # `data:` address; None for the photograph
    boxes: Sequence[tuple[float, ...]] = ()
    clicks: Sequence[_Mark] = ()


class _Scaled(NamedTuple):
    """A picture on the page, in pixels of the embedded photograph."""

    picture: Picture
    width: int
    height: int
    scale: float  # that size over the picture's own
    mark: float  # length that looks the same in all pictures, about a pixel of the page


def render_gallery(records: Sequence[ObjectRecord], areas: Mapping[str, Floats]) -> Markup:
    """Return the worst and best runs that have a picture by data set; nothing without pictures.

    The records are sorted by data set, object and trial; `areas` under each run's curve are of
    shape `(objects, trials)` by data set.
    """
    groups: list[dict[str, Any]] = []
    for name, of_set in areas.items():
        runs = [record for record in records if record.dataset == name]
        ranked = sorted(
            (area, number)
            for number, (run, area) in enumerate(zip(runs, of_set.flat, strict=True))
            if run.picture is not None
        )
        best = ranked[PICTURED:][-PICTURED:][::-1]
        for rank, chosen in (("worst", ranked[:PICTURED]), ("best", best)):
            drawn = []
            for place, (area, number) in enumerate(chosen):
                with log_drawing_errors(f"{name} / {runs[number].name} on the page"):
                    identifier = f"{rank}-{len(groups)}-{place}"
                    drawn.append(render_run(runs[number], float(area), identifier))
            if drawn:
                groups.append({"title": f"{name}, {rank}", "runs": drawn})
    return render("gallery.html", groups=groups, colours=_COLOURS) if groups else Markup()


def render_run(record: ObjectRecord, area: float, identifier: str) -> Markup:
    """Return a run as an HTML `<article>`; without a picture its curve and its clicks alone."""
    last = max(1, len(record.steps) - 1)
    curve = " ".join(
        f"{100 * step.k / last:.1f},{2 + 28 * (1 - step.iou):.1f}" for step in record.steps
    )
    drawn: dict[str, Any] = {"tiles": [], "width": 0, "height": 0, "mark": 0.0, "photo": ""}
    if record.picture is not None:
        height, width = record.picture.mask.shape
        scale = min(1.0, LARGEST_SIDE / max(height, width))
        size = max(1, round(width * scale)), max(1, round(height * scale))
        mark = max(size[0] / _TILE[0], size[1] / _TILE[1])
        scaled = _Scaled(record.picture, *size, scale, mark)
        file = io.BytesIO()
        Image.fromarray(record.picture.image).resize(size).save(file, "JPEG", quality=84)
        drawn = {
            "tiles": _tiles(record.name, scaled),
            "width": scaled.width,
            "height": scaled.height,
            "mark": scaled.mark,
            "photo": data_uri(file.getvalue(), "image/jpeg"),
        }
    return render(
        "run.html",
        record=record,
        area=area,
        identifier=identifier,
        curve=curve,
        colours=_COLOURS,
        **drawn,
    )


def data_uri(content: bytes, kind: str) -> str:
    """Return a file of a media type as a `data:` address."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _tiles(name: str, scaled: _Scaled) -> list[_Tile]:
    """Return image, truth, and the predictions of a run."""
    picture = scaled.picture
    ignored = picture.mask == IGNORE
    words = "image and box" if picture.box else "image"
    box = tuple(scaled.scale * edge for edge in picture.box or ())
    truth = _mask(scaled, picture.mask == 1, ignored, TRUTH)
    tiles = [
        _Tile(words, f"{name}: {words}", boxes=[box] if box else []),
        _Tile("truth", f"{name}: truth", mask=truth),
    ]
    for frame in picture.frames:
        if frame.k or picture.box or frame.prediction.any():  # else the empty mask of no answer
            caption = count(frame.k, "click")
            alternative = f"{name}: prediction after {caption}, IoU {frame.iou:.3f}"
            mask = _mask(scaled, frame.prediction, np.zeros_like(frame.prediction), PREDICTION)
            mark = scaled.mark if frame.k <= MANY_CLICKS else 0.75 * scaled.mark
            clicks = []
            for click in picture.clicks[: frame.k]:  # a disk on the object, else a square
                x, y = (scaled.scale * (place + 0.5) for place in (click.x, click.y))
                side = 15 * mark if click.positive else 13.5 * mark
                corner = side / 2 if click.positive else 0.0
                clicks.append(_Mark(x, y, side, corner, CLICK_COLOURS[click.positive], mark))
            tiles.append(_Tile(caption, alternative, frame.iou, mask, clicks=clicks))
    return tiles


def _mask(scaled: _Scaled, inside: BoolMap, ignored: BoolMap, colour: str) -> str:
    """Return the address of a mask in colour; the photograph outside of it looks darker."""
    inside, ignored = _small(scaled, inside), _small(scaled, ignored)
    inner = cv2.erode(inside.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
    classes = np.where(inner, _INSIDE, np.where(inside, _EDGE, _OUTSIDE)).astype(np.uint8)
    classes[ignored] = _IGNORED
    image = Image.fromarray(classes).convert("P")
    tint = [round(255 * part) for part in to_rgb(colour)]
    image.putpalette([0, 0, 0, *tint, *tint, *_GREY])
    file = io.BytesIO()
    image.save(file, "PNG", transparency=_ALPHAS, bits=2, optimize=True)
    return data_uri(file.getvalue(), "image/png")


def _small(scaled: _Scaled, mask: BoolMap) -> BoolMap:
    size = scaled.width, scaled.height
    small: BoolMap = cv2.resize(mask.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST) > 0
    return small
