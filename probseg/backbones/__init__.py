"""Backbones: image and click maps in, feature maps of several strides out."""

from probseg.backbones.base import Backbone
from probseg.backbones.stem import PromptStem, add_prompt_stem
from probseg.backbones.timm import TimmBackbone

BACKBONES: dict[str, type[Backbone]] = {"TimmBackbone": TimmBackbone}

__all__ = [
    "BACKBONES",
    "Backbone",
    "PromptStem",
    "TimmBackbone",
    "add_prompt_stem",
]
