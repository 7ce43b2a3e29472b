"""Networks initialised with the weights of another one."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from probseg.descriptions import Changes
from probseg.errors import WeightsError
from probseg.models import Segmenter, build, override, read_preset
from probseg.paths import is_path
from probseg.zoo.create import create_interactive
from probseg.zoo.store import check_fit
from probseg.zoo.trained import read_trained


def warm_start(
    of: str, weights: str, fresh: Sequence[str] = (), changes: Changes | None = None
) -> Segmenter:
    """Build a preset with the weights of another network; for configurations.

    Every weight is either copied or named as a fresh one: nothing is left out because its name or
    shape happens to differ.

    Args:
        of: Name of the preset.
        weights: Where the weights come from: a zoo model, or the path of a run of `probseg fit`
            (its best checkpoint), of a checkpoint or of a model folder; a path needs a slash.
        fresh: Shell patterns of the weights that are not copied, for instance `"head.*"`. What
            the source has beyond the others must match one of them, too.
        changes: Arguments of the preset to change, as in `probseg.create_model`.

    Returns:
        The network, in training mode.

    Raises:
        UsageError: If there is no such file.
        WeightsError: If other weights than the fresh ones differ in name or shape, or a pattern
            matches none.
    """
    model = build(override(read_preset(of), changes or {}), Segmenter)
    own = model.state_dict()
    source: Mapping[str, Tensor] = (
        read_trained(Path(weights)).weights
        if is_path(weights) or weights.endswith(".ckpt")
        else create_interactive(weights, pretrained=True).state_dict()
    )
    for pattern in fresh:
        if not fnmatch.filter([*own, *source], pattern):
            raise WeightsError(
                f"`fresh`: {pattern!r} matches no weight of {of} or {weights}; see its state_dict()"
            )
    copied = _without(source, fresh)
    check_fit(_without(own, fresh), copied, f"{weights}, for {of} with fresh={list(fresh)}")
    own.update(copied)
    model.load_state_dict(own)
    return model


def _without(weights: Mapping[str, Tensor], patterns: Sequence[str]) -> dict[str, Tensor]:
    """Return the weights that no pattern matches."""
    return {
        name: tensor
        for name, tensor in weights.items()
        if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    }
