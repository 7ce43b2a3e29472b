"""ResNets: with the dilations of DeepLab, or with attention in their last stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from probseg.attention import LAYOUTS, replacing_convolution
from probseg.backbones.timm import TimmBackbone
from probseg.errors import check_name, require


class ResNet(TimmBackbone):
    """A timm ResNet (He et al., 2016) of basic or bottleneck blocks.

    Args:
        name: timm's name, with a tag where one is meant.
        pretrained: Load timm's weights, see `TimmBackbone`.
        output_stride: 8, 16 or 32: stride of the coarsest map; smaller ones dilate the last
            stages.
        multi_grid: A factor for each block of the last stage, `(1, 2, 4)` say: the 3x3
            convolutions of the block are dilated by the stage's dilation times this factor, by
            2, 4 and 8 with output stride 16 (Chen et al., 2017). None leaves timm's dilations,
            where the first block of a dilated stage still has that of the stage before.
        options: Further arguments of `timm.create_model`.
        lagging: Whether the first block of the last stage has the dilation of the stage before with
            `multi_grid`, too, as in the code of EMANet: 1, 4 and 8 with output stride 16.
    """

    def __init__(
        self,
        name: str = "resnet50.tv_in1k",
        pretrained: bool = False,
        output_stride: int = 32,
        multi_grid: Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
        lagging: bool = False,
    ) -> None:
        factors = list(multi_grid or ())
        require(min(factors, default=1) >= 1, "multi_grid", "factors of at least 1", factors)
        super().__init__(name, pretrained, output_stride, options)
        from timm.models.resnet import BasicBlock, Bottleneck

        require(
            all(isinstance(block, BasicBlock | Bottleneck) for block in self.last_stage()),
            "name",
            "a ResNet of basic or bottleneck blocks whose last stage is among the feature maps",
            repr(name),
            "use TimmBackbone for other networks",
        )
        if multi_grid is not None:
            blocks: list[Any] = self.last_stage()
            fits = len(multi_grid) == len(blocks)
            require(fits, "multi_grid", f"a factor for each of {len(blocks)} blocks", factors)
            bases = [block.dilation for block in blocks]
            if lagging:
                bases[0] = self.network.layer3[-1].dilation
            for block, base, factor in zip(blocks, bases, multi_grid, strict=True):
                for convolution in (block.conv1, block.conv2):
                    if convolution.kernel_size == (3, 3):  # a bottleneck's first one is 1x1
                        convolution.dilation = convolution.padding = (base * factor,) * 2
        self.twin = partial(ResNet, name, multi_grid=multi_grid, options=options, lagging=lagging)

    @contextmanager
    def at_output_stride(self, number: int) -> Iterator[None]:
        """Give the coarsest map another stride, 8, 16 or 32, until the end of the context.

        The weights stay; convolutions get the strides and dilations of a network that is built with
        this output stride, with the same factors of `multi_grid`.
        """
        with torch.device("meta"):
            twin = self.twin(output_stride=number)
        pairs = _convolution_pairs(self.network, twin.network)
        before = self.features, [_geometry(own) for own, _ in pairs]
        try:
            self.features = twin.features
            for own, other in pairs:
                own.stride, own.dilation, own.padding = _geometry(other)
            yield
        finally:
            self.features, geometries = before
            for (own, _), geometry in zip(pairs, geometries, strict=True):
                own.stride, own.dilation, own.padding = geometry

    def last_stage(self) -> list[nn.Module]:
        """Return the blocks of the last stage."""
        return list(getattr(self.network, "layer4", [nn.Identity()]))


def _geometry(convolution: nn.Conv2d) -> tuple[Any, Any, Any]:
    return convolution.stride, convolution.dilation, convolution.padding


def _convolution_pairs(network: nn.Module, other: nn.Module) -> list[tuple[nn.Conv2d, nn.Conv2d]]:
    """Return the convolutions of the same names, which alone may differ."""
    modules, twins = (
        {name: module for name, module in net.named_modules() if hasattr(module, "stride")}
        for net in (network, other)
    )
    pairs = []
    for name in {**modules, **twins}:
        module, twin = modules.get(name), twins.get(name)
        if isinstance(module, nn.Conv2d) and isinstance(twin, nn.Conv2d):
            alike = module.weight.shape == twin.weight.shape
            pairs.append((module, twin))
        elif module is not None and twin is not None:
            # A block, which has convolutions, or a layer without weights.
            alike = any(module.children()) or str(module) == str(twin)
        else:
            alike = False
        if not alike:
            raise ValueError(
                f"`output_stride` cannot be changed, as {name!r} would be {twin} instead of "
                f"{module}; build the network with the wanted `output_stride`"
            )
    return pairs


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
        check_name("layout", layout, LAYOUTS)
        require(image_size >= 1, "image_size", "at least 1 pixel", image_size)
        super().__init__(name, pretrained, output_stride, options=options)
        from timm.models.resnet import Bottleneck

        stage_stride = self.network.feature_info.info[-1]["reduction"]
        blocks: list[Any] = self.last_stage()
        for block in blocks:
            smallest = "the smallest are 'resnet26.bt_in1k' and 'resnet50.tv_in1k'"
            fits = isinstance(block, Bottleneck)
            require(fits, "name", "a ResNet with bottleneck blocks", repr(name), smallest)
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
