"""Access control of the annotation server.

The page is served to this machine's own browser. Other sites that this browser visits must not be
able to use the server: the name in `Host` is checked before anything else (against DNS
rebinding), requests from pages of another origin are refused, and all requests for data need a
token that only the printed address has.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 1 << 20
"""Most bytes of a request's body from the page."""

BODIES = 2
"""The bodies that are in memory at a time have at most the bytes of that many of the largest."""

READER = "probseg.reader"
"""Whether a request under `/api` came with the reader's token, in the scope."""

HEADERS = {
    b"content-security-policy": b"default-src 'self'; img-src 'self' blob:; "
    b"frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}
"""Headers of all answers."""


class Guard:
    """ASGI middleware that refuses requests before they reach the routes.

    Args:
        app: Application that answers the accepted requests.
        hosts: Accepted values of `Host`, for instance `"127.0.0.1:8808"`.
        token: Value that the header `X-Probseg-Token` must have under `/api`.
        max_body: Most bytes of a request's body.
        way_out: What to do where `Host` is refused.
        reader: Another value of the token, with which nothing can be changed; None without.
        password: What all requests must bring (see `has_password`); None without.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: frozenset[str],
        token: str,
        max_body: int = MAX_BODY,
        way_out: str = "use the address that it printed",
        reader: str | None = None,
        password: str | None = None,
    ) -> None:
        self.app, self.hosts, self.token, self.reader = app, hosts, token, reader
        self.max_body, self.way_out, self.password = max_body, way_out, password
        self._held = 0  # bytes of all bodies in memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets
            await send({"type": "websocket.close", "code": 1008})
            return
        refused = self._refused(scope)
        parts: list[bytes] = []
        if refused is None:
            refused = await self._read(receive, parts)
        size = sum(map(len, parts))
        try:
            if refused is not None:
                await _refuse(send, *refused)
            else:
                await self._answer(scope, parts, receive, send)
        finally:
            self._held -= size

    async def _answer(self, scope: Scope, parts: list[bytes], receive: Receive, send: Send) -> None:
        """Pass a request with its whole body on."""
        unread: list[Message] = [
            {"type": "http.request", "body": b"".join(parts), "more_body": False}
        ]
        parts.clear()

        async def received() -> Message:  # then what follows: the client goes away
            return unread.pop() if unread else await receive()

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS.items()]
            await send(message)

        await self.app(scope, received, sent)

    async def _read(self, receive: Receive, parts: list[bytes]) -> tuple[int, str] | None:
        """Read the body of a request, or say why it is refused."""
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return 400, "the request ended early"
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            self._held += len(parts[-1])
            if size > self.max_body:
                return 413, f"the body must be at most {self.max_body} bytes"
            if self._held > BODIES * self.max_body:
                return 429, "too many large requests at once; ask again"
            more = message.get("more_body", False)
        return None

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and reason if a request is refused for its headers."""
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in (b"host", b"origin") and name in headers:
                return 400, f"more than one header {name.decode()}"
            headers[name] = value
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if host not in self.hosts:
            return 403, f"this name is not one of the server; {self.way_out}"
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower() != f"http://{host}":
            return 403, "requests from other sites are refused"
        if self.password is not None:
            sent = {
                key.decode("latin-1"): value.decode("latin-1") for key, value in headers.items()
            }
            if not has_password(sent, self.password):
                return 401, "the password of --token is missing or wrong; see docs/integrations.md"
        if scope["path"].startswith("/api"):
            given = headers.get(b"x-probseg-token", b"")
            reads = self.reader is not None and hmac.compare_digest(given, self.reader.encode())
            scope[READER] = reads
            if reads and scope["method"] not in ("GET", "HEAD"):
                return 403, "this address only shows the annotations"
            if not reads and not hmac.compare_digest(given, self.token.encode()):
                return 401, "the token is missing or wrong; open the address that was printed"
        if scope["method"] == "POST":
            media = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            if media != b"application/json":
                return 415, "the body must be application/json"
        return None


def has_password(headers: Mapping[str, str], password: str) -> bool:
    """Say whether a request brings a password where annotation tools put it.

    X-AnyLabeling sends its API key as `Token`. Label Studio sends user and password as
    `Authorization: Basic`, where any user counts.

    Args:
        headers: Of the request.
        password: The right one.
    """
    fields = {name.lower(): value for name, value in headers.items()}
    method, _, sent = fields.get("authorization", "").partition(" ")
    if method.lower() == "basic":
        try:
            sent = base64.b64decode(sent).decode("latin-1").partition(":")[2]
        except ValueError:
            sent = ""
    sent = fields.get("token") or sent
    return hmac.compare_digest(sent.encode(), password.encode())


async def _refuse(send: Send, status: int, reason: str) -> None:
    headers = [(b"content-type", b"application/json"), *HEADERS.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": reason}).encode()})
