"""The remote server of X-AnyLabeling: points and a rectangle become polygons.

The routes are those of X-AnyLabeling-Server: `GET /health`, `GET /v1/models`,
`GET /v1/models/ID/info` and `POST /v1/predict`. Each request brings the image and all prompts of an
object.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from probseg.annotate.http import Json, guarded, post
from probseg.annotate.server import Guard
from probseg.annotate.tools.prompted import Encodings, PromptedModel, confidence
from probseg.formats import polygons
from probseg.formats.prompts import parse_number
from probseg.images import decode_image

MODEL_ID = "probseg"

UNFINISHED = "AUTOLABEL_OBJECT"
"""Label of shapes for which X-AnyLabeling asks when the object is finished."""

WIDGETS = (
    "button_add_point",
    "button_remove_point",
    "button_add_rect",
    "button_clear",
    "button_finish_object",
)
"""Controls that X-AnyLabeling shows for the model."""

TOLERANCE = 1.0
"""Largest distance in pixels of the polygons from the exact outline."""


class Backend:
    """Answers the requests of X-AnyLabeling."""

    def __init__(self, model: PromptedModel) -> None:
        self._model = model
        self._encodings = Encodings(model)

    def info(self) -> Json:
        """Describe the model, as X-AnyLabeling lists it."""
        return {
            "model_id": MODEL_ID,
            "display_name": f"probseg {self._model.name}",
            "widgets": [{"name": name, "value": None} for name in WIDGETS],
            "params": {},
            "batch_processing_mode": None,  # nothing is found without prompts
        }

    def predict(self, body: Mapping[str, Any]) -> Json:
        """Return the polygons of the object under the prompts; none without prompts."""
        try:
            image, marks = body["image"], (body.get("params") or {}).get("marks") or []
            positive, negative, box = _prompts(marks)
            content = base64.b64decode(image.rpartition(",")[2], validate=True)
        except (AttributeError, KeyError, TypeError, binascii.Error) as error:
            raise ValueError(
                f"the body is not a request of X-AnyLabeling for a prediction: {error!r}"
            ) from error
        if body.get("model") != MODEL_ID:
            raise ValueError(f"`model` must be {MODEL_ID!r}, got {body.get('model')!r:.200}")
        shapes: list[Json] = []
        if positive or box is not None:
            name = hashlib.sha256(content).digest()
            encoded = self._encodings.find(name, lambda: decode_image(content))
            mask = self._model.answer(encoded, positive, negative, box)
            score, inside = round(confidence(mask), 3), mask.binary
            del mask  # its probabilities take four times as much memory
            for part in polygons.trace(inside, TOLERANCE):
                points = part.outer.tolist()
                shape = {"label": UNFINISHED, "shape_type": "polygon", "score": score}
                shapes.append({**shape, "points": [*points, points[0]]})
        # Otherwise X-AnyLabeling would remove the objects that are finished.
        return {"success": True, "data": {"shapes": shapes, "description": "", "replace": False}}


def _prompts(
    marks: list[Mapping[str, Any]],
) -> tuple[list[tuple[float, float]], list[tuple[float, float]], list[float] | None]:
    """Return the points on the object and on the background, and the rectangle.

    X-AnyLabeling rounds points down to whole pixels.
    """
    points: dict[int, list[tuple[float, float]]] = {0: [], 1: []}
    boxes: list[list[float]] = []
    for mark in marks:
        kind, label = mark["type"], mark["label"]
        data = [parse_number(number, "data") for number in mark["data"]]
        if kind == "point" and len(data) == 2 and label in points:
            points[label].append((data[0], data[1]))
        elif kind == "rectangle" and len(data) == 4 and label == 1:
            boxes.append([*map(min, data[:2], data[2:]), *map(max, data[:2], data[2:])])
        else:
            raise ValueError(
                f"a mark must be a point or a rectangle of an object, got {mark!r:.200}"
            )
    if len(boxes) > 1:
        raise ValueError(
            f"an object must have one rectangle, got {len(boxes)}; finish or clear it first"
        )
    return points[1], points[0], boxes[0] if boxes else None


def create_app(backend: Backend, hosts: frozenset[str], password: str | None = None) -> Guard:
    """Return the ASGI application."""

    async def models(request: Request) -> JSONResponse:
        return JSONResponse({"success": True, "data": {MODEL_ID: backend.info()}})

    async def info(request: Request) -> JSONResponse:
        return JSONResponse({"success": True, "data": backend.info()})

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "healthy", "models_loaded": 1})

    routes = [
        Route("/health", health, methods=["GET"]),
        Route("/v1/models", models, methods=["GET"]),
        Route(f"/v1/models/{MODEL_ID}/info", info, methods=["GET"]),
        post("/v1/predict", backend.predict),
    ]
    return guarded(routes, hosts, password)
