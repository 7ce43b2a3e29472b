"""JSON over HTTP, for the page and for tools; connections that are too slow are closed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import h11
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from probseg.annotate.server import Guard
from probseg.texts import printable

_logger = logging.getLogger(__name__)

MAX_BODY = 64 << 20
"""Maximum bytes of a body from a tool, which may hold an image as base64."""

MAX_COMMAS = 100_000
"""Maximum number of commas of a body: each value takes 25 times as much memory as in the text."""

SECONDS = 10.0
"""How long a client may take to send a request, before the time for its body at `SLOWEST`."""

SLOWEST = 250_000
"""Bytes per second with which a body must arrive."""

CONNECTIONS = 64
"""Most connections, and most that are accepted at once: some systems give a program 256 handles."""

EVENTS = "/api/events"
"""Address of the stream of news, whose answer has no end."""

Json = dict[str, Any]


class AsciiJson(JSONResponse):
    """JSON in ASCII: a text of a client or of a file may have halves of characters."""

    def render(self, content: Any) -> bytes:  # noqa: ANN401
        """Write JSON."""
        return json.dumps(content, allow_nan=False).encode("ascii")


def refusal(status: int, reason: str) -> AsciiJson:
    """Say why a request is not carried out."""
    return AsciiJson({"error": reason}, status_code=status)


def post(path: str, answer: Callable[[Mapping[str, Any]], Json]) -> Route:
    """Return the route of a function of JSON objects; one request is answered at a time.

    A `ValueError` or `OSError` of it becomes status 400, and its text is logged: the tools show the
    status alone.
    """
    worker = ThreadPoolExecutor(1)  # an image may take a gigabyte, which threads do not share

    def answered(content: bytes) -> AsciiJson:
        if content.count(b",") > MAX_COMMAS:
            raise ValueError(f"the body must have at most {MAX_COMMAS} commas")
        body = json.loads(content)
        if not isinstance(body, dict):
            raise ValueError(f"the body must be a JSON object, got {type(body).__name__}")
        return AsciiJson(answer(body))

    async def endpoint(request: Request) -> AsciiJson:
        content = await request.body()
        try:
            return await asyncio.get_running_loop().run_in_executor(worker, answered, content)
        except (ValueError, OSError, RecursionError) as error:
            _logger.warning("%s: %s", path, printable(str(error)))
            return refusal(400, str(error))

    return Route(path, endpoint, methods=["POST"])


def guarded(routes: list[Route], hosts: frozenset[str], password: str | None) -> Guard:
    """Return the ASGI application of a tool's routes; see `Guard`."""
    hint = "start probseg serve with --allow-host and this name"
    return Guard(Starlette(routes=routes), hosts, "", MAX_BODY, hint, password=password)


class Connection(H11Protocol):
    """A connection that is closed if a request takes too long, or if others need its place.

    If there are too many, the one that has waited longest for a request is closed; if all are being
    answered, the new one.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        self._begun, self._received = self.loop.time(), 0
        self._limit: asyncio.TimerHandle | None = self.loop.call_later(SECONDS, transport.abort)
        if len(self.connections) > CONNECTIONS:
            others = cast("set[Connection]", self.connections - {self})
            waiting = [
                other
                for other in others
                if other._limit or other.cycle is None or other.cycle.response_complete
            ]
            leaving = min(waiting, key=lambda other: other._begun, default=self)
            self.connections.discard(leaving)
            leaving.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        super().connection_lost(exc)
        self._stop_waiting()

    def shutdown(self) -> None:
        """Answer what was asked, and close; a stream of news ends at once."""
        if self.cycle is not None and self.scope["path"] == EVENTS:
            self.transport.close()
        else:
            super().shutdown()

    def data_received(self, data: bytes) -> None:
        """Count what arrives."""
        self._received += len(data)
        super().data_received(data)

    def handle_events(self) -> None:
        """Wait for the rest of a request, also of one that came before the last was answered."""
        super().handle_events()
        state, waits = self.conn.their_state, self.timeout_keep_alive_task is not None
        if state is not h11.SEND_BODY and (state is not h11.IDLE or waits):
            self._stop_waiting()
            return
        if self._limit is None:
            self._begun, self._received = self.loop.time(), 0
        self._stop_waiting()
        due = self._begun + SECONDS + self._received / SLOWEST
        self._limit = self.loop.call_at(due, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
