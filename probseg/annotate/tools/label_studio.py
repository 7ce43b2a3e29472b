"""The machine learning backend of Label Studio: smart keypoints and rectangles become brush masks.

The routes are those that Label Studio calls: `GET /health`, `POST /setup`, `POST /predict` and
`POST /webhook`. Label Studio does not show why a request was refused: the reason is logged.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from xml.etree import ElementTree

from starlette.responses import JSONResponse
from starlette.routing import Route

from probseg.annotate.security import Guard
from probseg.annotate.tools.label_studio_images import Images, Source
from probseg.annotate.tools.posts import Json, guarded, post
from probseg.annotate.tools.prompted import PromptedModel, confidence
from probseg.formats import brush
from probseg.interact.states import InteractionState

ENCODED = 8
"""Encoded images that are kept in memory."""


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
    size: tuple[int, int]
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
        self._model, self._images = model, images
        self._encoded = lru_cache(ENCODED)(self._encode)

    def health(self) -> Json:
        """Return that the server runs."""
        return {"status": "UP", "model_class": "probseg"}

    def setup(self, body: Mapping[str, Any]) -> Json:
        """Return the model's name."""
        return {"model_version": self._model.name}

    def webhook(self, body: Mapping[str, Any]) -> Json:
        """Accept a notice of a change; nothing is trained here."""
        return {"status": "ok"}

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
            return {"results": [], "model_version": self._model.name}
        encoded = self._encoded(self._images.find(question.image, question.task))
        size = encoded.photograph.size
        if size != question.size:
            msg = (
                f"{question.image:.200}: has {size[1]} x {size[0]} pixels, Label Studio shows "
                f"{question.size[1]} x {question.size[0]}; reload the task"
            )
            raise ValueError(msg)
        mask = self._model.answer(encoded, question.positive, question.negative, question.box)
        score = confidence(mask)
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
                "rle": brush.encode(mask.binary),
                "brushlabels": [question.label],
            },
            "score": score,
            "readonly": False,
        }
        result = {
            "result": [region] if mask.binary.any() else [],
            "score": score,
            "model_version": self._model.name,
        }
        return {"results": [result], "model_version": self._model.name}

    def _encode(self, source: Source) -> InteractionState:
        return self._model.encode(self._images.read(source))


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
    height, width = size = regions[0]["original_height"], regions[0]["original_width"]
    positive: list[tuple[float, float]] = []
    negative: list[tuple[float, float]] = []
    box, label = None, ""
    for region in regions:
        kind, value = region["type"], region["value"]
        if kind not in ("keypointlabels", "rectanglelabels"):
            msg = f"`type` must be keypointlabels or rectanglelabels, got {kind!r:.200}"
            raise ValueError(msg)
        label = value[kind][0]
        x, y = value["x"] * width / 100, value["y"] * height / 100
        if kind == "rectanglelabels":
            box = (x, y, x + value["width"] * width / 100, y + value["height"] * height / 100)
        else:
            (positive if region.get("is_positive", True) else negative).append((x, y))
    task = body["tasks"][0]
    number, address = int(task["id"]), str(task["data"][key])
    return Question(address, number, size, positive, negative, box, label, tag, image_tag)


def brush_tags(label_config: str) -> tuple[str, str, str]:
    """Return the names of the tags `BrushLabels` and `Image`, and the image's key in tasks.

    Raises:
        ValueError: If the labelling interface has no such tags.
    """
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


def create_app(backend: Backend, hosts: frozenset[str]) -> Guard:
    """Return the ASGI application.

    Args:
        backend: Answers the requests.
        hosts: Accepted values of `Host`; see `Guard`.
    """
    routes = [
        Route("/health", lambda request: JSONResponse(backend.health()), methods=["GET"]),
        post("/setup", backend.setup),
        post("/predict", backend.predict),
        post("/webhook", backend.webhook),
    ]
    return guarded(routes, hosts)
