"""Images of Label Studio's tasks: from the task itself, from a folder, or from Label Studio.

No other address is ever fetched: a task may name any.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Hashable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

import numpy as np
import numpy.typing as npt

from probseg.images import decode_image, read_image

LARGEST = 256 << 20
"""Most bytes of an image that is fetched."""

SECONDS = 60.0
"""How long Label Studio may take to answer."""

CLOUDS = ("s3", "gs", "azure-blob")
"""Schemes of files that Label Studio passes on from its storages."""

SERVED = re.compile(r"/data/|/(tasks|projects)/[0-9]+/resolve/")
"""Beginnings of the paths at which Label Studio has images."""

_UNCHANGED = "%/?=&+,;:@!$'()*~[]"
"""Characters of an address that are not encoded again."""


class Source(NamedTuple):
    """Where an image is.

    Args:
        place: A file, the content of one, or the address of one in Label Studio (path and query).
        changed: Time of the last change of a file, in nanoseconds.
    """

    place: Path | bytes | str
    changed: int = 0

    @property
    def key(self) -> Hashable:
        """What tells it apart from others."""
        place = self.place
        return (hashlib.sha256(place).digest() if isinstance(place, bytes) else place, self.changed)


class Server:
    """A server of Label Studio, which is asked for images with a token.

    Args:
        address: `http://HOST:PORT`, perhaps with the path at which it is served.
        token: Of a user who may see the images: a personal access token, or a legacy token.
    """

    def __init__(self, address: str, token: str) -> None:
        self.address, self._token = address.rstrip("/"), token
        self._opener = urllib.request.build_opener(_NoRedirect)

    def read(self, path: str) -> bytes:
        """Return a file.

        Args:
            path: Begins with `/`; with the query.

        Raises:
            ValueError: If the server does not answer with the file, or it is too large.
        """
        url = self.address + quote(path.partition("#")[0], safe=_UNCHANGED)
        content = self._answer(url, urllib.request.Request(url, headers=self._credentials()))
        if len(content) > LARGEST:
            msg = f"{url:.200}: has more than {LARGEST >> 20} MiB, the most that is fetched"
            raise ValueError(msg)
        return content

    def _credentials(self) -> dict[str, str]:
        """Return the header of a request; a personal token is changed into one of five minutes."""
        if self._token.count(".") != 2:
            return {"Authorization": f"Token {self._token}"}
        url, body = f"{self.address}/api/token/refresh", json.dumps({"refresh": self._token})
        headers = {"Content-Type": "application/json"}
        answer = self._answer(url, urllib.request.Request(url, body.encode(), headers))
        return {"Authorization": f"Bearer {json.loads(answer)['access']}"}

    def _answer(self, url: str, request: urllib.request.Request) -> bytes:
        try:
            with self._opener.open(request, timeout=SECONDS) as answer:
                content: bytes = answer.read(LARGEST + 1)
        except urllib.error.HTTPError as error:
            reason = {
                401: "the token in LABEL_STUDIO_API_KEY is not accepted; make a new one in "
                "Account & Settings",
                403: "the user of the token may not see this; use the token of another user",
                404: "there is no such file; check the storage and the address of the task",
            }.get(error.code, error.reason)
            if 300 <= error.code < 400:
                reason = (
                    "the file is at another address, which is not fetched; switch off the "
                    "pre-signed URLs of the storage"
                )
            msg = f"{url:.200}: Label Studio answers with {error.code}: {reason}"
            raise ValueError(msg) from error
        except OSError as error:
            msg = f"{url:.200}: cannot be read ({error}); check --fetch-from"
            raise ValueError(msg) from error
        return content


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves a redirection as the error that it is: it may lead to any host."""

    def redirect_request(self, *_: object) -> None:
        """Follow no redirection."""


class Images:
    """Finds and reads the images of tasks.

    Args:
        folder: Files outside of it are not read.
        server: Has what is not in the folder; None to fetch nothing.
    """

    def __init__(self, folder: Path, server: Server | None = None) -> None:
        self._folder, self._server = folder.resolve(), server

    def find(self, address: str, task: int) -> Source:
        """Return where an image is.

        Args:
            address: Of the image, in the task.
            task: Number of the task.

        Raises:
            ValueError: If it is at a place that is not read.
        """
        if address.startswith("data:"):
            try:
                return Source(base64.b64decode(address.partition(";base64,")[2], validate=True))
            except binascii.Error as error:
                msg = f"{address:.40}...: the image of the task is not base64 ({error})"
                raise ValueError(msg) from error
        inside = _path_in_data(address)
        path = None if inside is None else Path(os.path.realpath(self._folder / inside))
        if path is not None and path.is_relative_to(self._folder) and path.is_file():
            return Source(path, path.stat().st_mtime_ns)
        if self._server is not None:
            fetched = _path_on(self._server.address, address, task)
            if fetched is not None:
                return Source(fetched)
            msg = f"{address:.200}: is not at {self._server.address}, and is not fetched"
        elif inside is not None:
            msg = f"{inside:.200}: no such file in the folder of --images, {self._folder}"
        else:
            msg = (
                f"{address:.200}: is not fetched; give tasks images of local storage "
                "(/data/local-files/?d=...), uploaded ones (/data/upload/...) or base64 "
                "(data:image/png;base64,...), or start probseg serve with --fetch-from"
            )
        raise ValueError(msg)

    def read(self, source: Source) -> npt.NDArray[np.uint8]:
        """Return an image, RGB, shape `(H, W, 3)`.

        Raises:
            ValueError: If it cannot be fetched or decoded.
        """
        if isinstance(source.place, Path):
            return read_image(source.place)
        if isinstance(source.place, bytes):
            return decode_image(source.place)
        assert self._server is not None, "`find` gives an address only where there is a server"
        return decode_image(self._server.read(source.place))


def _path_in_data(address: str) -> str | None:
    """Return the path of an image under the document root or the folder of media."""
    parts = urlsplit(address)
    inside = unquote(parts.path).partition("/data/")[2]
    if inside.rstrip("/") == "local-files":
        return parse_qs(parts.query).get("d", [""])[0]
    return inside if inside.startswith("upload/") else None


def _path_on(server: str, address: str, task: int) -> str | None:
    """Return path and query with which a server answers for an image; None if it is elsewhere."""
    if address.partition("://")[0] in CLOUDS:
        code = base64.urlsafe_b64encode(address.encode()).decode()
        return f"/tasks/{task}/resolve/?fileuri={code}"
    path = address.removeprefix(server)
    climbs = ".." in unquote(urlsplit(path).path).split("/")
    return path if SERVED.match(path) and not climbs else None
