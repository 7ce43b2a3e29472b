"""The machine learning backend of Label Studio: smart keypoints and rectangles become brush masks.

The routes are those that Label Studio calls: `GET /health`, `POST /setup`, `POST /predict` and
`POST /webhook`. Label Studio does not show why a request was refused: the reason is logged.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple
from xml.etree import ElementTree

from starlette.requests import Request
from starlette.routing import Route

from probseg.annotate.responses import AsciiJson
from probseg.annotate.security import Guard
from probseg.annotate.steps import check_number
from probseg.annotate.tools.label_studio_images import Images
from probseg.annotate.tools.posts import Json, guarded, post
from probseg.annotate.tools.prompted import Encodings, PromptedModel, confidence
from probseg.formats import brush

MAX_CONFIG = 1 << 20
"""Most characters of a labelling interface, which takes fifty times as much memory when read."""


class Question(NamedTuple):
    """A request for the mask of one object.

    Args:
        image: Address of the image in the task.
        task: Number of the task.
        size: `(H, W)` of the image as Label Studio shows it.
        positive: Points `(x, y)` on the object, in pixels.
        negative: Points on the background.
        box: `(x0, y0, x1, y1)`, or None.
        label: Chosen by the annotator.
        tag: Name of the tag `BrushLabels`.
        image_tag: Name of the tag `Image`.
    """

    image: str
    task: int
    size: tuple[float, float]
    positive: list[tuple[float, float]]
    negative: list[tuple[float, float]]
    box: tuple[float, float, float, float] | None
    label: str
    tag: str
    image_tag: str


class Backend:
    """Answers the requests of Label Studio.

    Args:
        model: Answers the prompts.
        images: Reads the images of tasks.
    """

    def __init__(self, model: PromptedModel, images: Images) -> None:
        self.model, self._images = model, images
        self._encodings = Encodings(model)

    def predict(self, body: Mapping[str, Any]) -> Json:
        """Return the mask of the object under the prompts; no result without prompts.

        Raises:
            ValueError: If the request is malformed, its image cannot be read, or a prompt is
                outside of it.
        """
        try:
            question = asked(body)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            msg = f"the body is not a request of Label Studio for a prediction: {error!r}"
            raise ValueError(msg) from error
        if question is None:
            return {"results": [], "model_version": self.model.name}
        source = self._images.find(question.image, question.task)
        encoded = self._encodings.find(source.key, lambda: self._images.read(source))
        size = encoded.photograph.size
        if size != question.size:
            msg = (
                f"{question.image:.200}: has {size[1]} x {size[0]} pixels, Label Studio shows "
                f"{question.size[1]:g} x {question.size[0]:g}; reload the task"
            )
            raise ValueError(msg)
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
    """Return the question of a request to `/predict`; None without prompts.

    Raises:
        ValueError: If the labelling interface has no brush, a region is no prompt, or a prompt is
            outside of the image.
        AttributeError, IndexError, KeyError, TypeError: If the request is malformed.
    """
    regions = ((body.get("params") or {}).get("context") or {}).get("result")
    if not regions:
        return None
    tag, image_tag, key = brush_tags(body["label_config"])
    names = ("original_height", "original_width")
    height, width = (check_number(regions[0][name], name) for name in names)
    positive: list[tuple[float, float]] = []
    negative: list[tuple[float, float]] = []
    box, label = None, ""
    for region in regions:
        kind, value = region["type"], region["value"]
        if kind not in ("keypointlabels", "rectanglelabels"):
            msg = f"`type` must be keypointlabels or rectanglelabels, got {kind!r:.200}"
            raise ValueError(msg)
        label = value[kind][0]
        names = ("x", "y", "width", "height") if kind == "rectanglelabels" else ("x", "y")
        shares = [check_number(value[name], name) / 100 for name in names]
        x, y, *sides = (share * (width, height)[n % 2] for n, share in enumerate(shares))
        if sides:
            box = (x, y, x + sides[0], y + sides[1])
        else:
            (positive if region.get("is_positive", True) else negative).append((x, y))
    task = body["tasks"][0]
    if not isinstance(task["id"], int):
        msg = f"`id` of a task must be a whole number, got {task['id']!r:.200}"
        raise ValueError(msg)
    address = str(task["data"][key])
    size = (height, width)
    return Question(address, task["id"], size, positive, negative, box, label, tag, image_tag)


def brush_tags(label_config: str) -> tuple[str, str, str]:
    """Return the names of the tags `BrushLabels` and `Image`, and the image's key in tasks.

    Raises:
        ValueError: If the labelling interface has no such tags.
    """
    if len(label_config) > MAX_CONFIG:
        msg = f"`label_config` must have at most {MAX_CONFIG} characters"
        raise ValueError(msg)
    try:
        root = ElementTree.fromstring(label_config)
    except ElementTree.ParseError as error:
        msg = f"`label_config` must be XML: {error}"
        raise ValueError(msg) from error
    images = {image.get("name"): image.get("value", "") for image in root.iter("Image")}
    for labels in root.iter("BrushLabels"):
        name, image = labels.get("name"), labels.get("toName")
        if name and image and image in images:
            return name, image, images[image].removeprefix("$")
    msg = (
        "`label_config` must have a tag BrushLabels for a tag Image; docs/integrations.md has an "
        "example of a labelling interface"
    )
    raise ValueError(msg)


def create_app(backend: Backend, hosts: frozenset[str], password: str | None = None) -> Guard:
    """Return the ASGI application.

    Args:
        backend: Answers the requests.
        hosts: Accepted values of `Host`; see `Guard`.
        password: That Label Studio must send; None for none.
    """

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
