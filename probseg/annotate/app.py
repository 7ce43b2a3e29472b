"""The routes of the annotation server."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from probseg.annotate.http import EVENTS, AsciiJson, refusal
from probseg.annotate.photographs import Photograph, shown, thumbnail
from probseg.annotate.server import READER, Guard
from probseg.annotate.sessions import Sessions
from probseg.annotate.steps import RequestError
from probseg.annotate.store import MissingError, StaleRevisionError
from probseg.errors import USER_ERRORS, DataError
from probseg.page import SHARED

PAGE = Path(__file__).parent / "page"

FILES = {
    **{path.name: (PAGE, "text/javascript") for path in sorted(PAGE.glob("*.js"))},
    "canvas.js": (SHARED, "text/javascript"),
    "page.css": (SHARED, "text/css"),
    "icon.svg": (SHARED, "image/svg+xml"),
}
"""Files of the page that are served, their folders and media types."""

THUMBNAILS = 2000
"""Thumbnails that are kept in memory, about 15 kilobytes each."""


def create_app(
    sessions: Sessions, hosts: frozenset[str], token: str, reader: str | None = None
) -> Guard:
    """Return the ASGI application that serves the page and its data."""

    @lru_cache(THUMBNAILS)
    def small(photograph: Photograph) -> bytes:
        return thumbnail(photograph)

    async def session(request: Request) -> Response:
        reads = request.scope[READER]
        return await _answered(lambda: {**sessions.begin(), "reader": reads})

    async def events(request: Request) -> Response:
        window = request.query_params.get("window", "")
        photo = None if request.scope[READER] else request.query_params.get("photo")
        news = sessions.windows.listen(window, request, photo)
        return StreamingResponse(news, media_type="text/event-stream")

    def leave(body: dict[str, Any]) -> dict[str, Any]:
        sessions.windows.opens(str(body.get("window")), None)
        return {}

    def model(body: dict[str, Any]) -> dict[str, Any]:
        sessions.choose_model(body.get("name"))
        return sessions.begin()

    def use_learned(body: dict[str, Any]) -> dict[str, Any]:
        sessions.use_learned(use=body.get("use") is True)
        return sessions.begin()

    def image(name: str) -> Response:
        content, media, notice = shown(sessions.photograph(name))
        return Response(content, headers={"x-probseg-notice": notice}, media_type=media)

    photo = sessions.photograph
    routes = [
        Route("/", _file(PAGE / "index.html", "text/html")),
        *(
            Route(f"/static/{name}", _file(folder / name, media))
            for name, (folder, media) in FILES.items()
        ),
        Route("/api/session", session),
        Route(EVENTS, events),
        _post("/api/leave", leave),
        _get("/api/report", sessions.report),
        _get("/api/photos/{name}", lambda name: sessions.describe(photo(name))),
        _post(
            "/api/photos/{name}/open",
            lambda name, body: sessions.open(photo(name), body.get("window")),
        ),
        _get("/api/photos/{name}/image", image),
        _get("/api/photos/{name}/masks", lambda name: sessions.small_masks(photo(name))),
        _get(
            "/api/photos/{name}/outline/{tolerance:float}",
            lambda name, tolerance: sessions.outline(photo(name), tolerance),
        ),
        _get(
            "/api/photos/{name}/thumbnail",
            lambda name: Response(small(photo(name)), media_type="image/jpeg"),
        ),
        _get(
            "/api/photos/{name}/objects/{numbers}/mask",
            lambda name, numbers: sessions.masks(photo(name), numbers),
        ),
        _get("/api/photos/{name}/mask", lambda name: sessions.current_mask(photo(name))),
        _get(
            "/api/photos/{name}/uncertainty",
            lambda name: sessions.uncertainty(photo(name)),
        ),
        _post("/api/photos/{name}/preview", lambda name, body: sessions.preview(photo(name), body)),
        _post(
            "/api/photos/{name}/actions",
            lambda name, body: sessions.act(photo(name), body),
        ),
        _post("/api/photos/{name}/keep", lambda name, body: sessions.keep(photo(name))),
        _get("/api/photos/{name}/without", lambda name: sessions.without_adapting(photo(name))),
        _get("/api/shared", sessions.share),
        _post("/api/settings", lambda body: sessions.change_settings(body)),
        _post("/api/model", model),
        _post("/api/labels", lambda body: sessions.change_labels(body)),
        _post("/api/import", lambda body: sessions.bring(body)),
        _post(
            "/api/export",
            lambda body: sessions.export(body.get("format"), str(body.get("window"))),
        ),
        _post("/api/export/stop", lambda body: sessions.stop_export(str(body.get("window")))),
        _post("/api/learn", lambda body: sessions.learn(body.get("minutes"))),
        _post("/api/learn/stop", lambda body: sessions.stop_learning()),
        _post("/api/learn/use", use_learned),
    ]

    def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return refusal(error.status_code, error.detail)

    app = Starlette(routes=routes, exception_handlers={HTTPException: http_error})
    return Guard(app, hosts, token, reader=reader)


def _file(path: Path, media: str) -> Callable[[Request], Awaitable[Response]]:
    content = path.read_bytes()

    async def endpoint(request: Request) -> Response:
        return Response(content, media_type=media)

    return endpoint


def _get(path: str, answer: Callable[..., Any]) -> Route:
    async def endpoint(request: Request) -> Response:
        return await _answered(answer, **request.path_params)

    return Route(path, endpoint, methods=["GET"])


def _post(path: str, answer: Callable[..., Any]) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            body = json.loads(await request.body())
        except (ValueError, RecursionError):
            return refusal(400, "the body is not JSON")
        if not isinstance(body, dict):
            return refusal(400, "the body must be a JSON object")
        return await _answered(answer, **request.path_params, body=body)

    return Route(path, endpoint, methods=["POST"])


async def _answered(answer: Callable[..., Any], **arguments: Any) -> Response:  # noqa: ANN401
    """Answer a request in a thread, errors of the client and of its files with their reason.

    Bytes are a frame, None means no content.
    """
    try:
        result = await run_in_threadpool(answer, **arguments)
    except StaleRevisionError:
        return refusal(409, "this photograph was changed in another tab; reload it")
    except MissingError as error:
        return refusal(404, f"there is no {error.args[0]:.100}")
    except DataError as error:
        return refusal(422, str(error))
    except (RequestError, *USER_ERRORS) as error:
        return refusal(400, str(error))
    except (OSError, sqlite3.Error) as error:  # the disk is full, or the folder is gone
        return refusal(507, str(error))
    if result is None:
        return Response(status_code=204)
    if isinstance(result, bytes):
        return Response(result, media_type="application/octet-stream")
    return result if isinstance(result, Response) else AsciiJson(result)
