"""Prompts, feature maps and checks that tests of networks and of their parts share."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from probseg.attention import ATTENTIONS, build_attention
from probseg.backbones import Backbone
from probseg.heads import Decoder, DecoderMaps, MaskQuality
from probseg.semantic import EMAU
from probseg.types import FeatureInfo, Prompts


def prompts(*clicks, box=None, previous=None, batch=1) -> Prompts:
    """Clicks `(x, y, label)` and perhaps a box, the same on each image."""
    rows = torch.tensor(clicks, dtype=torch.float32).reshape(1, -1, 3).repeat(batch, 1, 1)
    boxes = torch.tensor([[math.nan] * 4 if box is None else list(box)]).float().repeat(batch, 1)
    return Prompts(rows[..., :2], rows[..., 2].long(), boxes, previous)


def as_batch(*given: Prompts) -> Prompts:
    """Prompts with equally many clicks and without previous masks, as one batch."""
    return Prompts(*(torch.cat(parts) for parts in zip(*(one[:3] for one in given), strict=True)))


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Draw normal numbers in float32; `ops_cases.draw` makes others, in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def maps_of(info: FeatureInfo, batch: int, height: int, width: int) -> list[Tensor]:
    """Random feature maps of an image's size."""
    return [
        torch.randn(batch, channels, -(-height // stride), -(-width // stride))
        for channels, stride in zip(info.channels, info.strides, strict=True)
    ]


def opened(model: nn.Module) -> nn.Module:
    """Start no branch that adds nothing, as timm and `MaskQuality` do: it stops gradients."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
        elif isinstance(module, MaskQuality):
            nn.init.normal_(module.layers[-1].weight)
    return model


def attention_layer(name: str, channels: int) -> nn.Module:
    """One of the `ATTENTIONS`, or an EMAU with bases of two kinds, "emau" and "non-local"."""
    torch.manual_seed(0)
    if name in ATTENTIONS:
        return build_attention(name, channels, 8, num_heads=2, head_channels=channels // 2)
    unit = EMAU(channels, num_bases=3, bases="moving_average" if name == "emau" else "pixels")
    nn.init.ones_(unit.leave[1].weight)
    return unit


def assert_all_learn(module: nn.Module, least: float = 0.0) -> None:
    """Assert that each parameter has a finite gradient that is not zero everywhere."""
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > least, name


def assert_described(backbone: nn.Module, image: Tensor) -> None:
    """Assert that the maps of an image have the channels and strides that a backbone describes."""
    height, width = image.shape[-2:]
    for own, channels, stride in zip(backbone(image), *backbone.features[:2], strict=True):
        assert own.shape == (len(image), channels, -(-height // stride), -(-width // stride))


class Recorder(Backbone):
    """Keeps what it is given, as `seen`, and hands the maps of the prompts on."""

    mean = (0.5, 0.25, 0.125)
    std = (0.5, 0.25, 0.5)

    def __init__(self, maps: int = 3) -> None:
        super().__init__()
        self.features = FeatureInfo((maps,), (1,))
        self.first = nn.Conv2d(3, 1, kernel_size=1)  # for the prompts to enter at

    def forward(self, x: Tensor) -> list[Tensor]:
        self.seen = x
        return [x[:, 3:]]


class Through(Decoder):
    """Returns the only map as it is."""

    def __init__(self, inputs: FeatureInfo) -> None:
        super().__init__()
        self.features = inputs

    def forward(self, maps: list[Tensor]) -> DecoderMaps:
        return DecoderMaps(maps[0])
