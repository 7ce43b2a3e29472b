"""Old names that still work for one minor version."""

from __future__ import annotations

import warnings


def renamed(old: str, new: str, *, removed_in: str) -> None:
    """Warn the caller of the calling function that it uses an old name."""
    msg = f"`{old}` is now `{new}`; probseg {removed_in} has only the new name"
    warnings.warn(msg, FutureWarning, stacklevel=3)
