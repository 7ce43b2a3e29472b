"""Pictures of a run: if one cannot be drawn, this is logged, and the run continues."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_logger = logging.getLogger(__name__)


@contextmanager
def log_drawing_errors(picture: Path | str) -> Iterator[None]:
    """Log the errors of a block that draws, and leave the picture out.

    No picture may end a training or a test: its numbers have taken hours.
    """
    try:
        yield
    except Exception as error:  # of any kind, from Matplotlib, OpenCV, Pillow or a logger
        if isinstance(picture, Path):
            with suppress(OSError):
                picture.unlink(missing_ok=True)
        reason = f"{type(error).__name__}: {error}"
        _logger.warning("%s: left out, it cannot be drawn (%s)", picture, reason)
