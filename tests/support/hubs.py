"""A stand-in for the Hugging Face hub on this machine: it keeps what is pushed."""

from __future__ import annotations

import base64
import hashlib
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlparse

from support.sites import listening

COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


class Hub:
    """What the hub has.

    Attributes:
        token: The one that may write.
        private: Whether each repository is private.
        files: Content of each repository by path.
        commits: Paths of each commit, and its message.
        asked: Paths that files were asked for by, in order.
        large: Whether a file of this name is to be uploaded apart from the commit.
    """

    def __init__(self) -> None:
        self.token = "hf_secret"
        self.private: dict[str, bool] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.commits: list[tuple[str, list[str]]] = []
        self.asked: list[str] = []
        self.url = ""
        self._blobs: dict[str, bytes] = {}

    @staticmethod
    def large(path: str) -> bool:
        return path.endswith(".safetensors")

    def post(self, path: str, body: bytes) -> tuple[int, object]:
        """Answer a request that changes something; `path` has no query."""
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            told = json.loads(body)
            name = f"{told['organization']}/{told['name']}"
            if name in self.files:
                return 409, {"error": "it exists", "url": f"{self.url}/{name}"}
            self.private[name] = told.get("visibility") == "private" or bool(told.get("private"))
            self.files[name] = {}
            return 200, {"url": f"{self.url}/{name}"}
        if path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                {**one, "actions": {"upload": {"href": f"{self.url}/blobs/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            return 200, {"transfer": "basic", "objects": objects}
        name = "/".join(path.split("/")[3:5])
        if name not in self.files:
            return 404, {"error": "no such repository"}
        if path.endswith("/preupload/main"):
            modes = [
                {
                    "path": one["path"],
                    "uploadMode": "lfs" if self.large(one["path"]) else "regular",
                    "shouldIgnore": False,
                }
                for one in json.loads(body)["files"]
            ]
            return 200, {"files": modes}
        assert path.endswith("/commit/main"), path
        return 200, self._commit(name, [json.loads(line) for line in body.splitlines()])

    def put(self, path: str, body: bytes) -> None:
        """Keep a large file."""
        digest = path.rpartition("/")[2]
        assert hashlib.sha256(body).hexdigest() == digest
        self._blobs[digest] = body

    def get(self, path: str) -> bytes | None:
        """Return a file of `/owner/name/resolve/revision/file`."""
        self.asked.append(path)
        owner, name, _, _, file = path.strip("/").split("/")
        return self.files.get(f"{owner}/{name}", {}).get(file)

    def _commit(self, name: str, lines: list[dict]) -> dict[str, str]:
        added = {}
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "lfsFile":
                added[value["path"]] = self._blobs[value["oid"]]
            else:
                assert line["key"] == "file", line
                added[value["path"]] = base64.b64decode(value["content"])
        self.files[name] |= added
        self.commits.append((lines[0]["value"]["summary"], sorted(added)))
        return {"commitUrl": f"{self.url}/{name}/commit/{COMMIT}", "commitOid": COMMIT}


@contextmanager
def hub_on_this_machine():
    """Serve a new hub on a free port."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self._body()
            if self.headers.get("Authorization") != f"Bearer {hub.token}":
                self._send(401, json.dumps({"error": "Invalid username or password."}).encode())
                return
            status, told = hub.post(urlparse(self.path).path, body)
            self._send(status, json.dumps(told).encode())

        def do_PUT(self):
            hub.put(urlparse(self.path).path, self._body())
            self._send(200, b"")

        def do_GET(self):
            path = urlparse(self.path).path
            content = hub.get(path)
            if content is None:
                there = "/".join(path.split("/")[1:3]) in hub.files
                self._send(404, b"", {"X-Error-Code": "EntryNotFound" if there else "RepoNotFound"})
            else:
                self._send(200, content)

        do_HEAD = do_GET

        def log_message(self, *arguments):
            """Stay silent."""

        def _body(self):
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _send(self, status, content, headers=None):
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    with listening(Handler) as hub.url:
        yield hub
