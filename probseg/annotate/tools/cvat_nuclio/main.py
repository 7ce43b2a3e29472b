"""Serverless function of CVAT; nuclio calls `init_context` once, then `handler`."""

import base64
import json
import os
from functools import lru_cache
from typing import Any, NamedTuple

from probseg.annotate.tools.prompted import PromptedModel
from probseg.formats.regions import as_region
from probseg.images import decode_image

ENCODED = 4
"""Encoded images that are kept in memory; each click sends the image again."""


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
    context.user_data.encoded = lru_cache(ENCODED)(lambda image: model.encode(decode_image(image)))


def handler(context: Any, event: Any) -> Any:  # noqa: ANN401
    """Answer the prompts of a request.

    Returns:
        `{"mask": rows of 0 and 1, "bounds": [left, top, right, bottom]}`, the mask inside of the
        bounds, whose last row and column belong to it; the first pixel alone, as 0, where there is
        no object. Status 400 and `{"error": reason}` where the request cannot be answered.
    """
    answer: dict[str, Any]
    try:
        question = asked(event.body)
        encoded = context.user_data.encoded(question.image)
        mask = context.user_data.model.answer(encoded, *question[1:])
    except ValueError as error:
        answer, status = {"error": str(error)}, 400
    else:
        region, status = as_region(mask.binary), 200
        height, width = region.inside.shape
        bounds = [region.x, region.y, region.x + width - 1, region.y + height - 1]
        rows = region.inside.astype(int).tolist()
        answer = {"mask": rows or [[0]], "bounds": bounds if rows else [0, 0, 0, 0]}
    return context.Response(
        body=json.dumps(answer, separators=(",", ":")),
        headers={},
        content_type="application/json",
        status_code=status,
    )


def asked(body: Any) -> Question:  # noqa: ANN401
    """Return the question of a request's body.

    Raises:
        ValueError: If the body is no JSON object, or a part of it is missing or malformed.
    """
    try:
        image = base64.b64decode(body["image"], validate=True)
        positive, negative = (
            [(float(x), float(y)) for x, y in body[key]] for key in ("pos_points", "neg_points")
        )
        box = None
        if body.get("obj_bbox"):
            (x0, y0), (x1, y1) = body["obj_bbox"]
            box = (float(x0), float(y0), float(x1), float(y1))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        msg = (
            "the body must be a JSON object (Content-Type: application/json) with `image` in "
            "base64, `pos_points` and `neg_points`, [[x, y], ...], and perhaps `obj_bbox`, "
            f"[[x0, y0], [x1, y1]]: {error!r}"
        )
        raise ValueError(msg) from error
    return Question(image, positive, negative, box)
