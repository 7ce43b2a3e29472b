"""Attention layers on maps: ``(B, C, H, W) -> (B, C', H, W)``."""

from collections.abc import Callable

from probseg.attention.adaptation import (
    Adaptation,
    adapt,
    probabilistic_layers,
    restored,
)
from probseg.attention.base import Attention2d
from probseg.attention.probabilistic import ProbabilisticAttention2d
from probseg.attention.standard import StandardAttention2d
from probseg.errors import UnknownNameError

ATTENTIONS: dict[str, Callable[..., Attention2d]] = {
    "standard": StandardAttention2d,
    "probabilistic": ProbabilisticAttention2d,
}


def build_attention(
    name: str, in_channels: int, out_channels: int, **options: object
) -> Attention2d:
    """Build an attention layer by its name in ``ATTENTIONS``.

    Args:
        name: Name of the layer.
        in_channels: Channels of the features.
        out_channels: Channels of the output.
        **options: Further arguments of the layer's class.
    """
    if name not in ATTENTIONS:
        raise UnknownNameError(kind="attention", name=name, known=ATTENTIONS)
    return ATTENTIONS[name](in_channels, out_channels, **options)


__all__ = [
    "ATTENTIONS",
    "Adaptation",
    "Attention2d",
    "ProbabilisticAttention2d",
    "StandardAttention2d",
    "adapt",
    "build_attention",
    "probabilistic_layers",
    "restored",
]
