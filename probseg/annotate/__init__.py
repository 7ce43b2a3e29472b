"""Annotation in the browser (`probseg annotate`) and in a notebook (`Clicker`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probseg.annotate.widget import Clicker

__all__ = ["Clicker"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name == "Clicker":  # needs the extra `notebook`
        from probseg.annotate.widget import Clicker

        return Clicker
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
