"""The annotation page at work.

`python docs/pictures/annotate.py` serves photographs that come with scikit-image and lets the
simulated annotator of the protocol `ritm` click through the page. It needs chromium and
Playwright.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from probseg.clicks.annotators import BoolMap, largest_error_click
from probseg.data import SamplePhotos
from probseg.metrics.masks import iou
from probseg.types import Click, Sample

PICTURE = Path(__file__).with_suffix(".png")
CHROMIUM = "/usr/bin/chromium"
ENOUGH = 0.96  # the IoU at which the annotator is content
LABELS = ("cat", "cup", "saucer", "spoon", "vehicle")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PICTURE, help="%(default)s")
    out = parser.parse_args().out
    samples = photographs()
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with served(Path(place), samples) as address:
            page = opened(browser, address)
            show(page, "cat")
            _segment(page, samples["cat"], clicks=3)
            for key in ("1", "Enter", "d"):
                page.keyboard.press(key)
                settle(page)
            show(page, "coffee")
            for key, name in (("4", "spoon"), ("2", "cup")):
                _segment(page, samples[f"coffee/{name}"], clicks=8)
                page.keyboard.press(key)
                page.keyboard.press("i")  # removes stray parts
                settle(page)
                page.keyboard.press("Enter")
                settle(page)
            page.keyboard.press("3")
            _segment(page, samples["coffee/saucer"], clicks=6)
            _save(page, out)
        browser.close()


def photographs() -> dict[str, Sample]:
    """Return the objects of the photographs that come with scikit-image, by name."""
    photos = SamplePhotos()
    return {sample.name: sample for sample in map(photos.__getitem__, range(len(photos)))}


@contextmanager
def served(place: Path, samples: Mapping[str, Sample]) -> Iterator[str]:
    """Run `probseg annotate` on photographs; yields the address that it prints."""
    folder = place / "photos"
    folder.mkdir(exist_ok=True)
    for sample in samples.values():
        Image.fromarray(sample.image).save(folder / f"{sample.photo}.png")
    verb = [sys.executable, "-c", "from probseg.cli import main; main()", "annotate", str(folder)]
    options = ["--no-browser", "--port", "0", "--labels", ",".join(LABELS)]
    with subprocess.Popen([*verb, *options], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield next(line.strip() for line in server.stdout if line.startswith("http"))
        finally:
            server.terminate()


def opened(browser: Browser, address: str) -> Page:
    page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    return page


def show(page: Page, photo: str) -> None:
    """Open a photograph by its name."""
    page.evaluate(
        "name => probsegPage.open(probsegPage.session.photographs.findIndex("
        "photo => photo.name === name))",
        f"{photo}.png",
    )
    settle(page)


def _segment(page: Page, sample: Sample, clicks: int) -> None:
    """Click on the centre of the largest error, again and again."""
    for x, y, positive in next_clicks(page, sample, clicks):
        page.mouse.click(x, y, button="left" if positive else "right")
        settle(page)


def next_clicks(page: Page, sample: Sample, most: int) -> Iterator[tuple[float, float, bool]]:
    """Yield where in the window to click next, and whether on the object, until it is marked."""
    given: list[Click] = []
    for _ in range(most):
        shown = mask(page, sample.mask.shape)
        click = largest_error_click(shown, sample.mask, given)
        if click is None or iou(shown, sample.mask) > ENOUGH:
            return
        given.append(click)
        view = page.evaluate("probsegPage.clicker.view")
        stage = page.locator(".clicker-over").bounding_box()
        assert stage is not None
        x = stage["x"] + view["x"] + (click.x + 0.5) * view["scale"]
        y = stage["y"] + view["y"] + (click.y + 0.5) * view["scale"]
        yield x, y, click.positive


def mask(page: Page, shape: tuple[int, ...]) -> BoolMap:
    """Return the mask that the page shows."""
    whole = np.zeros(shape, np.bool_)
    region = page.evaluate(
        "(shown => shown && [shown.region.x, shown.region.y, shown.region.width,"
        " shown.region.height, Array.from(shown.region.bytes).join('')])(probsegPage.clicker.mask)"
    )
    if region is not None:
        x, y, width, height, bits = region
        inside = np.frombuffer(bits.encode(), np.uint8).reshape(height, width) == ord("1")
        whole[y : y + height, x : x + width] = inside
    return whole


def settle(page: Page) -> None:
    """Wait until all that was sent is answered, and the photograph is there and painted."""
    busy = "(({ pending, waiting, held }) => pending.length || waiting.length || held)"
    while page.evaluate(f"{busy}(probsegPage.clicker) || probsegPage.arriving"):
        page.wait_for_timeout(20)
    page.wait_for_timeout(150)


def _save(page: Page, path: Path) -> None:
    page.mouse.move(5, 5)
    page.evaluate("document.activeElement.blur()")
    page.wait_for_timeout(700)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    palette = picture.quantize(256, Image.Quantize.MAXCOVERAGE)
    small = picture.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG)
    small.save(path, optimize=True)  # half of the bytes


if __name__ == "__main__":
    main()
