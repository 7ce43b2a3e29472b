"""Whole networks: `Segmenter` and `SemanticSegmenter`, and their presets."""

from probseg.models.build import (
    build,
    build_semantic,
    list_presets,
    override,
    read_preset,
    resolved,
    semantic_variant,
    variant,
    without_downloads,
)
from probseg.models.encoded import Encoded
from probseg.models.segmenter import Segmenter

__all__ = [
    "Encoded",
    "Segmenter",
    "build",
    "build_semantic",
    "list_presets",
    "override",
    "read_preset",
    "resolved",
    "semantic_variant",
    "variant",
    "without_downloads",
]
