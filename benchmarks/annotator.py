"""Photographs an hour of a scripted annotator on the annotation page, in a real browser.

`python benchmarks/annotator.py` takes frames of CamVid's test part (`$PROBSEG_DATA/camvid`) with
three parts of cars, pedestrians, bicyclists or signs of at least 400 pixels, serves them to a
headless chromium, and clicks on the middle of the largest error until each object has an IoU of
`--enough`, at most `--clicks` times. A click or a key counts as one second; the time that the model
takes is not counted. A row of `benchmarks/results/annotator.csv` each:

- `by clicks`: each object from its first click, `Enter` after it, `D` after the last one,
- `Enter and D`: the same, had `D` not finished the last object,
- `numbers`: the key of the label finishes the object (`--numbers`),
- `in a row`: frames that follow one another, about a second apart (`--in-a-row`),
- `copies`: of these, `V` copies the objects of the last frame, and where a copy has an IoU below
  0.4 with all that is left, `Escape` leaves it (`--in-a-row --copy`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from annotate import CHROMIUM, served
from measure import RESULTS, append_row, provenance
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from probseg.annotate.frames import unpack
from probseg.clicks.annotators import largest_error_click
from probseg.metrics.masks import iou
from probseg.semantic.camvid import CamVid
from probseg.types import Click

THINGS = ("car", "pedestrian", "bicyclist", "sign")
OBJECTS, SMALLEST, WORTH_A_COPY = 3, 400, 0.4

Mask = npt.NDArray[np.bool_]


class Frame(NamedTuple):
    """A photograph and its objects, the largest first, each with its class."""

    image: npt.NDArray[np.uint8]
    objects: list[tuple[str, Mask]]


class Annotator:
    """Somebody at the page, whose clicks and keys are counted.

    Args:
        page: The page in a browser.
        address: Of the page.
    """

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.root, self.token = address.split("/#")
        self.clicks = self.keys = 0
        self.label: str | None = None
        self.numbers = False  # whether the keys of labels finish objects
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        page.evaluate("probsegPage.clicker.setPreview(false)")  # nobody looks at it

    def press(self, key: str) -> None:
        """Press a key and wait for what it does."""
        self.keys += 1
        self.page.keyboard.press(key)
        self._settle()

    def click(self, click: Click) -> None:
        """Click on a pixel of the photograph."""
        self.clicks += 1
        view = self.page.evaluate("probsegPage.clicker.view")
        stage = self.page.locator(".clicker-over").bounding_box()
        assert stage is not None
        x = stage["x"] + view["x"] + (click.x + 0.5) * view["scale"]
        y = stage["y"] + view["y"] + (click.y + 0.5) * view["scale"]
        self.page.mouse.click(x, y, button="left" if click.positive else "right")
        self._settle()

    def mask(self, size: tuple[int, int]) -> Mask:
        """Return the mask of the open object."""
        name = self.page.evaluate("probsegPage.photo.id")
        headers = {"X-Probseg-Token": self.token}
        request = urllib.request.Request(f"{self.root}/api/photos/{name}/mask", headers=headers)
        with urllib.request.urlopen(request) as answer:
            _, mask = unpack(answer.read(), size)
        return np.zeros(size, np.bool_) if mask is None else mask.astype(np.bool_)

    def choose(self, label: str) -> None:
        """Choose a label if it is not the chosen one."""
        if self.label != label:
            self.press(str(THINGS.index(label) + 1))
        self.label = label

    def finish(self, label: str, last: bool) -> None:
        """Finish the open object with a label, and the photograph with its last object."""
        if not self.numbers or (last and self.label == label):
            self.choose(label)
            self.press("d" if last else "Enter")
            return
        self.press(str(THINGS.index(label) + 1))
        self.label = label
        if last:
            self.press("d")

    def correct(self, truth: Mask, enough: float, most: int) -> float:
        """Click until the mask is good enough; returns its IoU."""
        given: list[Click] = []
        mask = self.mask(truth.shape)
        while iou(mask, truth) < enough and len(given) < most:
            click = largest_error_click(mask, truth, given)
            if click is None:
                break
            given.append(click)
            self.click(click)
            mask = self.mask(truth.shape)
        return float(iou(mask, truth))

    def _settle(self) -> None:
        while self.page.evaluate("probsegPage.clicker.pending.length || probsegPage.arriving"):
            self.page.wait_for_timeout(40)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lite2_unet_prop")
    parser.add_argument("--photographs", type=int, default=20)
    parser.add_argument("--enough", type=float, default=0.85)
    parser.add_argument("--clicks", type=int, default=10, help="most of an object")
    parser.add_argument("--in-a-row", action="store_true", help="frames that follow one another")
    parser.add_argument("--copy", action="store_true", help="with --in-a-row: objects are copied")
    parser.add_argument("--numbers", action="store_true", help="keys of labels finish objects")
    options = parser.parse_args()
    frames = list(_frames(options.photographs, in_a_row=options.in_a_row))
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        for number, frame in enumerate(frames):
            Image.fromarray(frame.image).save(Path(place) / f"{number:03d}.png")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        labels = ["--labels", ",".join(THINGS)]
        with served(Path(place), options.model, labels) as address:
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            annotator = Annotator(page, address)
            annotator.numbers = options.numbers
            page.evaluate("on => { probsegPage.labelFinishes = on; }", options.numbers)
            reached = [_annotate(annotator, frame, options) for frame in frames]
        browser.close()
    count = len(frames)
    ways = {"by clicks": 0, "Enter and D": count}
    if options.copy or options.numbers:
        ways = {"copies" if options.copy else "numbers": 0}
    elif options.in_a_row:
        ways = {"in a row": 0}
    for way, more in ways.items():
        acts = annotator.clicks + annotator.keys + more
        row: dict[str, Any] = {"way": way, "model": options.model, "photographs": count}
        row |= {"clicks": annotator.clicks, "keys": annotator.keys + more}
        row |= {"mean_iou": round(float(np.mean(reached)), 4)}
        row |= {"photographs_an_hour": round(3600 * count / acts, 1), **provenance("cpu")}
        append_row(RESULTS / "annotator.csv", row)
        sys.stdout.write(f"{way}: {row}\n")


def _annotate(annotator: Annotator, frame: Frame, options: argparse.Namespace) -> float:
    """Annotate a photograph; returns the mean IoU of its objects."""
    reached = []
    left = [*frame.objects]
    copies = annotator.page.evaluate("probsegPage.source?.ids.length ?? 0") if options.copy else 0
    while left:
        at = 0
        if copies:
            copies -= 1
            annotator.press("v")
            copy = annotator.mask(left[0][1].shape)
            overlaps = [float(iou(copy, truth)) for _, truth in left]
            at = int(np.argmax(overlaps))
            annotator.label = annotator.page.evaluate("probsegPage.clicker.label")
            if overlaps[at] < WORTH_A_COPY:
                annotator.press("Escape")
                continue
        label, truth = left.pop(at)
        reached.append(annotator.correct(truth, options.enough, options.clicks))
        annotator.finish(label, last=not left)
    return float(np.mean(reached))


def _frames(count: int, *, in_a_row: bool) -> Iterator[Frame]:
    """Yield frames with enough objects: spread over the part, or the first ones in a row."""
    data = CamVid("test")
    places = range(len(data)) if in_a_row else np.argsort(np.arange(len(data)) % 11, kind="stable")
    for place in places:
        sample = data[int(place)]
        frame = Frame(sample.image, _objects(sample.labels))
        if len(frame.objects) == OBJECTS:
            yield frame
            count -= 1
        if not count:
            return


def _objects(labels: npt.NDArray[Any]) -> list[tuple[str, Mask]]:
    """Return the largest parts of the things in a frame, with their classes."""
    found = []
    for name in THINGS:
        inside = (labels == CamVid.classes.index(name)).astype(np.uint8)
        _, parts, stats, _ = cv2.connectedComponentsWithStats(inside)
        for number, area in enumerate(stats[1:, cv2.CC_STAT_AREA], start=1):
            if area >= SMALLEST:
                found.append((int(area), name, parts == number))
    found.sort(key=lambda one: -one[0])
    return [(name, mask) for _, name, mask in found[:OBJECTS]]


if __name__ == "__main__":
    main()
