"""Servers of the verbs annotate and serve."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from probseg.errors import UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp


def need_server() -> None:
    """Raise a `UsageError` unless the packages of a server are installed."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        msg = f'{names} not installed; in a checkout run: pip install -e ".[annotate]"'
        raise UsageError(msg)


class Listening(NamedTuple):
    """A socket that listens, its address, and the values of `Host` that its requests may have."""

    listener: socket.socket
    address: str
    hosts: frozenset[str]


def listen(host: str, port: int, other_names: Sequence[str] = ()) -> Listening:
    """Listen at a port of one interface.

    Args:
        host: Address of the interface.
        port: 0 for any free one.
        other_names: By which clients may call this machine, besides `host` and localhost.

    Raises:
        UsageError: If the address is of all interfaces, or cannot be used.
    """
    if host in ("0.0.0.0", "::", ""):
        msg = f"--host must be the address of one interface, got {host!r}"
        raise UsageError(msg)
    # With the protocol, asyncio sets TCP_NODELAY. Otherwise the body of each answer waits for the
    # delayed acknowledgement of its head, 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)  # requests wait until the server runs
    except (OSError, OverflowError) as error:
        msg = f"--host {host} --port {port}: {error}; choose another port, or 0 for any free one"
        raise UsageError(msg) from error
    port = listener.getsockname()[1]
    names = {host, "localhost", "127.0.0.1", *other_names}
    hosts = frozenset(f"{name.lower()}:{port}" for name in names)
    return Listening(listener, f"http://{host}:{port}", hosts)


def serve(app: ASGIApp, listening: Listening) -> None:
    """Serve an application until Ctrl-C, or SIGTERM, which is a `SystemExit` then."""
    import uvicorn

    from probseg.annotate.connections import CONNECTIONS, Connection

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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # uvicorn ends, then sends it again
    uvicorn.Server(settings).run(sockets=[listening.listener])
