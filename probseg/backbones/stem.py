"""A stem with additional input channels for click maps."""

from __future__ import annotations

import copy

from torch import Tensor, nn


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
        """Convolve ``(B, 3 + P, H, W)``: RGB first, then the ``P`` click maps."""
        features: Tensor = self.rgb(x[:, :3]) + self.prompts(x[:, 3:])
        return features


def add_prompt_stem(network: nn.Module, prompt_channels: int) -> None:
    """Replace the first convolution of an RGB network by a `PromptStem`, in place.

    Args:
        network: Any network whose first convolution, in the order of its modules, has 3 inputs.
        prompt_channels: Number of click maps that will follow the RGB channels.

    Raises:
        ValueError: If no convolution of the network takes 3 channels, or it has a `PromptStem`.
    """
    if has_prompt_stem(network):
        msg = (
            f"network must have no prompt stem yet, got a {type(network).__name__} with one, as a "
            "Segmenter has added it; build a new one for another Segmenter"
        )
        raise ValueError(msg)
    for path, module in network.named_modules():
        if isinstance(module, nn.Conv2d) and module.in_channels == 3 and path:
            parent, _, name = path.rpartition(".")
            setattr(network.get_submodule(parent), name, PromptStem(module, prompt_channels))
            return
    msg = f"{type(network).__name__} has no convolution with 3 input channels to add prompts to"
    raise ValueError(msg)


def has_prompt_stem(network: nn.Module) -> bool:
    """Whether the network, or a part of it, takes click maps through a `PromptStem`."""
    return any(isinstance(module, PromptStem) for module in network.modules())


def rgb_parameters(network: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a network except the click-map convolution of a `PromptStem`.

    What was trained before prompts were added is among them, and nothing that was added.
    """
    stems = [module for module in network.modules() if isinstance(module, PromptStem)]
    added = {parameter for stem in stems for parameter in stem.prompts.parameters()}
    return [parameter for parameter in network.parameters() if parameter not in added]
