"""Checks of images and parts that both networks share, and the normalisation of images."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn


def check_head(head: Callable[..., nn.Module], wanted: type[nn.Module], network: str) -> None:
    """Raise unless the head that is going to be built is one for this network.

    Heads of the other task take other arguments, and would be refused for one of these.

    Args:
        head: Class of a head, or a partial of one; other callables pass.
        wanted: Base class of the network's heads.
        network: Name of the network's class.

    Raises:
        ValueError: If it is the class of something else.
    """
    kind: Any = head.func if isinstance(head, partial) else head
    if isinstance(kind, type) and not issubclass(kind, wanted):
        msg = (
            f"`head` must be a {wanted.__name__}, which a {network} is built with, got "
            f"{kind.__name__}; a Segmenter takes the heads of interactive segmentation, a "
            "SemanticSegmenter those of semantic segmentation"
        )
        raise ValueError(msg)


def check_image(image: Tensor) -> None:
    """Raise a ValueError unless images are RGB, float, of shape `(B, 3, H, W)`."""
    if image.ndim != 4 or image.shape[1] != 3 or not image.is_floating_point():
        msg = (
            "`image` must be float in [0, 1] of shape (B, 3, H, W), got "
            f"{image.dtype} of shape {tuple(image.shape)}"
        )
        raise ValueError(msg)


def normalised(image: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return images with the mean and the deviation that the backbone expects, in its dtype."""
    # Under true half precision the weights, and with them the network's buffers, are not float32.
    return ((image - mean) / std).to(mean.dtype)
