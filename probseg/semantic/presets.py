"""Presets of semantic segmentation for configurations."""

from __future__ import annotations

from probseg.descriptions import Changes
from probseg.models import build, override, read_preset
from probseg.semantic.network import SemanticSegmenter


def semantic_variant(of: str, changes: Changes | None = None) -> SemanticSegmenter:
    """Build a preset for semantic segmentation with some arguments changed.

    Args:
        of: Name of the preset, one of `probseg.models.list_presets("semantic")`.
        changes: Arguments to change, as in `probseg.models.override`:
            `{"head": {"num_classes": 12}}`.

    Raises:
        UnknownNameError: If there is no such preset.
        UsageError: If it is a preset for another task.
        ValueError: If a part is to be changed by something else than a dictionary.
    """
    return build(override(read_preset(of, "semantic"), changes or {}), SemanticSegmenter)
