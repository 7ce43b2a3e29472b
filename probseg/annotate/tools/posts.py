"""Routes of tools that send JSON: a wrong question gets 400, and its reason is logged."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from probseg.annotate.responses import AsciiJson, refusal
from probseg.annotate.security import Guard

_logger = logging.getLogger(__name__)

MAX_BODY = 64 << 20
"""Most bytes of a request's body, which may hold an image as base64."""

MAX_COMMAS = 100_000
"""Most commas of a body: each value takes 25 times as much memory as in the text."""

Json = dict[str, Any]


def post(path: str, answer: Callable[[Mapping[str, Any]], Json]) -> Route:
    """Return the route of a function of JSON objects; one request is answered at a time.

    Args:
        path: Of the route.
        answer: May raise `ValueError` or `OSError`, whose text is the answer with the status 400.
    """
    worker = ThreadPoolExecutor(1)  # an image may take a gigabyte, which threads do not share

    def answered(content: bytes) -> AsciiJson:
        if content.count(b",") > MAX_COMMAS:
            msg = f"the body must have at most {MAX_COMMAS} commas"
            raise ValueError(msg)
        body = json.loads(content)
        if not isinstance(body, dict):
            msg = f"the body must be a JSON object, got {type(body).__name__}"
            raise ValueError(msg)
        return AsciiJson(answer(body))

    async def endpoint(request: Request) -> AsciiJson:
        content = await request.body()
        try:
            return await asyncio.get_running_loop().run_in_executor(worker, answered, content)
        except (ValueError, OSError, RecursionError) as error:
            # The tools show the status alone; a terminal obeys control characters.
            text = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in str(error))
            _logger.warning("%s: %s", path, text)
            return refusal(400, str(error))

    return Route(path, endpoint, methods=["POST"])


def guarded(routes: list[Route], hosts: frozenset[str], password: str | None) -> Guard:
    """Return the ASGI application of some routes.

    Args:
        routes: Of the tool.
        hosts: Accepted values of `Host`; see `Guard`.
        password: That the tool must send; None for none.
    """
    way_out = "start probseg serve with --allow-host and this name"
    return Guard(Starlette(routes=routes), hosts, "", MAX_BODY, way_out, password=password)
