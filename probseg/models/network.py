"""What the networks of all tasks share: their base, their images, and checks of both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from probseg.geometry import Size
from probseg.kinds import TaskName


class Network(nn.Module):
    """Base of the networks of all tasks.

    Attributes:
        task: Name of the task, one of `probseg.kinds.TASKS`.
    """

    task: ClassVar[TaskName]


def check_head(head: Callable[..., nn.Module], expected: type[nn.Module], network: str) -> None:
    """Raise a ValueError if the head to be built, a class or a partial, is one of another task."""
    kind: Any = head.func if isinstance(head, partial) else head
    if isinstance(kind, type) and not issubclass(kind, expected):
        msg = (
            f"`head` must be a {expected.__name__}, which a {network} is built with, got "
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


def resized(maps: Tensor, size: Size) -> Tensor:
    """Resize maps `(B, C, H, W)`, without aliasing; those of this size are returned unchanged."""
    if tuple(maps.shape[-2:]) == size:
        return maps
    return F.interpolate(maps, size, mode="bilinear", align_corners=False, antialias=True)
