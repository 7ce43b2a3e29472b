"""Attention layers on maps, `(B, C, H, W) -> (B, C', H, W)`, and on tokens, `(B, N, C)`."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from itertools import chain
from typing import TYPE_CHECKING, Any

from probseg.attention.adaptation import (
    UPDATES,
    Adaptation,
    AdaptiveClassifier,
    ClickAdaptation,
    adapt,
    adaptation_of,
    probabilistic_layers,
    restored,
)
from probseg.attention.base import Attention2d, StandardAttention2d
from probseg.attention.probabilistic import ProbabilisticAttention2d
from probseg.attention.tokens import ProbabilisticAttention, convert_attention
from probseg.errors import UnknownNameError, check_name
from probseg.kinds import Registry, lazy_getattr

if TYPE_CHECKING:
    from probseg.attention.base import LocalAttention2d

ATTENTIONS: Registry[type[Attention2d]] = Registry(
    "attention",
    {
        "local": "probseg.attention.base.LocalAttention2d",
        "probabilistic": ProbabilisticAttention2d,
        "standard": StandardAttention2d,
    },
    base=Attention2d,
)
"""Layers that turn a feature map into a feature map, by the names that configurations use.

The dotted path of a class of your own is such a name once its module is imported.
"""

register_attention = ATTENTIONS.register
"""Decorator that adds a layer of your own: `@register_attention("cosine")`."""


def build_attention(
    name: str | type[Attention2d], in_channels: int, out_channels: int, **options: object
) -> Attention2d:
    """Build an attention layer by its name in `ATTENTIONS`.

    Args:
        name: Name of the layer, its class, or the dotted path of a class of an imported module.
        in_channels: Channels of the features.
        out_channels: Channels of the output.
        **options: Further arguments of the layer's class.

    Raises:
        UnknownNameError: If there is no such layer.
        TypeError: If its class has no such option.
    """
    layer = name if isinstance(name, type) else find_attention(name)
    try:
        return layer(in_channels, out_channels, **options)  # type: ignore[arg-type]
    except TypeError as error:
        for option in options:
            if f"unexpected keyword argument {option!r}" in str(error):
                parts = (signature(part).parameters.values() for part in layer.__mro__)
                known = {one.name for one in chain(*parts) if one.kind is one.KEYWORD_ONLY}
                what = f"option of {layer.__name__}"
                raise TypeError(str(UnknownNameError(what, option, known))) from error
        raise


def find_attention(name: str) -> type[Attention2d]:
    """Return the class of a layer by its name.

    Raises:
        UnknownNameError: If there is none.
    """
    of_module = " (import its module first)" if "." in name else ""
    check_name(f"attention{of_module}", name, ATTENTIONS)
    return ATTENTIONS[name]


LAYOUTS = {"full": ("full",), "axial": ("height", "width")}
"""Axes of the attention layers that replace a convolution, in sequence."""

# Networks are trained without key adaptation; it is for inference (Gabbur et al., 2021, §4.2).
_DEFAULTS: dict[str, dict[str, Any]] = {"probabilistic": {"key_iterations": 0}}


def replacing_convolution(
    name: str,
    in_channels: int,
    out_channels: int,
    *,
    layout: str,
    num_heads: int,
    position: str | None,
    position_size: tuple[int, int],
    options: Mapping[str, Any] | None = None,
) -> list[Attention2d]:
    """Build the attention layers that replace a 3x3 convolution (Srinivas et al., 2021).

    Args:
        name: Name of the layer in `ATTENTIONS`.
        in_channels: Channels of the features.
        out_channels: Channels of the output, which the heads share evenly.
        layout: "full", where a pixel sees the whole map, or "axial": its column, then its row.
        num_heads: Number of heads.
        position: Relative position embeddings: "factored", "full" or None. With the layout "axial",
            the first two are the same function.
        position_size: Height and width of the map that they are learnt for.
        options: Further arguments of the layer's class. Key adaptation of "probabilistic" is off
            unless it is asked for, `{"key_iterations": 1, "key_prior": 0.001}`.

    Returns:
        One layer, or two in sequence.

    Raises:
        UnknownNameError: If there is no attention, layout or position of that name.
        ValueError: If another argument does not fit.
    """
    check_name("layout", layout, LAYOUTS)
    layers = []
    for axis in LAYOUTS[layout]:
        layer = build_attention(
            name,
            in_channels,
            out_channels,
            num_heads=num_heads,
            head_channels=out_channels // max(num_heads, 1),  # the layer refuses others
            axis=axis,
            position=position,
            position_size=position_size,
            **{**_DEFAULTS.get(name, {}), **(options or {})},
        )
        layers.append(layer)
        in_channels = out_channels
    return layers


__all__ = [
    "ATTENTIONS",
    "LAYOUTS",
    "UPDATES",
    "Adaptation",
    "AdaptiveClassifier",
    "Attention2d",
    "ClickAdaptation",
    "LocalAttention2d",
    "ProbabilisticAttention",
    "ProbabilisticAttention2d",
    "StandardAttention2d",
    "adapt",
    "adaptation_of",
    "build_attention",
    "convert_attention",
    "probabilistic_layers",
    "register_attention",
    "replacing_convolution",
    "restored",
]

__getattr__ = lazy_getattr(
    __name__, {"LocalAttention2d": "probseg.attention.base.LocalAttention2d"}
)
