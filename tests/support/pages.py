"""The annotation page in a browser: a server in a thread, chromium, and what tests read there."""

from __future__ import annotations

import io
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torch import Tensor

from probseg.attention.adaptation import Adaptation
from probseg.models import Segmenter
from probseg.types import Prompts

CHROMIUM = Path("/usr/bin/chromium")
TOKEN = "0123456789abcdef"
READER = "fedcba9876543210"
STATE = """[clicker.pending.map(({ action }) => action.type), clicker.waiting.length,
clicker.held, clicker.locked, clicker.fetching, probsegPage.arriving]"""
"""What the page waits for."""

PATIENCE = 60
"""Seconds in which a browser answers, even one that shares its core with other work."""


class Disks:
    """Stands for a network: disks around the clicks, in the order in which they came, and the box.

    Their radius is 10 pixels more for each value iteration.
    """

    prompts_enter = "head"
    previous_mask = False

    def __init__(self) -> None:
        self.value_iterations = 1

    def adaptation(self) -> Adaptation:
        return Adaptation(None, None, self.value_iterations, None)

    def adapt(self, adaptation: Adaptation) -> None:
        self.value_iterations = adaptation.value_iterations

    def batch_key(self, size: tuple[int, int]) -> tuple[int, int]:
        return size

    def encode_each(self, images: Sequence[Tensor]) -> Sequence[Tensor]:
        return images

    def decode_each(
        self, encoded: Sequence[Tensor], prompts: Sequence[Prompts]
    ) -> tuple[list[Tensor], None]:
        return list(map(self._logits, encoded, prompts)), None

    def _logits(self, image: Tensor, prompts: Prompts) -> Tensor:
        height, width = image.shape[-2:]
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        logits = torch.full((height, width), -3.0)
        x0, y0, x1, y1 = prompts.boxes[0].tolist()
        logits[(x >= x0) & (x < x1) & (y >= y0) & (y < y1)] = 3.0
        radius = 8 + 10 * self.value_iterations
        for (column, row), label in zip(prompts.points[0], prompts.labels[0], strict=True):
            inside = (x - column) ** 2 + (y - row) ** 2 <= radius**2
            logits[inside] = {1: 2.0, 0: -2.0}.get(int(label), 0.0)
        return logits


@lru_cache(1)
def _model_host() -> Any:
    from probseg.annotate.answers import ModelHost

    return ModelHost("lite0_unet_prop")


@contextmanager
def serving(folder: Path, model: Segmenter | Disks | None = None, port: int = 0) -> Iterator[str]:
    """Serve the photographs of a folder; yields the address of the page.

    Args:
        folder: Of photographs.
        model: What answers, without a zoom; None for `lite0_unet_prop`.
        port: Where to listen; 0 for any free port.
    """
    uvicorn = pytest.importorskip("uvicorn", reason="the annotation server needs uvicorn")
    from probseg.annotate.app import create_app
    from probseg.annotate.http import Connection
    from probseg.annotate.sessions import Sessions

    model_host = copy(_model_host()) if model else _model_host.__wrapped__()
    model_host.zoom = None
    if model is not None:
        model_host.model = model
    sessions = Sessions(folder, None, model_host, labels=["cat", "dog"])
    listening = socket.create_server(("127.0.0.1", port))
    host = f"127.0.0.1:{listening.getsockname()[1]}"
    app = create_app(sessions, frozenset({host}), TOKEN, READER)
    server = uvicorn.Server(uvicorn.Config(app, http=Connection, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://{host}/#{TOKEN}"
    finally:
        server.should_exit = True
        thread.join()
        sessions.close()


def needs_browser() -> Any:
    """Return the module of Playwright; skip the test where it or chromium is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}")
    return playwright


@contextmanager
def browser() -> Iterator[Any]:
    """Start chromium without a window."""
    with needs_browser().sync_playwright() as running:
        started = running.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        yield started
        started.close()


def axe(place: Path) -> str:
    """Return the source of axe-core, which npm has in its cache or fetches."""
    npm = shutil.which("npm") or pytest.skip("npm is not installed")
    options = ("--prefer-offline", "--fetch-retries=0", "--no-audit", "--no-fund")
    install = [npm, "install", *options, "--prefix", str(place), "axe-core"]
    if subprocess.run(install, capture_output=True, check=False).returncode:
        pytest.skip("npm cannot fetch axe-core")
    return (place / "node_modules/axe-core/axe.min.js").read_text("utf-8")


class Page:
    """The page in one tab.

    Attributes:
        tab: Playwright's page.
        complaints: Errors of its scripts, violations of its policy, and requests to other hosts.
    """

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        options = {"viewport": {"width": 1000, "height": 700}, **options}
        self.context = browser.new_context(**options)
        self.address = address
        self.complaints: list[str] = []
        self.tab = self._tab()

    def _tab(self) -> Any:
        tab = self.context.new_page()
        tab.set_default_timeout(1000 * PATIENCE)
        own = self.address.partition("#")[0].partition("?")[0]
        tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        tab.on("console", lambda entry: self._heard(entry.type, entry.text))
        tab.on(
            "request",
            lambda request: (
                request.url.startswith((own, "blob:"))
                or self.complaints.append(f"request to {request.url}")
            ),
        )
        return tab

    def _heard(self, kind: str, text: str) -> None:
        # What the browser says of refused and failed requests is what tests of them are about.
        if kind == "error" and "Failed to load resource" not in text:
            self.complaints.append(text)

    def open(self, photo: int | None = None) -> Page:
        """Load the page, and go to a photograph by its place."""
        self.tab.goto("about:blank")  # else only the fragment changes and nothing is loaded
        self.tab.goto(self.address)
        self.tab.wait_for_selector("body[data-ready]")
        if photo is not None:
            self.run(f"probsegPage.open({photo})")
        return self

    def resize(self, width: int, height: int) -> None:
        """Give the window another size."""
        self.tab.set_viewport_size({"width": width, "height": height})
        self.tab.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")

    def run(self, script: str, *arguments: Any) -> Any:
        """Evaluate JavaScript in which `clicker` is the clicker."""
        code = f"arguments_ => {{ const clicker = probsegPage.clicker; return {script}; }}"
        return self.tab.evaluate(code, list(arguments))

    def until(self, script: str) -> None:
        """Wait until an expression is true (Playwright's own way breaks the page's policy)."""
        stop, pause = time.monotonic() + PATIENCE, 0.005
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < stop, f"still not true: {script}; {self.run(STATE)}"
            time.sleep(pause)
            pause = min(0.2, 1.5 * pause)  # each look costs the browser time, too

    def settle(self) -> None:
        """Wait until all that was sent is answered, and the photograph is there and painted."""
        sent = "!clicker.pending.length && !clicker.waiting.length && !clicker.held"
        idle = f"{sent} && !probsegPage.arriving && !probsegPage.outline?.asked"
        frame = f"new Promise(done => requestAnimationFrame(() => setTimeout(() => done({idle}))))"
        self.until(idle)
        while not self.run(frame):  # one thing has followed another
            self.until(idle)

    def until_stored(self) -> None:
        """Wait for the masks of all finished objects; until then the page shows those it has."""
        self.until(
            "clicker.objects.every(({ id, area, window, clicks }) => "
            "clicker.finished.get(id)?.stamp === JSON.stringify([area, window, clicks]))"
        )

    def press(self, *keys: str) -> None:
        """Press keys one after the other, each after the answer to the one before."""
        for key in keys:
            self.tab.keyboard.press(key)
            self.settle()

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return where in the window a point of the photograph is."""
        frame = "clicker.over.getBoundingClientRect()"
        painted = "Math.round(place * clicker.ratio) / clicker.ratio"
        corner = f"[{frame}.left, {frame}.top].map(place => {painted})"
        view, (left, top) = self.run(f"[clicker.view, {corner}]")
        return left + view["x"] + x * view["scale"], top + view["y"] + y * view["scale"]

    def aim(self, x: float, y: float) -> None:
        """Move the mouse to a point of the photograph, also where a message shifts it meanwhile."""
        place = None
        while place != (place := self.place(x, y)):
            self.tab.mouse.move(*place)

    def point(self, x: float, y: float) -> tuple[float, float]:
        """Return which point of the photograph is at a place in the window."""
        view = self.run("clicker.view")
        x0, y0 = self.place(0, 0)
        return (x - x0) / view["scale"], (y - y0) / view["scale"]

    def click(self, x: float, y: float, button: str = "left", wait: bool = True) -> None:
        """Click on a point of the photograph."""
        self.aim(x, y)
        self.tab.mouse.down(button=button)
        self.tab.mouse.up(button=button)
        if wait:
            self.settle()

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag from a point of the photograph to another."""
        self.aim(*start)
        self.tab.mouse.down()
        self.tab.mouse.move(*self.place(*end), steps=4)
        self.tab.mouse.up()
        self.settle()

    @property
    def clicks(self) -> list[tuple[float, float, bool]]:
        """The marks that are shown."""
        marks = self.run("clicker.marks().clicks")
        return [(mark["x"], mark["y"], mark["positive"]) for mark in marks]

    def mask(self, of: str = "clicker.mask") -> npt.NDArray[np.bool_]:
        """Return the mask that is painted, bool, shape `(H, W)`; empty if there is none."""
        size = self.run("clicker.size")
        whole = np.zeros((size["height"], size["width"]), np.bool_)
        region = self.run(
            f"(shown => shown && [shown.region.x, shown.region.y, shown.region.width, "
            f"shown.region.height, Array.from(shown.region.bytes).join('')])({of})"
        )
        if region is not None:
            x, y, width, height, bits = region
            inside = np.frombuffer(bits.encode(), np.uint8).reshape(height, width) == ord("1")
            whole[y : y + height, x : x + width] = inside
        return whole

    def window(self) -> npt.NDArray[np.uint8]:
        """Return a picture of the window, RGB, in device pixels."""
        return np.asarray(Image.open(io.BytesIO(self.tab.screenshot())).convert("RGB"))

    def banner(self) -> str:
        """Return the message over the photograph; empty if none is shown."""
        shown = self.tab.locator("#banner:not([hidden]) span")
        return shown.inner_text() if shown.count() else ""

    def close(self) -> None:
        """Close the tab; its scripts must have had no errors."""
        self.context.close()
        assert not self.complaints, self.complaints
