"""What transfers of files share: progress, checksums and the offline mode."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

Progress = Callable[[str, int, int | None], None]
"""Called with the name of a task, the bytes or items done, and their total (None: unknown)."""

BLOCK = 1 << 16
"""Bytes read at once."""


def silent(what: str, done: int, total: int | None) -> None:
    """Report no progress."""


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Return the checksum of a file in hexadecimal; `algorithm` is `sha256` or `md5`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def offline() -> bool:
    """Return whether `PROBSEG_OFFLINE` or `HF_HUB_OFFLINE` forbids to use the network."""
    values = (os.environ.get(name, "") for name in ("PROBSEG_OFFLINE", "HF_HUB_OFFLINE"))
    return any(value.lower() in ("1", "on", "yes", "true") for value in values)
