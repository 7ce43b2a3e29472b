"""Backbones: image and click maps in, feature maps of several strides out.

Each network is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probseg.backbones.base import (
    Backbone,
    EmbeddedPromptStem,
    PromptStem,
    add_prompt_stem,
    embed_prompts,
    has_prompt_stem,
    layer_numbers,
    recompute_activations,
    rgb_parameters,
)
from probseg.kinds import Registry, lazy_getattr

if TYPE_CHECKING:
    from probseg.backbones.hrnet import HRNetV2
    from probseg.backbones.resnet import BoTNet, ResNet
    from probseg.backbones.timm import TimmBackbone

_PATHS = {
    "BoTNet": "probseg.backbones.resnet.BoTNet",
    "HRNetV2": "probseg.backbones.hrnet.HRNetV2",
    "ResNet": "probseg.backbones.resnet.ResNet",
    "TimmBackbone": "probseg.backbones.timm.TimmBackbone",
}

BACKBONES: Registry[type[Backbone]] = Registry("backbone", _PATHS)

register_backbone = BACKBONES.register
"""Decorator that adds a backbone of your own, by the name of its class."""

__all__ = [
    "BACKBONES",
    "Backbone",
    "BoTNet",
    "EmbeddedPromptStem",
    "HRNetV2",
    "PromptStem",
    "ResNet",
    "TimmBackbone",
    "add_prompt_stem",
    "embed_prompts",
    "has_prompt_stem",
    "layer_numbers",
    "recompute_activations",
    "register_backbone",
    "rgb_parameters",
]

__getattr__ = lazy_getattr(__name__, _PATHS)
