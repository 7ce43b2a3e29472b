"""The moving picture of the README: clicks and answers, about a second each.

`python docs/pictures/moving_clicks.py [MODEL]` writes `docs/images/clicks.webp`. A simulated
annotator clicks on objects of a photograph that comes with scikit-image, as in `clicks.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import cv2
import numpy as np
from clicks import interaction
from PIL import Image, ImageDraw, ImageFont
from style import IMAGES

import probseg
from probseg.clicks.annotators import BoolMap
from probseg.data import SamplePhotos
from probseg.descriptions import RECOMMENDED
from probseg.formats.colours import CLICK_COLOURS
from probseg.metrics import iou
from probseg.types import Click, Sample

OBJECTS = {"astronaut/woman": 3, "astronaut/helmet": 2, "astronaut/shuttle": 3}
"""Number of clicks on each object of the photograph."""

TINTS = ((43, 140, 255), (230, 161, 0), (204, 121, 167))
SIDE = 560
SHARPER = 2
"""Frames are drawn this many times as large, and reduced."""

BEGIN, CLICK, END = 1000, 1100, 2500
"""Milliseconds of the photograph alone, of a click, and of the last one."""


def main(model: str = RECOMMENDED) -> None:
    predictor = probseg.Predictor.from_pretrained(model)
    photos = SamplePhotos()
    samples = {sample.name: sample for sample in (photos[i] for i in range(len(photos)))}
    finished: list[BoolMap] = []
    frames, times = [_frame(samples[next(iter(OBJECTS))], [], ())], [BEGIN]
    for name, count in OBJECTS.items():
        for answer, clicks in interaction(predictor, samples[name], count):
            frames.append(_frame(samples[name], [*finished, answer], clicks))
            times.append(CLICK)
        finished.append(answer)
    path = IMAGES.parent / "clicks.webp"
    times[-1] = END
    options = {"save_all": True, "loop": 0, "quality": 80, "method": 6}
    frames[0].save(path, append_images=frames[1:], duration=times, **options)
    print(f"wrote {path.name}, {len(frames)} frames, {path.stat().st_size // 1000} kB")


def _frame(sample: Sample, masks: Sequence[BoolMap], clicks: Sequence[Click]) -> Image.Image:
    """Draw masks over the photograph, and for the last one the clicks and its quality."""
    side = SHARPER * SIDE
    photo = cv2.resize(sample.image, (side, side), interpolation=cv2.INTER_CUBIC)
    shown = (0.65 * photo).astype(np.uint8) if masks else photo
    for mask, tint in zip(masks, TINTS, strict=False):
        inside = cv2.resize(mask.astype(np.float32), (side, side)) > 0.5
        shown[inside] = 0.6 * photo[inside] + 0.4 * np.array(tint)
        outline, _ = cv2.findContours(inside.astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(shown, outline, -1, (255, 255, 255), SHARPER, cv2.LINE_AA)
    picture = Image.fromarray(shown)
    draw = ImageDraw.Draw(picture)
    for click in clicks:
        _mark(draw, click, side / len(sample.image))
    if clicks:
        quality = f"{iou(masks[-1], sample.mask):.0%}"
        text = f"{len(clicks)} click{'s' * (len(clicks) > 1)}: IoU {quality}"
        font = ImageFont.load_default(18 * SHARPER)
        margin = 10 * SHARPER
        area = [margin, margin, 3 * margin + font.getlength(text), 4.2 * margin]
        draw.rounded_rectangle(area, radius=6 * SHARPER, fill=(20, 23, 28))
        draw.text((2 * margin, 1.4 * margin), text, (255, 255, 255), font)
    return picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def _mark(draw: ImageDraw.ImageDraw, click: Click, scale: float) -> None:
    """Draw a disk with a plus on the object, or a square with a minus on the background."""
    x, y = (click.x + 0.5) * scale, (click.y + 0.5) * scale
    reach, arm, line = 11 * SHARPER, 5 * SHARPER, 2 * SHARPER
    area = [x - reach, y - reach, x + reach, y + reach]
    style = {"fill": CLICK_COLOURS[click.positive], "outline": "white", "width": line}
    if click.positive:
        draw.ellipse(area, **style)
        draw.line([x, y - arm, x, y + arm], "white", line)
    else:
        draw.rounded_rectangle(area, radius=2 * SHARPER, **style)
    draw.line([x - arm, y, x + arm, y], "white", line)


if __name__ == "__main__":
    main(*sys.argv[1:])
