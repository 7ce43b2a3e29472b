"""Presets of semantic segmentation for configurations."""

from __future__ import annotations

from pathlib import Path

from probseg.descriptions import Changes
from probseg.models import build, override, read_preset
from probseg.semantic.network import SemanticSegmenter
from probseg.zoo.store import check_fit
from probseg.zoo.trained import read_trained


def semantic_variant(
    of: str, changes: Changes | None = None, weights: str | None = None
) -> SemanticSegmenter:
    """Build a preset for semantic segmentation with some arguments changed.

    Args:
        of: Name of the preset, one of `probseg.models.list_presets("semantic")`.
        changes: Arguments to change, as in `probseg.models.override`:
            `{"head": {"num_classes": 12}}`.
        weights: Run of `probseg fit` (its best checkpoint), checkpoint or model folder whose
            weights the network starts from; None leaves those of the preset.

    Raises:
        UnknownNameError: If there is no such preset.
        UsageError: If it is a preset for another task.
        ValueError: If a part is to be changed by something else than a dictionary.
        WeightsError: If weights differ in name or shape.
    """
    model = build(override(read_preset(of, "semantic"), changes or {}), SemanticSegmenter)
    if weights is not None:
        start = read_trained(Path(weights)).weights
        check_fit(model.state_dict(), start, f"{weights}, for {of}")
        model.load_state_dict(start)
    return model
