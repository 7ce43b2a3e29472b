"""Backbones: image and click maps in, feature maps of several strides out.

Each network is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from probseg.backbones.base import Backbone
from probseg.backbones.stem import (
    EmbeddedPromptStem,
    PromptStem,
    add_prompt_stem,
    embed_prompts,
    has_prompt_stem,
    rgb_parameters,
)
from probseg.kinds import Offers

if TYPE_CHECKING:
    from probseg.backbones.botnet import BoTNet
    from probseg.backbones.hrnet import HRNetV2
    from probseg.backbones.resnet import ResNet
    from probseg.backbones.timm import TimmBackbone

BACKBONES: Mapping[str, type[Backbone]] = Offers(
    "backbone",
    {
        "BoTNet": "probseg.backbones.botnet.BoTNet",
        "HRNetV2": "probseg.backbones.hrnet.HRNetV2",
        "ResNet": "probseg.backbones.resnet.ResNet",
        "TimmBackbone": "probseg.backbones.timm.TimmBackbone",
    },
)

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


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in BACKBONES:
        return BACKBONES[name]
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
