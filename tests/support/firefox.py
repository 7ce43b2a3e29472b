"""One tab of the Firefox of the system, driven by WebDriver BiDi as `Page` drives Playwright's.

Playwright needs a Firefox of its own. BiDi needs neither it nor geckodriver.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.pages import PATIENCE, Page

NAMES = ("firefox-esr", "firefox")
KEYS = {"ArrowLeft": "\ue012", "Enter": "\ue007"}
BUTTONS = {"left": 0, "right": 2}


@contextmanager
def firefox(profile: Path) -> Iterator[Tab]:
    """Start Firefox without a window, and yield its tab.

    Args:
        profile: Of its settings; is made.
    """
    websocket = pytest.importorskip("websocket", reason="websocket-client is not installed")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"there is no {' or '.join(NAMES)}")
    profile.mkdir()
    command = [program, "--headless", "--no-remote", "--profile", str(profile)]
    command += ["--remote-debugging-port", "0"]
    silent = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=silent, stderr=silent) as process:
        try:
            place = _listening(profile / "WebDriverBiDiServer.json", process)
            # Firefox refuses connections of web pages, which have an origin.
            connection = websocket.create_connection(place, timeout=PATIENCE, suppress_origin=True)
            yield Tab(connection)
            connection.close()
        finally:
            process.terminate()


def _listening(file: Path, process: subprocess.Popen[bytes]) -> str:
    """Wait until Firefox has written where it listens, and return the address of a session."""
    stop = time.monotonic() + PATIENCE
    while not file.exists() or not (content := file.read_text("utf-8")).endswith("}"):
        assert process.poll() is None, f"Firefox ended with {process.returncode}"
        assert time.monotonic() < stop, "Firefox does not listen"
        time.sleep(0.05)
    server = json.loads(content)
    return f"ws://{server['ws_host']}:{server['ws_port']}/session"


class Tab:
    """The part of Playwright's page that `Page` needs.

    Attributes:
        mouse: With `move`, `down`, `up`, `click` and `wheel`: the tab itself.
        keyboard: With `press`: the tab itself.
        complaints: Errors of scripts.
    """

    def __init__(self, connection: Any) -> None:
        self.mouse = self.keyboard = self
        self.complaints: list[str] = []
        self._connection, self._number = connection, 0
        self._place = (0.0, 0.0)
        self._send("session.new", capabilities={})
        self._context = self._send("browsingContext.getTree")["contexts"][0]["context"]
        self._send("session.subscribe", events=["log.entryAdded"])
        self.set_viewport_size({"width": 1000, "height": 700})

    def _send(self, method: str, **parameters: Any) -> Any:
        """Send a command, and return its result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        self._connection.send(json.dumps(command))
        while (answer := json.loads(self._connection.recv())).get("id") != self._number:
            if answer["type"] == "event" and answer["params"]["level"] == "error":
                self.complaints.append(answer["params"]["text"])
        assert answer["type"] == "success", answer
        return answer["result"]

    def set_viewport_size(self, viewport: dict[str, int]) -> None:
        """Give the window another size."""
        self._send("browsingContext.setViewport", context=self._context, viewport=viewport)

    def goto(self, address: str) -> None:
        """Load a page."""
        self._send("browsingContext.navigate", context=self._context, url=address, wait="complete")

    def wait_for_selector(self, selector: str) -> None:
        """Wait for an element."""
        stop = time.monotonic() + PATIENCE
        while not self.evaluate(f"document.querySelector({json.dumps(selector)}) !== null"):
            assert time.monotonic() < stop, f"there is still no {selector}"
            time.sleep(0.01)

    def evaluate(self, code: str, argument: Any = None) -> Any:
        """Return the value of an expression, or of a function of one argument, as JSON."""
        script = (
            f"(async () => {{ const code = ({code}); const value = await "
            f"(typeof code === 'function' ? code({json.dumps(argument)}) : code); "
            "return JSON.stringify(value) ?? 'null' })()"
        )
        target = {"context": self._context}
        answer = self._send("script.evaluate", expression=script, target=target, awaitPromise=True)
        assert answer["type"] == "success", answer["exceptionDetails"]["text"]
        return json.loads(answer["result"]["value"])

    def _act(self, kind: str, *actions: dict[str, Any]) -> None:
        source = {"type": kind, "id": kind, "actions": actions}
        self._send("input.performActions", context=self._context, actions=[source])

    def move(self, x: float, y: float) -> None:
        """Move the mouse to a place in the window, in CSS pixels, which Firefox rounds."""
        self._place = (x, y)
        self._act("pointer", {"type": "pointerMove", "x": x, "y": y})

    def down(self, button: str = "left") -> None:
        """Press a button of the mouse."""
        self._act("pointer", {"type": "pointerDown", "button": BUTTONS[button]})

    def up(self, button: str = "left") -> None:
        """Release a button of the mouse."""
        self._act("pointer", {"type": "pointerUp", "button": BUTTONS[button]})

    def click(self, x: float, y: float, button: str = "left") -> None:
        """Click at a place in the window."""
        self.move(x, y)
        self.down(button)
        self.up(button)

    def wheel(self, x: float, y: float) -> None:
        """Turn the wheel where the mouse is."""
        at = {"x": self._place[0], "y": self._place[1]}
        self._act("wheel", {"type": "scroll", **at, "deltaX": x, "deltaY": y})

    def press(self, key: str) -> None:
        """Press a key."""
        value = KEYS.get(key, key)
        self._act("key", *({"type": kind, "value": value} for kind in ("keyDown", "keyUp")))


class FirefoxPage(Page):
    """The annotation page in Firefox."""

    def __init__(self, tab: Tab, address: str) -> None:
        self.tab, self.address, self.complaints = tab, address, tab.complaints

    def close(self) -> None:
        """Check that the page's scripts had no errors."""
        assert not self.complaints, self.complaints
