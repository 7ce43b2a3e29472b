"""Checkpoints of other versions of probseg: older ones are migrated, newer ones refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import probseg
from probseg.errors import WeightsError

HEADER = "probseg"
"""Key of a checkpoint whose value is `{"format": int, "version": str}`."""

FORMAT = 2
"""Format of the checkpoints that are written: 1 had no header and no position in an epoch."""


def header() -> dict[str, int | str]:
    """Return format and version of a checkpoint, found under `HEADER`."""
    return {"format": FORMAT, "version": probseg.__version__}


def format_of(checkpoint: Mapping[str, Any]) -> int:
    """Return the format of a checkpoint, at least 1 and at most `FORMAT`.

    Args:
        checkpoint: Content of the file.

    Raises:
        WeightsError: If the format is newer than this version of probseg, or is no number.
    """
    if HEADER not in checkpoint:
        return 1
    found = checkpoint[HEADER]
    number = found.get("format") if isinstance(found, Mapping) else None
    if not isinstance(number, int) or number < 1:
        msg = (
            f"the checkpoint says {found!r} of its format, expected a whole number from 1 on; the "
            "file is damaged, or was written by something else: use another checkpoint"
        )
        raise WeightsError(msg)
    if number > FORMAT:
        msg = (
            f"the checkpoint has the format {number}, written by probseg {found.get('version')}; "
            f"this is probseg {probseg.__version__}, which knows formats up to {FORMAT}: install "
            f"probseg {found.get('version')} or newer"
        )
        raise WeightsError(msg)
    return number


def migrate(checkpoint: dict[str, Any]) -> list[str]:
    """Bring a checkpoint to the present format, in place.

    Args:
        checkpoint: Content of the file; an older one gets the header of `header`.

    Returns:
        What the user must know, one sentence each; nothing for a checkpoint of this format.

    Raises:
        WeightsError: If the format is newer than this version of probseg, or is no number.
    """
    if format_of(checkpoint) == FORMAT:
        return []
    checkpoint[HEADER] = header()
    return [
        "the checkpoint is of an older version of probseg, which did not note the position inside "
        "an epoch: weights, optimiser, schedule and epoch go on, but crops and clicks are new "
        "draws, and so is the order of the rest of an epoch that had begun"
    ]
