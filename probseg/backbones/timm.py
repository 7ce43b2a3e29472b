"""Backbones from timm."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from probseg.backbones.base import Backbone
from probseg.backbones.stem import add_prompt_stem
from probseg.errors import UnknownNameError
from probseg.types import FeatureInfo


class TimmBackbone(Backbone):
    """Any timm network that can return its feature maps.

    Args:
        name: timm's name, with a tag where one is meant: ``"resnet50.a1_in1k"``.
        pretrained: Load timm's weights (from its cache or the Hugging Face hub). Leave it False
            where a checkpoint of the whole model is loaded afterwards.
        output_stride: 8, 16 or 32: stride of the coarsest map; smaller ones dilate the last
            stages. Not every timm network has the choice.
        prompt_channels: Number of click maps that follow the RGB channels.
        options: Further arguments of ``timm.create_model``: ``{"layers": [2, 2, 2, 1]}``, say, for
            the number of blocks in each stage of a ResNet.

    Raises:
        UnknownNameError: If timm has no network of this name.
    """

    def __init__(
        self,
        name: str = "resnet18",
        pretrained: bool = False,
        output_stride: int = 32,
        prompt_channels: int = 3,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        import timm  # takes a second to import, which `probseg --help` need not wait for

        tagged = timm.list_pretrained()
        if not timm.is_model(name) or ("." in name and name not in tagged):
            known = timm.list_models() + tagged
            raise UnknownNameError(kind="timm backbone", name=name, known=known)
        arguments: dict[str, Any] = {"pretrained": pretrained, "features_only": True}
        if output_stride != 32:  # which not every network would take
            arguments["output_stride"] = output_stride
        self.network = timm.create_model(name, **arguments, **(options or {}))
        info = self.network.feature_info
        self.features = FeatureInfo(tuple(info.channels()), tuple(info.reduction()))
        config = self.network.pretrained_cfg
        self.mean = tuple(config["mean"])
        self.std = tuple(config["std"])
        add_prompt_stem(self.network, prompt_channels)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the feature maps of ``(B, 3 + P, H, W)``, finest first."""
        maps: list[Tensor] = self.network(x)
        return maps
