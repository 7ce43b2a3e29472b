"""Serverless function of CVAT; nuclio calls `init_context` once, then `handler`."""

import base64
import hashlib
import json
import os
from typing import Any, NamedTuple

import numpy as np

from probseg.annotate.server import has_password
from probseg.annotate.tools.prompted import Encodings, PromptedModel
from probseg.formats.prompts import parse_number
from probseg.formats.regions import as_region
from probseg.images import decode_image


class Question(NamedTuple):
    """A request: the file of an image, points `(x, y)` in pixels, and a box or None."""

    image: bytes
    positive: list[tuple[float, float]]
    negative: list[tuple[float, float]]
    box: tuple[float, float, float, float] | None


def init_context(context: Any) -> None:  # noqa: ANN401
    """Load the model."""
    model = PromptedModel(os.environ["PROBSEG_MODEL"])
    context.user_data.model = model
    context.user_data.encodings = Encodings(model)


def handler(context: Any, event: Any) -> Any:  # noqa: ANN401
    """Answer the prompts of a request.

    Returns:
        `{"mask": rows of 0 and 1, "bounds": [left, top, right, bottom]}`, the mask inside of the
        bounds, whose last row and column belong to it; the first pixel alone, as 0, where there is
        no object. Status 400 and `{"error": reason}` where the request cannot be answered, 401
        without the password in PROBSEG_TOKEN, if there is one.
    """
    password = os.environ.get("PROBSEG_TOKEN")
    try:
        if password and not has_password(event.headers, password):
            status, body = 401, json.dumps({"error": "the password is missing or wrong"})
        else:
            status, body = 200, _answer(context.user_data, asked(event.body))
    except ValueError as error:
        status, body = 400, json.dumps({"error": str(error)})
    return context.Response(
        body=body, headers={}, content_type="application/json", status_code=status
    )


def _answer(data: Any, question: Question) -> str:  # noqa: ANN401
    """Write the mask, with two characters for each pixel: lists of numbers take 30 bytes."""
    name = hashlib.sha256(question.image).digest()
    encoded = data.encodings.find(name, lambda: decode_image(question.image))
    region = as_region(data.model.answer(encoded, *question[1:]).binary)
    if not region.inside.size:
        return '{"mask":[[0]],"bounds":[0,0,0,0]}'
    height, width = region.inside.shape
    text = np.full((height, 2 * width), ord(","), np.uint8)
    text[:, ::2] = ord("0")
    text[:, ::2] += region.inside
    rows = "],[".join(row[:-1].tobytes().decode() for row in text)
    bounds = [region.x, region.y, region.x + width - 1, region.y + height - 1]
    return f'{{"mask":[[{rows}]],"bounds":{json.dumps(bounds)}}}'


def asked(body: Any) -> Question:  # noqa: ANN401
    """Return the question of a request's body.

    Raises:
        ValueError: If the body is not a JSON object, or a part of it is missing or malformed.
    """
    try:
        image = base64.b64decode(body["image"], validate=True)
        positive, negative = (
            [(parse_number(x, key), parse_number(y, key)) for x, y in body[key]]
            for key in ("pos_points", "neg_points")
        )
        box = None
        if body.get("obj_bbox"):
            (x0, y0), (x1, y1) = body["obj_bbox"]
            x0, y0, x1, y1 = (parse_number(number, "obj_bbox") for number in (x0, y0, x1, y1))
            box = (x0, y0, x1, y1)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            "the body must be a JSON object (Content-Type: application/json) with `image` in "
            "base64, `pos_points` and `neg_points`, [[x, y], ...], and perhaps `obj_bbox`, "
            f"[[x0, y0], [x1, y1]]: {error!r}"
        ) from error
    return Question(image, positive, negative, box)
