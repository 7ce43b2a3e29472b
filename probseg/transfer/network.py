"""Connections: the offline mode and errors."""

from __future__ import annotations

import contextlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import NamedTuple

import probseg
from probseg.errors import DownloadError

Progress = Callable[[str, int, int | None], None]
"""Called with the name of a task, the bytes or items done, and their total (None: unknown)."""

TIMEOUT = 60.0
"""Seconds that a server may be silent."""

BLOCK = 1 << 16
"""Bytes read at once."""


class WayOut(NamedTuple):
    """The ends of error messages.

    Args:
        address: Where else to fetch from.
        disk: Where else to store.
    """

    address: str
    disk: str


class InterruptedTransferError(Exception):
    """The connection broke, or the server is busy: another attempt may succeed."""


class ChangedFileError(InterruptedTransferError):
    """The file on the server has changed since a part of it was downloaded."""


def silent(what: str, done: int, total: int | None) -> None:
    """Report no progress."""


def offline() -> bool:
    """Return whether `PROBSEG_OFFLINE` or `HF_HUB_OFFLINE` forbids to use the network."""
    values = (os.environ.get(name, "") for name in ("PROBSEG_OFFLINE", "HF_HUB_OFFLINE"))
    return any(value.lower() in ("1", "on", "yes", "true") for value in values)


def is_remote(address: str) -> bool:
    """Return whether an address is of the web, and not the path of a file."""
    return address.startswith(("http://", "https://"))


@contextlib.contextmanager
def opened(
    url: str, headers: dict[str, str], way_out: WayOut
) -> Iterator[http.client.HTTPResponse]:
    """Open an address for `next_block`.

    Raises:
        DownloadError: If the server does not have it.
        InterruptedTransferError: If another attempt may succeed.
    """
    always = {
        "User-Agent": f"probseg/{probseg.__version__}",
        "Accept-Encoding": "identity",  # ranges of a compressed transfer would be of no use
    }
    try:
        request = urllib.request.Request(url, headers={**always, **headers})
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        msg = f"HTTP {error.code} {error.reason}"
        if error.code == 416:  # the file is shorter than the part
            raise ChangedFileError(msg) from error
        if error.code in (408, 429) or error.code >= 500:
            raise InterruptedTransferError(msg) from error
        msg = f"{url}: {msg}; the file has moved or is not public: {way_out.address}"
        raise DownloadError(msg) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        msg = f"no connection ({error})"
        raise InterruptedTransferError(msg) from error
    with response:
        yield response


def next_block(response: http.client.HTTPResponse) -> bytes:
    """Return the next bytes of an answer, none at its end.

    Raises:
        InterruptedTransferError: If the connection broke.
    """
    try:
        return response.read1(BLOCK)
    except (OSError, http.client.HTTPException) as error:
        msg = f"the connection broke ({error!r})"
        raise InterruptedTransferError(msg) from error
