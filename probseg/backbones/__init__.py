"""Backbones: image and click maps in, feature maps of several strides out."""

from probseg.backbones.base import Backbone
from probseg.backbones.botnet import BoTNet
from probseg.backbones.hrnet import HRNetV2
from probseg.backbones.resnet import ResNet
from probseg.backbones.stem import (
    EmbeddedPromptStem,
    PromptStem,
    add_prompt_stem,
    embed_prompts,
    has_prompt_stem,
    rgb_parameters,
)
from probseg.backbones.timm import TimmBackbone

BACKBONES: dict[str, type[Backbone]] = {
    "BoTNet": BoTNet,
    "HRNetV2": HRNetV2,
    "ResNet": ResNet,
    "TimmBackbone": TimmBackbone,
}

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
    "rgb_parameters",
]
