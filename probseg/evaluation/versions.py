"""Machine, versions and commit of a result."""

from __future__ import annotations

import functools
import hashlib
import platform
import subprocess
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import torch

import probseg

PACKAGES = (
    "lightning",
    "timm",
    "numpy",
    "opencv-python-headless",
    "pillow",
    "scikit-image",
    "scipy",
)
"""Packages besides torch that can change the numbers."""


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return versions, commit and machine, as JSON values.

    Args:
        device: Device of the model.

    Returns:
        `versions` by package (None where it is missing), `commit` and `dirty` of the checkout
        (None where there is none), `changes_sha256` (of what `git diff HEAD` prints; None
        without changes), `python`, `platform`, `device` and `threads`.
    """
    device = torch.device(device)
    versions: dict[str, str | None] = {
        "probseg": probseg.__version__,
        "torch": str(torch.__version__),  # unlike the package's, it names the CUDA it is built for
    }
    for name in PACKAGES:
        try:
            versions[name] = packages.version(name)
        except packages.PackageNotFoundError:
            versions[name] = None
    commit = _git("rev-parse", "HEAD")
    status = _git("status", "--porcelain", "--untracked-files=no")
    changes = _git("diff", "HEAD")
    return {
        "versions": versions,
        "commit": None if commit is None else commit.decode().strip(),
        "dirty": None if status is None else bool(status),
        "changes_sha256": hashlib.sha256(changes).hexdigest() if changes else None,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
    }


@functools.cache
def _git(*arguments: str) -> bytes | None:
    """Return the output of a git command in the checkout of the package, or None."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # an installed package may lie inside somebody else's checkout
        return None
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, check=True, capture_output=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return None
