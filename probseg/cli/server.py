"""Servers of the verbs annotate and serve."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from typing import TYPE_CHECKING

from probseg.errors import UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp


def need_server() -> None:
    """Raise a `UsageError` unless the packages of a server are installed."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        msg = f'{" and ".join(missing)} not installed; run: pip install "probseg[annotate]"'
        raise UsageError(msg)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; the names in its requests must be the host's.

    Raises:
        UsageError: If the address is of all interfaces, or cannot be used.
    """
    if host in ("0.0.0.0", "::", ""):
        msg = f"--host must be the address of one interface, got {host!r}"
        raise UsageError(msg)
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)  # requests wait until the server runs
    except (OSError, OverflowError) as error:
        msg = f"--host {host} --port {port}: {error}; choose another port, or 0 for any free one"
        raise UsageError(msg) from error
    return listening


def serve(app: ASGIApp, listening: socket.socket) -> None:
    """Serve an application until Ctrl-C."""
    import uvicorn

    settings = uvicorn.Config(app, log_level="warning", server_header=False, timeout_keep_alive=60)
    uvicorn.Server(settings).run(sockets=[listening])
