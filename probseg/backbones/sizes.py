"""Sizes of images that a network takes, found by trying small ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.types import FeatureInfo

Maps = Callable[[Tensor], Sequence[Tensor]]

ANY = (1, 33)
"""A network that takes this size takes every size: one cell is left, and all halvings are odd."""

WINDOWS = (1, 2, 7)
"""Sides of windows, in cells of the coarsest map, that an image may have to be divided into."""


class SizeError(ValueError):
    """A network takes images of few sizes only."""


def find_multiple(network: nn.Module, maps: Maps, features: FeatureInfo) -> int:
    """Find the number of pixels to whole multiples of which images must be padded.

    The network runs in evaluation mode, once for each tried size. Its weights stay as they are.

    Args:
        network: Whose parameters and mode count.
        maps: Computes the network's feature maps, shape `(B, C, h, w)` each.
        features: Channels and strides that the maps should have.

    Returns:
        1 if every size gives `ceil(H / stride)` rows and `ceil(W / stride)` columns, otherwise the
        smallest multiple of all strides that does.

    Raises:
        SizeError: If there is none; the message says what happened at the last tried size.
    """
    coarsest = math.lcm(*features.strides)
    trials = [(1, ANY), *((m, (m, 2 * m)) for m in (coarsest * side for side in WINDOWS))]
    with _evaluating(network):
        for multiple, size in trials:
            reason = _misfit(network, maps, features, size)
            if reason is None:
                return multiple
    raise SizeError(reason)


def whole_cells(maps: Maps, x: Tensor, multiple: int, strides: Sequence[int]) -> list[Tensor]:
    """Compute the maps of images that are padded with zeros to whole multiples of some pixels.

    Args:
        maps: Computes feature maps of images whose sides are such multiples.
        x: Images, shape `(B, C, H, W)`, any size.
        multiple: The number of pixels.
        strides: Those of the maps.

    Returns:
        The maps without the cells that lie in the padding alone.
    """
    height, width = x.shape[-2:]
    right, bottom = -width % multiple, -height % multiple
    if not right and not bottom:
        return list(maps(x))
    return [
        own[..., : -(-height // step), : -(-width // step)]
        for own, step in zip(maps(F.pad(x, (0, right, 0, bottom))), strides, strict=True)
    ]


def _misfit(
    network: nn.Module, maps: Maps, features: FeatureInfo, size: tuple[int, int]
) -> str | None:
    """Return why an image of this size does not give the described maps; None if it does."""
    height, width = size
    try:
        made = maps(next(network.parameters()).new_zeros(1, 3, height, width))
    except Exception as error:  # whatever a library's network raises at a size that it cannot take
        return f"{width} x {height} pixels: {type(error).__name__}: {error}"
    shapes = [tuple(own.shape[1:]) for own in made]
    expected = [
        (channels, -(-height // stride), -(-width // stride))
        for channels, stride in zip(*features[:2], strict=True)
    ]
    if shapes == expected:
        return None
    return f"{width} x {height} pixels: maps {shapes} instead of {expected}"


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(training)
