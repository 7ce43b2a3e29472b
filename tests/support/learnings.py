"""A stand-in for the training beside the page, which ends when and as a test says."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from probseg.annotate import learning
from probseg.annotate.learning import LEARNED, NAME
from probseg.paths import zoo_dir

SAYS = "the new network saves 1.30 of 4.20 clicks to 90 % on 24 photographs that it did not see"
SCRIPT = f"""
import json, os, pathlib, shutil, sys, threading, time
threading.Thread(target=lambda: os.read(0, 1) or os._exit(1), daemon=True).start()
place = pathlib.Path(sys.argv[1])
(place / "start.json").write_text(json.dumps([os.getpid(), *sys.argv[2:]]))
while not (end := place.parent / "end").exists():
    time.sleep(0.02)
if (text := end.read_text()).startswith("probseg: error: "):
    sys.exit(text)
if "saves" in text:
    shutil.copytree({str(zoo_dir() / "lite0_unet_prop.objects")!r}, place / {NAME!r})
(place / "learned.json").write_text(json.dumps({{"sentence": text}}))
"""


class StandIn:
    """Trainings of a folder that wait until the test says what comes out."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = folder / LEARNED
        monkeypatch.setattr(learning, "COMMAND", (sys.executable, "-c", SCRIPT))
        monkeypatch.setattr(learning, "TELLING", 0.05)

    def comes_out(self, text: str | None) -> None:
        """End all trainings with what they say; None lets the next one wait again."""
        end = self.place / "end"
        if text is None:
            end.unlink()
        else:
            end.with_suffix(".new").write_text(text)
            end.with_suffix(".new").replace(end)

    def arguments(self, number: int) -> list[str] | None:
        """Return the arguments of a training after its folder; None before its start."""
        path = self.place / str(number) / "start.json"
        return json.loads(path.read_text() or "[0]")[1:] if path.exists() else None

    def kill(self, number: int) -> None:
        """Kill a training as the system does."""
        pid = json.loads((self.place / str(number) / "start.json").read_text())[0]
        os.kill(pid, signal.SIGKILL)
