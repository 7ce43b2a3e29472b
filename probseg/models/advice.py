"""What to write for a name of timm where a model was meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from probseg.errors import UnknownNameError, UsageError
from probseg.models.build import build, override, read_preset
from probseg.quick_imports import import_timm

BEHIND = ("sam2t_unet_prop", "vits_unet_prop")
"""Presets that take other backbones: with maps of several strides, and with maps of one."""


def unknown_model(kind: str, name: str, known: Iterable[str]) -> UnknownNameError | UsageError:
    """Return the error about a name that no model has.

    Args:
        kind: Kind of the name.
        name: The unknown name.
        known: Names that exist.

    Returns:
        A UsageError with the way out if timm has a network of this name, otherwise an
        UnknownNameError with the nearest names.
    """
    advice = _advice_for_backbone(name)
    return UsageError(advice) if advice else UnknownNameError(kind, name, known)


def _advice_for_backbone(name: str) -> str | None:
    """Say how a network of timm becomes the backbone of a model; None if timm has none so named."""
    timm = import_timm()

    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        return None
    config = timm.get_pretrained_cfg(name) or timm.get_pretrained_cfg(architecture)
    tagged = (
        f"{architecture}.{tag or config.tag}" if tag or (config and config.tag) else architecture
    )
    changes: dict[str, Any] = {"name": tagged}
    reasons: list[str] = []
    for preset in BEHIND:
        description = override(read_preset(preset), {"backbone": changes})
        try:
            with torch.device("meta"):  # neither memory nor time for weights
                build(description)
        except (TypeError, ValueError) as error:  # the former of options that it does not have
            reasons.append(str(error))
            continue
        if tagged in timm.list_pretrained():
            changes["pretrained"] = True
        return (
            f"{name!r} is a backbone of timm, which makes features and no masks; a model with it, "
            f"still to be trained, is probseg.create_model({preset!r}, backbone={changes})"
        )
    return f"{name!r} is a backbone of timm that no preset takes: {reasons[0]}"
