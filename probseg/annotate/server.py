"""Listening and access control of the servers of the verbs annotate and serve.

The page is served to this machine's own browser. Other sites that this browser visits must not be
able to use the server: the name in `Host` is checked before anything else (against DNS
rebinding), requests from pages of another origin are refused, and all requests for data need a
token that only the printed address has.
"""

from __future__ import annotations

import base64
import errno
import hmac
import json
import socket
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from probseg.errors import UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 1 << 20
"""Maximum bytes of a request's body from the page."""

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


def need_server() -> None:
    """Raise a `UsageError` unless the packages of a server are installed."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        raise UsageError(f'{names} not installed; in a checkout run: pip install -e ".[annotate]"')


class Listening(NamedTuple):
    """A socket that listens, its address, and the values of `Host` that its requests may have."""

    listener: socket.socket
    address: str
    hosts: frozenset[str]


def listen(host: str, port: int, other_names: Sequence[str] = ()) -> Listening:
    """Listen at a port of one interface, 0 for any free one.

    Clients may call this machine by `host`, localhost and the other names.
    """
    if host in ("0.0.0.0", "::", ""):
        raise UsageError(f"--host must be the address of one interface, got {host!r}")
    # With the protocol, asyncio sets TCP_NODELAY. Otherwise the body of each answer waits for the
    # delayed acknowledgement of its head, 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)  # requests wait until the server runs
    except (OSError, OverflowError) as error:
        remedy = "--port must be another one, or 0 for any free one"
        if isinstance(error, socket.gaierror) or error.args[0] == errno.EADDRNOTAVAIL:
            remedy = "--host must be an IPv4 address of this machine, such as 127.0.0.1"
        raise UsageError(f"--host {host} --port {port}: {error}; {remedy}") from error
    port = listener.getsockname()[1]
    names = {host, "localhost", "127.0.0.1", *other_names}
    hosts = frozenset(f"{name.lower()}:{port}" for name in names)
    return Listening(listener, f"http://{host}:{port}", hosts)


def serve(app: ASGIApp, listening: Listening) -> None:
    """Serve an application until Ctrl-C or SIGTERM, which uvicorn sends again after its end."""
    import uvicorn

    from probseg.annotate.http import CONNECTIONS, Connection

    settings = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_level="warning",
        server_header=False,
        timeout_keep_alive=60,
        backlog=CONNECTIONS,
        limit_concurrency=4 * CONNECTIONS,  # with requests whose clients are gone
    )
    uvicorn.Server(settings).run(sockets=[listening.listener])


class Guard:
    """ASGI middleware that refuses requests before they reach the routes.

    `hosts` are the accepted values of `Host`. Requests under `/api` need `token` in the header
    `X-Probseg-Token`, or `reader`, with which nothing can be changed. All requests need the
    password, if there is one. `hint` says what to do where `Host` is refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: frozenset[str],
        token: str,
        max_body: int = MAX_BODY,
        hint: str = "use the address that it printed",
        reader: str | None = None,
        password: str | None = None,
    ) -> None:
        self.app, self.hosts, self.token, self.reader = app, hosts, token, reader
        self.max_body, self.hint, self.password = max_body, hint, password
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
            if refused is None:
                await self._answer(scope, parts, receive, send)
            else:
                status, reason = refused
                headers = [(b"content-type", b"application/json"), *HEADERS.items()]
                await send({"type": "http.response.start", "status": status, "headers": headers})
                body = json.dumps({"error": reason}).encode()
                await send({"type": "http.response.body", "body": body})
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
        headers: dict[str, str] = {}
        for key, value in scope["headers"]:
            name = key.decode("latin-1")
            if name in ("host", "origin") and name in headers:
                return 400, f"more than one header {name}"
            headers[name] = value.decode("latin-1")
        host = headers.get("host", "").lower()
        if host not in self.hosts:
            return 403, f"this name is not one of the server; {self.hint}"
        if headers.get("origin", f"http://{host}").lower() != f"http://{host}":
            return 403, "requests from other sites are refused"
        if self.password is not None and not has_password(headers, self.password):
            return 401, "the password of --token is missing or wrong; see docs/integrations.md"
        if scope["path"].startswith("/api"):
            sent = headers.get("x-probseg-token", "").encode("latin-1")
            reads = self.reader is not None and hmac.compare_digest(sent, self.reader.encode())
            scope[READER] = reads
            if reads and scope["method"] not in ("GET", "HEAD"):
                return 403, "this address only shows the annotations"
            if not reads and not hmac.compare_digest(sent, self.token.encode()):
                return 401, "the token is missing or wrong; open the address that was printed"
        if scope["method"] == "POST":
            media = headers.get("content-type", "").split(";")[0].strip().lower()
            if media != "application/json":
                return 415, "the body must be application/json"
        return None


def has_password(headers: Mapping[str, str], password: str) -> bool:
    """Say whether a request brings a password where annotation tools put it.

    X-AnyLabeling sends its API key as `Token`. Label Studio sends user and password as
    `Authorization: Basic`, where any user counts.
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
