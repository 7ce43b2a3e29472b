"""Base class of the backbones, stems for click maps, and what fine-tuning asks of networks."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.errors import require
from probseg.types import FeatureInfo


class Backbone(nn.Module, ABC):
    """Base of the backbones: images in, feature maps out.

    A `Segmenter` whose prompts enter at the stem adds channels to the first convolution; see
    `add_prompt_stem`.

    Attributes:
        features: Channels and strides of the maps that `forward` returns.
        mean: Mean of the RGB channels that the images are normalised with, for values in [0, 1].
        std: Their standard deviation.
        multiple: Images whose sides are whole multiples of this number of pixels give whole cells
            in all maps, so that the maps lie exactly on the image. 1 for networks that take every
            size as it is.
    """

    multiple: int = 1
    features: FeatureInfo
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @abstractmethod
    def forward(self, x: Tensor) -> list[Tensor]:
        """Compute the maps that `features` describes, finest first.

        They have `ceil(H / stride)` rows and `ceil(W / stride)` columns for normalised RGB of any
        size, `(B, 3, H, W)`, with the click maps behind if there is a prompt stem.
        """


class PromptStem(nn.Module):
    """First convolution of a network, with a second, parallel one for the click maps.

    Both results are added (the "Conv1S" of Sofiiuk et al. 2021). The RGB convolution keeps its
    weights, and the prompts' one has no bias: an image without prompts gives exactly the features
    of the network as it was before.

    Args:
        rgb: The network's own first convolution, with 3 input channels.
        prompt_channels: Number of click maps.
    """

    def __init__(self, rgb: nn.Conv2d, prompt_channels: int) -> None:
        super().__init__()
        self.rgb = rgb
        # A copy, as the first convolution may be of a class with a padding of its own.
        self.prompts = copy.deepcopy(rgb)
        self.prompts.in_channels = prompt_channels
        size = (rgb.out_channels, prompt_channels, *rgb.kernel_size)
        self.prompts.weight = nn.Parameter(rgb.weight.new_empty(size))
        self.prompts.bias = None
        nn.init.kaiming_normal_(self.prompts.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Convolve `(B, 3 + P, H, W)`: RGB first, then the `P` click maps."""
        features: Tensor = self.rgb(x[:, :3]) + self.prompts(x[:, 3:])
        return features


class EmbeddedPromptStem(nn.Module):
    """First block of a network, to whose result a small network adds the embedded click maps.

    Source: the code of Sofiiuk, Petrov and Konushin, 2021, "Reviving Iterative Training with Mask
    Guidance" (RITM). The maps are added behind normalisation and activation, to the first 64
    channels. Their network has biases, so that an image without prompts also gets other features.

    Args:
        rgb: The network's first convolution, or the convolutions of a deep stem, of stride 2.
        norm: The normalisation that follows.
        activation: The activation that follows it.
        prompt_channels: Number of click maps.
    """

    def __init__(
        self, rgb: nn.Module, norm: nn.Module, activation: nn.Module, prompt_channels: int
    ) -> None:
        super().__init__()
        self.rgb = rgb
        self.norm = norm
        self.activation = activation
        self.prompts = PromptEmbedding(prompt_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Transform `(B, 3 + P, H, W)`: RGB first, then the `P` click maps."""
        features: Tensor = self.activation(self.norm(self.rgb(x[:, :3])))
        embedded = self.prompts(x[:, 3:])
        missing = features.shape[1] - embedded.shape[1]
        return features + F.pad(embedded, (0, 0, 0, 0, 0, missing))


class PromptEmbedding(nn.Module):
    """Two convolutions of the click maps, and a factor whose sign has no effect."""

    CHANNELS = 64

    def __init__(self, prompt_channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(prompt_channels, 16, kernel_size=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(16, self.CHANNELS, kernel_size=3, stride=2, padding=1),
        )
        self.scale = nn.Parameter(torch.tensor([0.05]))

    def forward(self, maps: Tensor) -> Tensor:
        """Embed click maps `(B, P, H, W)` as `(B, 64, h, w)` of stride 2."""
        embedded: Tensor = self.layers(maps) * self.scale.abs()
        return embedded


_STEMS = (PromptStem, EmbeddedPromptStem)


def add_prompt_stem(network: nn.Module, prompt_channels: int) -> None:
    """Replace the first convolution of a network, of 3 inputs, by a `PromptStem`, in place."""
    _refuse_second_stem(network)
    for path, module in network.named_modules():
        if isinstance(module, nn.Conv2d) and module.in_channels == 3 and path:
            parent, _, name = path.rpartition(".")
            setattr(network.get_submodule(parent), name, PromptStem(module, prompt_channels))
            return
    kind = type(network).__name__
    require(False, "network", "one with a convolution of 3 input channels", f"a {kind}")


def embed_prompts(backbone: Any, prompt_channels: int) -> None:  # noqa: ANN401 (see Raises)
    """Replace the first block of a backbone's network by an `EmbeddedPromptStem`, in place.

    It must begin with timm's `conv1`, `bn1` and `act1` of stride 2, as `ResNet` and `HRNetV2` do.
    """
    _refuse_second_stem(backbone)
    network: Any = getattr(backbone, "network", None)
    parts: list[Any] = [getattr(network, name, None) for name in ("conv1", "bn1", "act1")]
    conv, norm, act = parts
    require(
        conv and act and getattr(norm, "num_features", 0) >= PromptEmbedding.CHANNELS,
        "prompt_stem",
        "'convolution' for a network that does not begin with conv1, bn1, act1 of at least "
        f"{PromptEmbedding.CHANNELS} channels, as ResNet and HRNetV2 do",
        f"'embedding' for a {type(backbone).__name__}",
    )
    network.conv1 = EmbeddedPromptStem(conv, norm, act, prompt_channels)
    network.bn1, network.act1 = nn.Identity(), nn.Identity()


def _refuse_second_stem(network: nn.Module) -> None:
    kind = f"a {type(network).__name__} with one, as a Segmenter has added it"
    hint = "build a new one for another Segmenter"
    require(not has_prompt_stem(network), "network", "one without a prompt stem", kind, hint)


def has_prompt_stem(network: nn.Module) -> bool:
    """Whether the network, or a part of it, takes click maps through a stem of this module."""
    return any(isinstance(module, _STEMS) for module in network.modules())


def rgb_parameters(network: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a network except the click-map convolutions of its stem.

    What was trained before prompts were added is among them, and nothing that was added.
    """
    stems = [module for module in network.modules() if isinstance(module, _STEMS)]
    added = {parameter for stem in stems for parameter in stem.prompts.parameters()}
    return [parameter for parameter in network.parameters() if parameter not in added]


def layer_numbers(backbone: nn.Module) -> dict[nn.Parameter, int]:
    """Return the layer of each weight of a timm transformer, as timm groups them.

    It is 0 for the embeddings of patches and positions, then one number for each block.
    """
    network = _first_with(backbone, "group_matcher")
    require(
        network is not None,
        "layer_decay",
        "1 for a backbone whose layers timm does not put in order as it does those of ViT, DINOv2, "
        "DINOv3 and SAM 2",
        f"another for a {type(backbone).__name__}",
        "`backbone_rate` slows the whole backbone down",
    )
    from timm.models import group_parameters

    numbers = group_parameters(network, network.group_matcher(), reverse=True)
    return {parameter: numbers[name] for name, parameter in network.named_parameters()}


def recompute_activations(backbone: nn.Module) -> None:
    """Compute activations within blocks again for the backward pass instead of keeping them.

    In place, by timm's gradient checkpointing (Chen et al. 2016). Gradients stay what they are.
    """
    network = _first_with(backbone, "set_grad_checkpointing")
    without = "false for a backbone without blocks that timm could compute again"
    kind = f"true for a {type(backbone).__name__}"
    require(network is not None, "gradient_checkpointing", without, kind)
    network.set_grad_checkpointing()


def _first_with(backbone: nn.Module, method: str) -> Any:  # noqa: ANN401 (a network of timm)
    return next((part for part in backbone.modules() if hasattr(part, method)), None)
