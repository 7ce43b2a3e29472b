"""Whole networks: the `Segmenter` and its presets."""

from probseg.models.build import build, list_presets, override, read_preset, without_downloads
from probseg.models.segmenter import Segmenter

__all__ = ["Segmenter", "build", "list_presets", "override", "read_preset", "without_downloads"]
