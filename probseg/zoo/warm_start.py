"""Networks that begin with the weights of another one."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probseg.errors import WeightsError
from probseg.models import Segmenter, build, override, read_preset
from probseg.models.build import Changes
from probseg.zoo.create import create_model
from probseg.zoo.store import check_fit


def warm_start(
    of: str, weights: str, fresh: Sequence[str] = (), changes: Changes | None = None
) -> Segmenter:
    """Build a preset that begins with the weights of another network; for configurations.

    Every weight is either copied or named as a fresh one: nothing is left out because its name or
    shape happens to differ.

    Args:
        of: Name of the preset.
        weights: Where the weights come from: a checkpoint of ``probseg fit`` (``*.ckpt``), or what
            `create_model` knows, a zoo model or a model folder.
        fresh: Shell patterns of the weights that are not copied, for instance ``"head.*"``. What
            the source has beyond the others must match one of them, too.
        changes: Arguments of the preset to change, as in `probseg.create_model`.

    Returns:
        The network, in training mode.

    Raises:
        FileNotFoundError: If there is no such checkpoint.
        WeightsError: If other weights than the fresh ones differ in name or shape, or a pattern
            matches none.
    """
    model = build(override(read_preset(of), changes or {}))
    own, given = model.state_dict(), _read(weights)
    for pattern in fresh:
        if not fnmatch.filter({**own, **given}, pattern):
            msg = f"fresh: {pattern!r} matches no weight of {of} or {weights}; see its state_dict()"
            raise WeightsError(msg)
    given = _without(given, fresh)
    check_fit(_without(own, fresh), given, f"{weights}, for {of} with fresh={list(fresh)}")
    model.load_state_dict({**own, **given})
    return model


def _read(weights: str) -> Mapping[str, Tensor]:
    if not weights.endswith(".ckpt"):
        return create_model(weights, pretrained=True).state_dict()
    path = Path(weights)
    if not path.is_file():
        msg = f"weights: there is no checkpoint {weights}; give an existing one, or a zoo model"
        raise FileNotFoundError(msg)
    stored: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return {
        name.removeprefix("model."): tensor
        for name, tensor in stored["state_dict"].items()
        if name.startswith("model.")
    }


def _without(weights: Mapping[str, Tensor], patterns: Sequence[str]) -> dict[str, Tensor]:
    """Return the weights that no pattern matches."""
    return {
        name: tensor
        for name, tensor in weights.items()
        if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    }
