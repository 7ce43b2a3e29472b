"""The machine learning backend of Label Studio: smart keypoints and rectangles become brush masks.

The routes are those that Label Studio calls: `GET /health`, `POST /setup`, `POST /predict` and
`POST /webhook`. Label Studio does not show why a request was refused: the reason is logged.

Images come from the task itself, from a folder, or from Label Studio. No other address is ever
fetched: a task may name any.
"""

from __future__ import annotations

import base64
import binascii
import cmath
import hashlib
import json
import math
import os
import re
import urllib.error
import urllib.request
import uuid
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.routing import Route

from probseg.annotate.http import AsciiJson, Json, guarded, post
from probseg.annotate.server import Guard
from probseg.annotate.tools.prompted import Encodings, PromptedModel, confidence
from probseg.formats import brush
from probseg.formats.prompts import parse_number
from probseg.images import decode_image, read_image

MAX_CONFIG = 1 << 20
"""Maximum characters of a labelling interface, which takes fifty times as much memory when read."""


LARGEST = 256 << 20
"""Maximum bytes of an image that is fetched."""

SECONDS = 60.0
"""How long Label Studio may take to answer."""

CLOUDS = ("s3", "gs", "azure-blob")
"""Schemes of files that Label Studio passes on from its storages."""

SERVED = re.compile(r"/data/|/(tasks|projects)/[0-9]+/resolve/")
"""Beginnings of the paths at which Label Studio has images."""

_UNCHANGED = "%/?=&+,;:@!$'()*~[]"
"""Characters of an address that are not encoded again."""


class Source(NamedTuple):
    """Source of an image."""

    # A file, the content of one, or the address of one in Label Studio (path and query)
    place: Path | bytes | str
    changed: int = 0  # time of the last change of a file, in nanoseconds

    @property
    def key(self) -> Hashable:
        """Key of the image in a cache."""
        place = self.place
        return (hashlib.sha256(place).digest() if isinstance(place, bytes) else place, self.changed)


class Server:
    """A server of Label Studio, which is asked for images with a token."""

    def __init__(self, address: str, token: str) -> None:
        self.address, self._token = address.rstrip("/"), token
        self._opener = urllib.request.build_opener(_NoRedirect)

    def read(self, path: str) -> bytes:
        """Return a file."""
        url = self.address + quote(path.partition("#")[0], safe=_UNCHANGED)
        content = self._answer(url, urllib.request.Request(url, headers=self._credentials()))
        if len(content) > LARGEST:
            raise ValueError(
                f"{url:.200}: has more than {LARGEST >> 20} MiB, the most that is fetched"
            )
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
            raise ValueError(
                f"{url:.200}: Label Studio answers with {error.code}: {reason}"
            ) from error
        except OSError as error:
            raise ValueError(f"{url:.200}: cannot be read ({error}); check --fetch-from") from error
        return content


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves a redirection as the error that it is: it may lead to any host."""

    def redirect_request(self, *_: object) -> None:
        """Follow no redirection."""


class Images:
    """Finds and reads the images of tasks."""

    def __init__(self, folder: Path, server: Server | None = None) -> None:
        self._folder, self._server = folder.resolve(), server

    def find(self, address: str, task: int) -> Source:
        """Return where an image is."""
        if address.startswith("data:"):
            try:
                return Source(base64.b64decode(address.partition(";base64,")[2], validate=True))
            except binascii.Error as error:
                raise ValueError(
                    f"{address:.40}...: the image of the task is not base64 ({error})"
                ) from error
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
        """Return an image, RGB, shape `(H, W, 3)`."""
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


class Question(NamedTuple):
    """A request for the mask of one object."""

    image: str  # address of the image in the task
    task: int  # number of the task
    size: tuple[float, float]  # `(H, W)` of the image as Label Studio shows it
    positive: list[tuple[float, float]]  # points `(x, y)` on the object, in pixels
    negative: list[tuple[float, float]]  # points on the background
    box: tuple[float, float, float, float] | None  # `(x0, y0, x1, y1)`, or None
    label: str  # chosen by the annotator
    tag: str  # name of the tag `BrushLabels`
    image_tag: str  # name of the tag `Image`


class Backend:
    """Answers the requests of Label Studio."""

    def __init__(self, model: PromptedModel, images: Images) -> None:
        self.model, self._images = model, images
        self._encodings = Encodings(model)

    def predict(self, body: Mapping[str, Any]) -> Json:
        """Return the mask of the object under the prompts; no result without prompts."""
        try:
            question = asked(body)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(
                f"the body is not a request of Label Studio for a prediction: {error!r}"
            ) from error
        if question is None:
            return {"results": [], "model_version": self.model.name}
        source = self._images.find(question.image, question.task)
        encoded = self._encodings.find(source.key, lambda: self._images.read(source))
        size = encoded.photograph.size
        if size != question.size:
            raise ValueError(
                f"{question.image:.200}: has {size[1]} x {size[0]} pixels, Label Studio shows "
                f"{question.size[1]:g} x {question.size[0]:g}; reload the task"
            )
        mask = self.model.answer(encoded, question.positive, question.negative, question.box)
        score, inside = confidence(mask), mask.binary
        del mask  # its probabilities take four times as much memory
        region = {
            "id": uuid.uuid4().hex[:10],
            "type": "brushlabels",
            "from_name": question.tag,
            "to_name": question.image_tag,
            "original_width": size[1],
            "original_height": size[0],
            "image_rotation": 0,
            "value": {
                "format": "rle",
                "rle": brush.encode(inside),
                "brushlabels": [question.label],
            },
            "score": score,
            "readonly": False,
        }
        result = {
            "result": [region] if inside.any() else [],
            "score": score,
            "model_version": self.model.name,
        }
        return {"results": [result], "model_version": self.model.name}


def asked(body: Mapping[str, Any]) -> Question | None:
    """Return the question of a request to `/predict`; None without prompts."""
    regions = ((body.get("params") or {}).get("context") or {}).get("result")
    if not regions:
        return None
    tag, image_tag, key = brush_tags(body["label_config"])
    names = ("original_height", "original_width")
    height, width = (parse_number(regions[0][name], name) for name in names)
    positive: list[tuple[float, float]] = []
    negative: list[tuple[float, float]] = []
    box, label = None, ""
    for region in regions:
        kind, value = region["type"], region["value"]
        if kind not in ("keypointlabels", "rectanglelabels"):
            raise ValueError(f"`type` must be keypointlabels or rectanglelabels, got {kind!r:.200}")
        label = value[kind][0]
        sizes = ("width", "height") if kind == "rectanglelabels" else ()
        shares = [parse_number(value[name], name) / 100 for name in ("x", "y", *sizes)]
        x, y, *sides = (share * (width, height)[n % 2] for n, share in enumerate(shares))
        if sides:
            # Around a rectangle that is turned clockwise about its upper left corner
            turn = cmath.rect(1, math.radians(parse_number(value.get("rotation", 0), "rotation")))
            turned = [turn * corner for corner in (0, sides[0], complex(*sides), 1j * sides[1])]
            columns, rows = [x + at.real for at in turned], [y + at.imag for at in turned]
            box = (min(columns), min(rows), max(columns), max(rows))
        else:
            (positive if region.get("is_positive", True) else negative).append((x, y))
    task = body["tasks"][0]
    if not isinstance(task["id"], int):
        raise ValueError(f"`id` of a task must be a whole number, got {task['id']!r:.200}")
    address = str(task["data"][key])
    size = (height, width)
    return Question(address, task["id"], size, positive, negative, box, label, tag, image_tag)


def brush_tags(label_config: str) -> tuple[str, str, str]:
    """Return the names of the tags `BrushLabels` and `Image`, and the image's key in tasks."""
    if len(label_config) > MAX_CONFIG:
        raise ValueError(f"`label_config` must have at most {MAX_CONFIG} characters")
    try:
        root = ElementTree.fromstring(label_config)
    except ElementTree.ParseError as error:
        raise ValueError(f"`label_config` must be XML: {error}") from error
    images = {image.get("name"): image.get("value", "") for image in root.iter("Image")}
    for labels in root.iter("BrushLabels"):
        name, image = labels.get("name"), labels.get("toName")
        if name and image and image in images:
            return name, image, images[image].removeprefix("$")
    raise ValueError(
        "`label_config` must have a tag BrushLabels for a tag Image; docs/integrations.md has an "
        "example of a labelling interface"
    )


def create_app(backend: Backend, hosts: frozenset[str], password: str | None = None) -> Guard:
    """Return the ASGI application."""

    async def health(request: Request) -> AsciiJson:
        return AsciiJson({"status": "UP", "model_class": "probseg"})

    async def setup(request: Request) -> AsciiJson:
        return AsciiJson({"model_version": backend.model.name})

    async def webhook(request: Request) -> AsciiJson:  # of a change; nothing is trained here
        return AsciiJson({"status": "ok"})

    routes = [
        Route("/health", health, methods=["GET"]),
        Route("/setup", setup, methods=["POST"]),
        post("/predict", backend.predict),
        Route("/webhook", webhook, methods=["POST"]),
    ]
    return guarded(routes, hosts, password)
