"""Routes of tools that send JSON: a wrong question gets 400, and its reason is logged."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from probseg.annotate.security import Guard

_logger = logging.getLogger(__name__)

MAX_BODY = 64 << 20
"""Most bytes of a request's body, which may hold an image as base64."""

Json = dict[str, Any]


def post(path: str, answer: Callable[[Mapping[str, Any]], Json]) -> Route:
    """Return the route of a function of JSON objects, which runs in a thread.

    Args:
        path: Of the route.
        answer: May raise `ValueError` or `OSError`, whose text is the answer with the status 400.
    """

    async def endpoint(request: Request) -> JSONResponse:
        try:
            body = json.loads(await request.body())
            if not isinstance(body, dict):
                msg = f"the body must be a JSON object, got {type(body).__name__}"
                raise ValueError(msg)
            return JSONResponse(await run_in_threadpool(answer, body))
        except (ValueError, OSError, RecursionError) as error:
            _logger.warning("%s: %s", path, error)  # the tools show the status alone
            return JSONResponse({"error": str(error)}, status_code=400)

    return Route(path, endpoint, methods=["POST"])


def guarded(routes: list[Route], hosts: frozenset[str]) -> Guard:
    """Return the ASGI application of some routes.

    Args:
        routes: Of the tool.
        hosts: Accepted values of `Host`; see `Guard`.
    """
    way_out = "start probseg serve with --allow-host and this name"
    return Guard(Starlette(routes=routes), hosts, "", MAX_BODY, way_out)
