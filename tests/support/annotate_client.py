"""A folder of small photographs, and a client of the annotation server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from starlette.testclient import TestClient

from probseg.annotate.answers import ModelHost
from probseg.annotate.app import create_app
from probseg.annotate.frames import unpack
from probseg.annotate.sessions import Sessions

TOKEN = "token"
HOST = "127.0.0.1:8808"
MODEL = "lite0_unet_prop"


def draw_photographs(folder: Path, count: int = 3, size: tuple[int, int] = (96, 128)) -> Path:
    """Draw photographs of a bright disk on a dark, noisy ground."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    y, x = np.mgrid[: size[0], : size[1]]
    for n in range(count):
        pixels = random.integers(0, 60, (*size, 3))
        disk = (x - size[1] / 2) ** 2 + (y - size[0] / 2) ** 2 < (size[0] / (3 + n)) ** 2
        pixels[disk] += [180, 120, 40]
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"photo{n}.png")
    return folder


class Client:
    """A page without a browser: it keeps to the server's contract."""

    def __init__(self, sessions: Sessions) -> None:
        app = create_app(sessions, frozenset({HOST}), TOKEN)
        headers = {"X-Probseg-Token": TOKEN}
        self.http = TestClient(app, base_url=f"http://{HOST}", headers=headers)
        self.sessions = sessions
        self.photographs = self.get("/api/session")["photographs"]
        self.sequence = 0

    def get(self, path: str) -> dict:
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def path(self, n: int = 0) -> str:
        return f"/api/photos/{self.photographs[n]['id']}"

    def size(self, n: int = 0) -> tuple[int, int]:
        return self.photographs[n]["height"], self.photographs[n]["width"]

    def act(self, action: dict, n: int = 0, revision: int | None = None):
        """Return header and mask of the answer to an action."""
        self.sequence += 1
        if revision is None:
            revision = self.get(self.path(n))["revision"]
        body = {"sequence": self.sequence, "revision": revision, "action": action}
        answer = self.http.post(f"{self.path(n)}/actions", json=body)
        assert answer.status_code == 200, answer.text
        header, mask = unpack(answer.content, self.size(n))
        assert header["sequence"] == self.sequence
        assert header["revision"] == revision + 1
        return header, mask

    def refused(self, action: dict, n: int = 0, status: int = 400) -> str:
        """Return why an action is refused."""
        body = {"revision": self.get(self.path(n))["revision"], "action": action}
        answer = self.http.post(f"{self.path(n)}/actions", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()["error"]

    def click(self, x: float, y: float, positive: bool = True, n: int = 0):
        return self.act({"type": "click", "x": x, "y": y, "positive": positive}, n)

    def mask(self, n: int = 0):
        return unpack(self.http.get(f"{self.path(n)}/mask").content, self.size(n))[1]


def begin(folder: Path, model_host: ModelHost | None = None, **options) -> Client:
    """Start a server in this process."""
    return Client(
        Sessions(folder, options.pop("out", None), model_host or ModelHost(MODEL), **options)
    )


def again(client: Client) -> Client:
    """Stop a server without its leave, and start one on the same folder."""
    client.sessions._opened.close()
    client.sessions.files.close()
    return begin(client.sessions.folder, client.sessions.model_host)
