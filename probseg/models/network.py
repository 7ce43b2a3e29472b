"""What the networks of all tasks share: their base, their images, and checks of both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from probseg.errors import require
from probseg.kinds import TaskName

Size = tuple[int, int]


class Network(nn.Module):
    """Base of the networks of all tasks.

    Attributes:
        task: Name of the task, one of `probseg.kinds.TASKS`.
    """

    task: ClassVar[TaskName]


def check_head(head: Callable[..., nn.Module], expected: type[nn.Module], network: str) -> None:
    """Raise a ValueError if the head to be built, a class or a partial, is one of another task."""
    kind: Any = head.func if isinstance(head, partial) else head
    require(
        not isinstance(kind, type) or issubclass(kind, expected),
        "head",
        f"a {expected.__name__}, which a {network} is built with",
        getattr(kind, "__name__", kind),
        "a Segmenter takes the heads of interactive segmentation, a SemanticSegmenter those of "
        "semantic segmentation",
    )


def check_image(image: Tensor) -> None:
    """Raise a ValueError unless images are RGB, float, of shape `(B, 3, H, W)`."""
    fits = image.ndim == 4 and image.shape[1] == 3 and image.is_floating_point()
    seen = f"{image.dtype} of shape {tuple(image.shape)}"
    require(fits, "image", "float in [0, 1] of shape (B, 3, H, W)", seen)


def normalised(image: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return images with the mean and the deviation that the backbone expects, in its dtype."""
    # Under true half precision the weights, and with them the network's buffers, are not float32.
    return ((image - mean) / std).to(mean.dtype)


def resized(maps: Tensor, size: Size) -> Tensor:
    """Resize maps `(B, C, H, W)`, without aliasing; those of this size are returned unchanged."""
    if tuple(maps.shape[-2:]) == size:
        return maps
    return F.interpolate(maps, size, mode="bilinear", align_corners=False, antialias=True)


def scaled(size: Size, longest: int) -> Size:
    """Return the size of a picture `(H, W)` when its longer side is `longest`."""
    factor = longest / max(size)
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def reduced(size: Size, longest: int | None) -> Size:
    """Return the size of a picture that fits into the longest side; None is no limit."""
    return size if longest is None or max(size) <= longest else scaled(size, longest)
