"""Runs as pieces of a page: the picture, what was predicted after which click, and all clicks.

Pictures are embedded: the photograph as JPEG, once for each run, and every mask on top of it as PNG
of four colours. Boxes, clicks and curves are vectors.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import cv2
import numpy as np
from matplotlib.colors import to_rgb
from PIL import Image

from probseg.clicks.annotators import BoolMap
from probseg.evaluation.records import Frame, ObjectRecord, Picture, Step
from probseg.reports.figures import BOX, NEGATIVE, POSITIVE, PREDICTION, TRUTH
from probseg.reports.tables import count
from probseg.types import IGNORE, Click

LARGEST_SIDE = 512
"""Pictures are made smaller until no side is longer, in pixels."""

MANY_CLICKS = 8
"""More clicks than these are drawn smaller, so that they hide less."""

_TILE = (200, 260)  # usual width and height of a picture on the page, which marks are measured by
_OUTSIDE, _INSIDE, _EDGE, _IGNORED = range(4)
_ALPHAS = bytes((130, 95, 255, 150))  # of outside, inside, edge and ignored pixels
_GREY = (128, 128, 128)

KEY = (
    '<ul class="key" aria-label="Key">'
    + "".join(
        f'<li><svg viewBox="0 0 14 14" aria-hidden="true">{sign}</svg>{words}</li>'
        for sign, words in (
            (f'<path d="M1 2h12v10H1z" fill="none" stroke="{BOX}" stroke-width="2"/>', "box"),
            (f'<rect width="14" height="14" fill="{TRUTH}"/>', "truth"),
            ('<rect width="14" height="14" fill="#808080"/>', "ignored"),
            (f'<rect width="14" height="14" fill="{PREDICTION}"/>', "prediction, with its IoU"),
            (f'<circle cx="7" cy="7" r="7" fill="{POSITIVE}"/>', "click on the object"),
            (f'<rect width="14" height="14" fill="{NEGATIVE}"/>', "click on the background"),
        )
    )
    + "</ul>\n"
)
"""What the colours mean, as an HTML list."""


class _View(NamedTuple):
    """A picture on the page.

    Args:
        picture: What to draw.
        identifier: Unique on the page.
        width: Of the embedded photograph in pixels, the unit of all lengths.
        height: Likewise.
        scale: That size over the picture's own.
        mark: Length that looks the same in all pictures, about a pixel of the page.
    """

    picture: Picture
    identifier: str
    width: int
    height: int
    scale: float
    mark: float


def render_run(record: ObjectRecord, area: float, identifier: str) -> str:
    """Return a run as an HTML ``<article>``.

    Args:
        record: The run; without a picture it is drawn by its curve and its clicks alone.
        area: Area under its curve of IoU over clicks, in [0, 1].
        identifier: Unique on the page.
    """
    trial = f", trial {record.trial}" if record.trial else ""
    facts = f"AUC {100 * area:.1f} %, final IoU {record.steps[-1].iou:.3f}"
    return (
        f'<article class="run" aria-labelledby="{identifier}">\n'
        f'<header><h4 id="{identifier}">{escape(record.name)}</h4>'
        f"<p>{facts}, {count(record.clicks, 'click')}{trial}</p>{_sparkline(record.steps)}"
        f"</header>\n{_tiles(record, identifier)}"
        f"<details><summary>Every click</summary>{_click_table(record)}</details>\n"
        "</article>\n"
    )


def data_uri(content: bytes, kind: str) -> str:
    """Return a file of a media type as a ``data:`` address."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _tiles(record: ObjectRecord, identifier: str) -> str:
    """Draw image, truth, and the predictions of a run side by side."""
    picture = record.picture
    if picture is None:
        return ""
    height, width = picture.mask.shape
    scale = min(1.0, LARGEST_SIDE / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    mark = max(size[0] / _TILE[0], size[1] / _TILE[1])
    view = _View(picture, f"{identifier}-photo", *size, scale, mark)
    ignored = picture.mask == IGNORE
    words = "image and box" if picture.box else "image"
    tiles = [
        _tile(view, _photo(view) + _box(view), f"{record.name}: {words}", words),
        _tile(
            view, _mask(view, picture.mask == 1, ignored, TRUTH), f"{record.name}: truth", "truth"
        ),
    ]
    for frame in picture.frames:
        if frame.k or picture.box or frame.prediction.any():  # else the empty mask of no answer
            said = count(frame.k, "click")
            alternative = f"{record.name}: prediction after {said}, IoU {frame.iou:.3f}"
            caption = f"{said} <b>{frame.iou:.3f}</b>"
            tiles.append(_tile(view, _prediction(view, frame), alternative, caption))
    return f'<div class="tiles">{"".join(tiles)}</div>\n'


def _tile(view: _View, drawing: str, alternative: str, caption: str) -> str:
    return (
        f'<figure><svg viewBox="0 0 {view.width} {view.height}" role="img" '
        f'aria-label="{escape(alternative)}">{drawing}</svg>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _photo(view: _View) -> str:
    """Return the photograph itself; `_mask` refers to it."""
    file = io.BytesIO()
    Image.fromarray(view.picture.image).resize((view.width, view.height)).save(
        file, "JPEG", quality=84
    )
    return _image(view, data_uri(file.getvalue(), "image/jpeg"), f'id="{view.identifier}" ')


def _box(view: _View) -> str:
    if view.picture.box is None:
        return ""
    x0, y0, x1, y1 = (view.scale * edge for edge in view.picture.box)
    return (
        f'<rect x="{x0:.1f}" y="{y0:.1f}" width="{x1 - x0:.1f}" height="{y1 - y0:.1f}" '
        f'fill="none" stroke="{BOX}" stroke-width="{2.5 * view.mark:.2f}"/>'
    )


def _prediction(view: _View, frame: Frame) -> str:
    """Return a prediction with the clicks that led to it, numbered."""
    drawing = _mask(view, frame.prediction, np.zeros_like(frame.prediction), PREDICTION)
    mark = view.mark if frame.k <= MANY_CLICKS else 0.75 * view.mark
    clicks = enumerate(view.picture.clicks[: frame.k], start=1)
    return drawing + "".join(_click(view, number, click, mark) for number, click in clicks)


def _click(view: _View, number: int, click: Click, mark: float) -> str:
    """Return a numbered disk on the object, or a square on the background."""
    x, y = view.scale * (click.x + 0.5), view.scale * (click.y + 0.5)  # whole numbers are centres
    side = 15 * mark if click.positive else 13.5 * mark
    corner = side / 2 if click.positive else 0
    colour = POSITIVE if click.positive else NEGATIVE
    return (
        f'<rect x="{x - side / 2:.1f}" y="{y - side / 2:.1f}" width="{side:.1f}" '
        f'height="{side:.1f}" rx="{corner:.1f}" fill="{colour}" stroke="#fff" '
        f'stroke-width="{mark:.2f}"/>'
        f'<text x="{x:.1f}" y="{y:.1f}" dy=".35em" font-size="{9.5 * mark:.1f}">'
        f"{number}</text>"
    )


def _mask(view: _View, inside: BoolMap, ignored: BoolMap, colour: str) -> str:
    """Return the photograph with a mask in colour, what lies outside it darker."""
    inside, ignored = _small(view, inside), _small(view, ignored)
    inner = cv2.erode(inside.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
    classes = np.where(inner, _INSIDE, np.where(inside, _EDGE, _OUTSIDE)).astype(np.uint8)
    classes[ignored] = _IGNORED
    image = Image.fromarray(classes).convert("P")
    tint = [round(255 * part) for part in to_rgb(colour)]
    image.putpalette([0, 0, 0, *tint, *tint, *_GREY])
    file = io.BytesIO()
    image.save(file, "PNG", transparency=_ALPHAS, bits=2, optimize=True)
    return f'<use href="#{view.identifier}"/>' + _image(
        view, data_uri(file.getvalue(), "image/png")
    )


def _small(view: _View, mask: BoolMap) -> BoolMap:
    size = view.width, view.height
    small: BoolMap = cv2.resize(mask.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST) > 0
    return small


def _image(view: _View, address: str, attributes: str = "") -> str:
    return f'<image {attributes}width="{view.width}" height="{view.height}" href="{address}"/>'


def _sparkline(steps: Sequence[Step]) -> str:
    """Return the curve of IoU over clicks from 0 to 1 as a small drawing."""
    last = max(1, len(steps) - 1)
    points = " ".join(f"{100 * step.k / last:.1f},{2 + 28 * (1 - step.iou):.1f}" for step in steps)
    return (
        '<svg class="sparkline" viewBox="-2 0 104 32" role="img" '
        f'aria-label="IoU over {count(len(steps) - 1, "click")}">'
        f'<path d="M0 2H100M0 30H100"/><polyline points="{points}"/></svg>'
    )


def _click_table(record: ObjectRecord) -> str:
    """Return all steps of a run that have a click or an answer."""
    names = ("k", "x", "y", "sign", "IoU", "seconds")
    header = "".join(f'<th scope="col">{name}</th>' for name in names)
    rows = []
    for step in record.steps:
        if step.x is None and step.seconds is None:
            continue
        sign = "" if step.positive is None else "+" if step.positive else "&minus;"
        place = ["" if value is None else f"{value}" for value in (step.x, step.y)]
        seconds = "" if step.seconds is None else f"{step.seconds:.3f}"
        cells = [*place, sign, f"{step.iou:.4f}", seconds]
        columns = "".join(f"<td>{cell}</td>" for cell in cells)
        rows.append(f'<tr><th scope="row">{step.k}</th>{columns}</tr>')
    return (
        f'<div class="scroll"><table class="clicks"><caption>Clicks on {escape(record.name)}'
        f"</caption><thead><tr>{header}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
