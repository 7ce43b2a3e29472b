"""The windows in which a folder is open: which photograph each has, and the news they are sent."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request

BEAT = 15.0
"""Seconds after which a window that has no news hears that the server is there."""

AWAY = 600.0
"""Seconds for which a photograph stays that of a window which does not listen, as in the back."""

MOST_NEWS = 1000
"""News that wait for a slow window; one that misses some asks for all that there is."""

LONGEST_NAME = 100
"""Characters of the name of a window that count."""

MOST_WINDOWS = 1000
"""Windows whose photographs are known."""


class Windows:
    """Windows by the names that they give themselves; all methods may be called by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[asyncio.Queue[str], asyncio.AbstractEventLoop] = {}
        self._listening: Counter[str] = Counter()
        self._opened: dict[str, tuple[str, float]] = {}  # photograph of each, and since when

    def __bool__(self) -> bool:
        """Whether a window listens."""
        return bool(self._queues)

    def opened(self) -> dict[str, str]:
        """Return the id of the photograph that each window has open."""
        with self._lock:
            now = time.monotonic()
            self._opened = {
                window: (photo, since)
                for window, (photo, since) in [*self._opened.items()][-MOST_WINDOWS:]
                if self._listening[window] or now - since < AWAY
            }
            return {window: photo for window, (photo, _) in self._opened.items()}

    def opens(self, window: str, photo: str | None) -> None:
        """Note which photograph a window has open now; None for one that is closed."""
        window = window[:LONGEST_NAME]
        with self._lock:
            self._opened.pop(window, None)
            if photo is not None:
                self._opened[window] = photo, time.monotonic()
        self.tell({"open": self.opened()})

    def tell(self, news: Mapping[str, Any]) -> None:
        """Send news to all windows that listen."""
        text = json.dumps(news)
        with self._lock:
            queues = [*self._queues.items()]
        for queue, loop in queues:
            loop.call_soon_threadsafe(_put, queue, text)

    async def listen(
        self, window: str, request: Request, photo: str | None = None
    ) -> AsyncIterator[str]:
        """Yield the news as server-sent events until the window is gone.

        `photo` is what the window has open, which it may be the only one to know: the server may
        have been started again meanwhile.
        """
        if photo and window[:LONGEST_NAME] not in self.opened():
            self.opens(window, photo[:LONGEST_NAME])
        window, queue = window[:LONGEST_NAME], asyncio.Queue[str]()
        with self._lock:
            self._queues[queue] = asyncio.get_running_loop()
            self._listening[window] += 1
        gone = asyncio.ensure_future(_gone(request))
        gone.add_done_callback(lambda _: queue.put_nowait("{}"))
        try:
            yield _event(json.dumps({"open": self.opened()}))
            while not gone.done():
                try:
                    yield _event(await asyncio.wait_for(queue.get(), BEAT))
                except TimeoutError:
                    yield ":\n\n"
        finally:
            gone.cancel()
            with self._lock:
                del self._queues[queue]
                self._listening[window] -= 1
                self._listening += Counter()  # without zeros
                if window in self._opened:
                    self._opened[window] = self._opened[window][0], time.monotonic()


def _put(queue: asyncio.Queue[str], text: str) -> None:
    """Add news; in the place of too many, that there are some."""
    if queue.qsize() >= MOST_NEWS:
        while not queue.empty():
            queue.get_nowait()
        text = json.dumps({"again": True})
    queue.put_nowait(text)


def _event(text: str) -> str:
    return f"data: {text}\n\n"


async def _gone(request: Request) -> None:
    """Wait until a client goes away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
