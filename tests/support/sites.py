"""A web server on this machine whose connections break where a test wants them to."""

from __future__ import annotations

import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Site:
    """What the server has, how it behaves, and what it was asked for.

    Attributes:
        files: Content by path, e.g. `"/a.zip"`.
        ranges: Whether it sends parts of files.
        heeds_if_range: Whether a changed file is sent whole when asked for the rest of the old.
        tag: ETag of all files; None for no mark of the version at all.
        sized: Whether it says how long a file is.
        cuts: Bytes after which the next connections break; each is used once.
        failures: Status codes of the next answers; each is used once.
        pause: Seconds between blocks of 4 KiB.
        asked: Path and Range header of each request.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.ranges = self.heeds_if_range = self.sized = True
        self.tag: str | None = '"1"'
        self.cuts: list[int] = []
        self.failures: list[int] = []
        self.pause = 0.0
        self.asked: list[tuple[str, str | None]] = []
        self.url = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.asked.append((request.path, wanted))
        content = self.files.get(request.path)
        if self.failures or content is None:
            request.send_error(self.failures.pop(0) if self.failures else 404)
            return
        condition = request.headers.get("If-Range")
        current = not self.heeds_if_range or condition in (None, self.tag)
        start = int(wanted[6:-1]) if wanted and self.ranges and current else None
        if start is not None and start >= len(content):
            request.send_error(416)
            return
        body = content[start or 0 :]
        request.send_response(200 if start is None else 206)
        if start is not None:
            span = f"bytes {start}-{len(content) - 1}/{len(content)}"
            request.send_header("Content-Range", span)
        if self.sized:
            request.send_header("Content-Length", str(len(body)))
        if self.tag is not None:
            request.send_header("ETag", self.tag)
        request.end_headers()
        if self.cuts:
            body = body[: self.cuts.pop(0)]
        for begin in range(0, len(body), 4096):
            request.wfile.write(body[begin : begin + 4096])
            time.sleep(self.pause)


@contextmanager
def serving():
    """Serve a new site on a free port."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            try:
                site.answer(self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client was killed

        def log_message(self, *arguments):
            """Stay silent."""

    with listening(Handler) as site.url:
        yield site


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]):
    """Answer on a free port of this machine; gives the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
