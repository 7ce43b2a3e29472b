"""Times of the annotation page in chromium, with the server as a process of its own.

`python benchmarks/annotate.py` serves photographs of 640 x 480 pixels to a headless chromium,
clicks, and writes `benchmarks/results/annotate.csv`: quantiles of

- `click`: from the release of the mouse to the frame with the painted mask,
- `server`: the part of `click` that the server counts,
- `open`: from `N` to the next photograph, which the page has fetched in advance,
- `ready`: from the request of the page to its first photograph, the model being loaded.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
from measure import RESULTS, append_row, provenance
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from probseg.data import SamplePhotos

CHROMIUM = "/usr/bin/chromium"
SIZE = (640, 480)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lite2_unet_prop")
    parser.add_argument("--photographs", type=int, default=12)
    parser.add_argument("--clicks", type=int, default=6, help="on each photograph")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        folder = Path(place)
        photos = SamplePhotos()
        for number in range(options.photographs):
            image = cv2.resize(photos[number % len(photos)].image, SIZE)
            Image.fromarray(image).save(folder / f"{number:03d}.jpg", quality=92)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with served(folder, options.model) as address:
            page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
            _load(page, address)  # the server loads the model
            page.wait_for_timeout(5000)
            measured = {"ready": [_load(page, address) for _ in range(5)], "open": []}
            server: list[float] = []
            for number in range(options.photographs):
                if number:
                    measured["open"].append(_next(page))
                server += _click(page, options.clicks, seed=number)
            measured["click"] = page.evaluate("probsegPage.clicker.timings")
            measured["server"] = server
        browser.close()
    for name, times in measured.items():
        median, most = (float(np.quantile(times, q)) for q in (0.5, 0.95))
        row = {"what": name, "model": options.model, "n": len(times)}
        row |= {"median_ms": round(median, 1), "p95_ms": round(most, 1), **provenance("cpu")}
        append_row(RESULTS / "annotate.csv", row)
        sys.stdout.write(f"{name:8} median {median:6.1f} ms, 95 % {most:6.1f} ms\n")


@contextmanager
def served(folder: Path, model: str, more: Sequence[str] = ()) -> Iterator[str]:
    """Run `probseg annotate` with more options; yields the address that it prints."""
    verb = [sys.executable, "-c", "from probseg.cli import main; main()", "annotate", str(folder)]
    options = ["--model", model, "--no-browser", "--port", "0", *more]
    with subprocess.Popen([*verb, *options], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield next(line.strip() for line in server.stdout if line.startswith("http"))
        finally:
            server.terminate()


def _load(page: Page, address: str) -> float:
    """Load the page; returns milliseconds until its photograph is drawn."""
    page.goto("about:blank")
    began = time.perf_counter()
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    return 1000 * (time.perf_counter() - began)


def _next(page: Page) -> float:
    """Go to the next photograph; returns milliseconds until it is drawn."""
    page.wait_for_timeout(1500)  # somebody looks at a photograph before going on
    before = page.evaluate("probsegPage.index")
    page.keyboard.press("n")
    while page.evaluate("probsegPage.index") == before or not _drawn(page):
        page.wait_for_timeout(10)
    return float(page.evaluate("probsegPage.opening"))


def _drawn(page: Page) -> bool:
    return bool(
        page.evaluate("document.querySelector('#clicker').dataset.photo === probsegPage.photo.id")
    )


def _click(page: Page, clicks: int, seed: int) -> list[float]:
    """Click somewhere on the photograph; returns the server's milliseconds."""
    page.wait_for_timeout(1000)  # the server encodes the photograph meanwhile
    random = np.random.default_rng(seed)
    stage = page.locator(".clicker-over").bounding_box()
    assert stage is not None
    page.evaluate(
        "probsegPage.clicker.addEventListener('answer', ({ detail }) =>"
        " (window.answered ??= []).push(detail.milliseconds))"
        if seed == 0
        else "0"
    )
    page.evaluate("window.answered = []")
    for number in range(clicks):
        x, y = random.uniform(0.25, 0.75, 2)
        button = "left" if number % 2 == 0 else "right"
        place = stage["x"] + x * stage["width"], stage["y"] + y * stage["height"]
        page.mouse.click(*place, button=button)
        while page.evaluate("probsegPage.clicker.pending.length"):
            page.wait_for_timeout(5)
        page.wait_for_timeout(100)
    return list(page.evaluate("window.answered"))


if __name__ == "__main__":
    main()
