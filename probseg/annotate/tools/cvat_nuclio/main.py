"""Handler of a serverless function of CVAT; nuclio calls `init_context` once, then `handler`."""

import base64
import json
import os
from functools import lru_cache
from typing import Any

from probseg.annotate.tools.prompted import PromptedModel
from probseg.images import decode_image

ENCODED = 4
"""Encoded images that are kept in memory; each click sends the image again."""


def init_context(context: Any) -> None:  # noqa: ANN401
    """Load the model."""
    model = PromptedModel(os.environ["PROBSEG_MODEL"])
    context.user_data.model = model
    context.user_data.encoded = lru_cache(ENCODED)(lambda image: model.encode(decode_image(image)))


def handler(context: Any, event: Any) -> Any:  # noqa: ANN401
    """Answer the prompts of a request with `{"mask": rows of 0 and 1}`."""
    try:
        body = event.body
        encoded = context.user_data.encoded(base64.b64decode(body["image"], validate=True))
        corners = body.get("obj_bbox")
        box = (*corners[0], *corners[1]) if corners else None
        points = body["pos_points"], body["neg_points"]
        mask = context.user_data.model.answer(encoded, *points, box)
    except ValueError as error:
        answer, status = {"error": str(error)}, 400
    else:
        answer, status = {"mask": mask.binary.astype(int).tolist()}, 200
    return context.Response(
        body=json.dumps(answer), headers={}, content_type="application/json", status_code=status
    )
