"""Whole networks: the `Segmenter` and its presets."""

from probseg.models.build import (
    build,
    list_presets,
    override,
    read_preset,
    resolved,
    variant,
    without_downloads,
)
from probseg.models.encoded import Encoded
from probseg.models.segmenter import Segmenter

__all__ = [
    "Encoded",
    "Segmenter",
    "build",
    "list_presets",
    "override",
    "read_preset",
    "resolved",
    "variant",
    "without_downloads",
]
