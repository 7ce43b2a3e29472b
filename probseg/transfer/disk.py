"""Checksums and disk space."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from probseg.errors import DownloadError
from probseg.transfer.network import WayOut


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Return the checksum of a file in hexadecimal; `algorithm` is `sha256` or `md5`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def require_space(folder: Path, needed: int, purpose: str, way_out: WayOut) -> None:
    """Raise a `DownloadError` unless the disk of a folder has room.

    Args:
        folder: The folder, or one that will be made.
        needed: Bytes.
        purpose: What needs them, for the message.
        way_out: Its field `disk` ends the message.
    """
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        msg = (
            f"{folder}: {purpose} needs {needed / 1e6:.1f} MB, but only {free / 1e6:.1f} MB are "
            f"free; make room, or {way_out.disk}"
        )
        raise DownloadError(msg)
