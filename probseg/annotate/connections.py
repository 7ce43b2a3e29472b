"""Connections of the servers: requests that do not arrive in time are given up."""

from __future__ import annotations

import asyncio
from typing import cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 10.0
"""How long a client may take to send a request, before the time for its body at `SLOWEST`."""

SLOWEST = 250_000
"""Bytes per second with which a body must arrive."""

CONNECTIONS = 64
"""Most connections, and most that are accepted at once: some systems give a program 256 handles."""


class Connection(H11Protocol):
    """A connection that is closed if a request takes too long, or if others need its place.

    Where there are too many, the one makes room that has been waiting longest for a request; a new
    one, if all are being answered.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        self._begun, self._received = self.loop.time(), 0
        self._limit: asyncio.TimerHandle | None = self.loop.call_later(SECONDS, transport.abort)
        if len(self.connections) > CONNECTIONS:
            others = cast("set[Connection]", self.connections - {self})
            waiting = [one for one in others if one._waits()]
            leaving = min(waiting, key=lambda one: one._begun, default=self)
            self.connections.discard(leaving)
            leaving.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        super().connection_lost(exc)
        self._stop_waiting()

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

    def _waits(self) -> bool:
        return self._limit is not None or self.cycle is None or self.cycle.response_complete

    def _stop_waiting(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
