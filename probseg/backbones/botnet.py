"""ResNets with attention in their last stage."""

from __future__ import annotations

from typing import Any

from torch import nn

from probseg.attention import LAYOUTS, replacing_convolution
from probseg.backbones.resnet import ResNet
from probseg.errors import UnknownNameError


class BoTNet(ResNet):
    """A bottleneck ResNet with attention for the 3x3 convolutions of the last stage.

    Bottleneck transformers (Srinivas et al., 2021), with probabilistic attention as in Gabbur et
    al. (2021, §4.1). All weights but those of the replaced convolutions can be pretrained.

    Args:
        name: timm's name of a ResNet with bottleneck blocks, with a tag where one is meant.
        pretrained: Load timm's weights, see `TimmBackbone`.
        output_stride: 32, where the first block halves its map after the attention, 16 or 8.
        attention: Name of the attention in `ATTENTIONS`.
        layout: "full", where a pixel sees the whole map, or "axial": its column, then its row.
        position: Relative position embeddings: "factored", "full" or None. With the layout "axial",
            the first two are the same function.
        num_heads: Number of heads, which share the channels evenly.
        image_size: Side in pixels of the images that the position embeddings are learnt for; for
            others they are interpolated.
        attention_options: Further arguments of the attention's class. Srinivas et al. have
            `{"position_keys": False}`. Key adaptation of "probabilistic" is off unless it is
            asked for, `{"key_iterations": 1, "key_prior": 0.001}`: it has no weights, and is
            meant for networks trained without.
        options: Further arguments of `timm.create_model`.

    Raises:
        UnknownNameError: If there is no network, attention, layout or position of that name.
        ValueError: If the network has no bottleneck blocks, or another argument does not fit.
    """

    def __init__(
        self,
        name: str = "resnet50.tv_in1k",
        pretrained: bool = False,
        output_stride: int = 32,
        attention: str = "standard",
        layout: str = "full",
        position: str | None = "factored",
        num_heads: int = 4,
        image_size: int = 256,
        attention_options: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        if layout not in LAYOUTS:
            raise UnknownNameError(kind="layout", name=layout, known=LAYOUTS)
        if image_size < 1:
            msg = f"`image_size` must be at least 1 pixel, got {image_size}; 256 is usual"
            raise ValueError(msg)
        super().__init__(name, pretrained, output_stride, options=options)
        from timm.models.resnet import Bottleneck

        stage_stride = self.network.feature_info.info[-1]["reduction"]
        for block in self.last_stage():
            if not isinstance(block, Bottleneck):
                msg = (
                    f"`name` must be a ResNet with bottleneck blocks, got {name!r}; the smallest "
                    "are 'resnet26.bt_in1k' and 'resnet50.tv_in1k'"
                )
                raise ValueError(msg)
            # A block shrinks its map after the attention.
            side = -(-image_size * block.stride // stage_stride)
            layers: list[nn.Module] = [
                *replacing_convolution(
                    attention,
                    block.conv2.in_channels,
                    block.conv2.out_channels,
                    layout=layout,
                    num_heads=num_heads,
                    position=position,
                    position_size=(side, side),
                    options=attention_options,
                )
            ]
            if block.conv2.stride == (2, 2):
                # Sizes round up as those of the convolution did.
                layers.append(nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False))
            block.conv2 = nn.Sequential(*layers)
