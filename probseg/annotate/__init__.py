"""Annotation in the browser (`probseg annotate`) and in a notebook (`Clicker`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probseg.kinds import lazy_getattr

if TYPE_CHECKING:
    from probseg.annotate.widget import Clicker

__all__ = ["Clicker"]

# It needs the extra `notebook`.
__getattr__ = lazy_getattr(__name__, {"Clicker": "probseg.annotate.widget.Clicker"})
