"""What fine-tuning asks of networks of timm: the order of their layers, and less memory."""

from __future__ import annotations

from typing import Any

from torch import nn


def layer_numbers(backbone: nn.Module) -> dict[nn.Parameter, int]:
    """Number the layers of a transformer by depth.

    Args:
        backbone: Around a network of timm.

    Returns:
        The layer of each weight, as timm groups them: 0 for the embeddings of patches and
        positions, then one number for each block.

    Raises:
        ValueError: If timm does not group the weights of the network.
    """
    network = _first_with(backbone, "group_matcher")
    if network is None:
        msg = (
            f"`layer_decay` must be 1 for this {type(backbone).__name__}, whose layers timm does "
            "not put in order as it does those of ViT, DINOv2, DINOv3 and SAM 2; `backbone_rate` "
            "slows the whole backbone down"
        )
        raise ValueError(msg)
    from timm.models import group_parameters

    numbers = group_parameters(network, network.group_matcher(), reverse=True)
    return {parameter: numbers[name] for name, parameter in network.named_parameters()}


def recompute_activations(backbone: nn.Module) -> None:
    """Compute activations within blocks again for the backward pass instead of keeping them.

    In place, by timm's gradient checkpointing (Chen et al. 2016). Gradients stay what they are.

    Args:
        backbone: Around a network of timm.

    Raises:
        ValueError: If the network cannot.
    """
    network = _first_with(backbone, "set_grad_checkpointing")
    if network is None:
        msg = (
            f"`gradient_checkpointing` must be false for this {type(backbone).__name__}, which "
            "has no blocks that timm could compute again"
        )
        raise ValueError(msg)
    network.set_grad_checkpointing()


def _first_with(backbone: nn.Module, method: str) -> Any:  # noqa: ANN401 (a network of timm)
    return next((part for part in backbone.modules() if hasattr(part, method)), None)
