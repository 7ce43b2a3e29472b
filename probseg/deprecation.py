"""Old names that still work for one minor version."""

from __future__ import annotations

import warnings


def renamed(old: str, new: str, *, removed_in: str) -> None:
    """Warn the caller of the calling function that it uses an old name.

    Args:
        old: The old name: of an argument, or with its module.
        new: The name to use instead.
        removed_in: Version without the old name, for instance `"0.3"`.
    """
    msg = f"`{old}` is now `{new}`; probseg {removed_in} has only the new name"
    warnings.warn(msg, FutureWarning, stacklevel=3)
