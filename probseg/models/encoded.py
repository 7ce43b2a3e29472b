"""Transfer of images and prompts to a network's grid, and of logits back to the images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from probseg.heads.base import DecoderMaps
from probseg.types import Prompts

Size = tuple[int, int]
Sizing = Literal["reduce", "fit", "stretch"]


class Encoded(NamedTuple):
    """Output of the image encoder: everything that depends on the images alone.

    Args:
        size: `(H, W)` of the images, whose pixels prompts are given in.
        working_size: `(h, w)` that the network works at.
        image: Normalised images, padded at the right and at the bottom to whole cells of the
            decoder's and the head's grids, shape `(B, 3, h + ..., w + ...)`.
        decoder_maps: The decoder's result, where it does not depend on prompts; None where it does.
    """

    size: Size
    working_size: Size
    image: Tensor
    decoder_maps: DecoderMaps | None

    def repeated(self, times: int) -> Encoded:
        """Return each image repeated `times` times in a row."""
        return self if times == 1 else self.each(lambda maps: maps.repeat_interleave(times, dim=0))

    def each(self, change: Callable[[Tensor], Tensor]) -> Encoded:
        """Return the result with every tensor changed."""
        decoder_maps = None if self.decoder_maps is None else self.decoder_maps.each(change)
        return self._replace(image=change(self.image), decoder_maps=decoder_maps)


def reduced(size: Size, longest: int | None) -> Size:
    """Return the size that fits into the longest side."""
    if longest is None or max(size) <= longest:
        return size
    factor = longest / max(size)
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def at_work(size: Size, side: int | None, sizing: Sizing) -> Size:
    """Return the size `(h, w)` that a network works at, see `Segmenter`.

    Args:
        size: `(H, W)` of the image.
        side: The network's working size; None works at every image's own size.
        sizing: Which images are brought to it.
    """
    if side is None:
        return size
    if sizing == "stretch":
        return side, side
    if sizing == "fit" and max(size) < side:
        return max(1, round(size[0] * side / max(size))), max(1, round(size[1] * side / max(size)))
    return reduced(size, side)


def resized(maps: Tensor, size: Size) -> Tensor:
    """Resize maps `(B, C, H, W)`, without aliasing; those of this size are returned as given."""
    if tuple(maps.shape[-2:]) == size:
        return maps
    return F.interpolate(maps, size, mode="bilinear", align_corners=False, antialias=True)


def moved_prompts(prompts: Prompts, size: Size, new_size: Size) -> Prompts:
    """Express prompts in the pixels of images of another size.

    Args:
        prompts: Clicks, boxes and previous mask in pixels of images of `size`.
        size: `(H, W)`.
        new_size: `(h, w)` of the same images resized.
    """
    if size == new_size:
        return prompts
    scale = prompts.boxes.new_tensor([new_size[1] / size[1], new_size[0] / size[0]])
    # A point is the centre of a pixel, half a pixel from the pixel's border; boxes are borders.
    return Prompts(
        points=(prompts.points + 0.5) * scale - 0.5,
        labels=prompts.labels,
        boxes=prompts.boxes * scale.repeat(2),
        previous=None if prompts.previous is None else resized(prompts.previous, new_size),
    )


def padded_previous(prompts: Prompts, size: Size) -> Prompts:
    """Pad the previous mask with zeros, at the right and at the bottom.

    Args:
        prompts: Those of `B` images; without a previous mask, nothing was answered yet.
        size: `(h, w)` of the padded images.

    Returns:
        The prompts with a previous mask float32 of shape `(B, 1, h, w)`, through which no
        gradient flows.
    """
    previous = prompts.previous
    if previous is None:
        previous = prompts.boxes.new_zeros(len(prompts.boxes), 1, 0, 0)
    right, bottom = size[1] - previous.shape[-1], size[0] - previous.shape[-2]
    previous = F.pad(previous.detach().float(), (0, right, 0, bottom))
    return prompts._replace(previous=previous)


def without_padding(encoded: Encoded, *maps: Tensor) -> list[Tensor]:
    """Return maps `(B, C, h, w)` without the padding of their images, `(B, C, h', w')`."""
    height, width = encoded.working_size
    return [one[..., :height, :width] for one in maps]


def as_given(logits: Tensor, encoded: Encoded) -> Tensor:
    """Cut the padding off, and enlarge the logits to the size of the images."""
    (logits,) = without_padding(encoded, logits.float())
    if encoded.working_size == encoded.size:
        return logits
    return F.interpolate(logits, encoded.size, mode="bilinear", align_corners=False)


def check_prompts(prompts: Prompts, batch: int, size: Size, previous_mask: bool) -> None:
    """Raise unless prompts fit the images, and the network takes all of them.

    Args:
        prompts: Clicks, boxes and previous mask.
        batch: Number of images.
        size: `(H, W)` of the images.
        previous_mask: Whether the network takes a previous mask.

    Raises:
        ValueError: If shapes do not fit together, or there is a previous mask that the network does
            not take.
    """
    points, labels, boxes = prompts.points.shape, prompts.labels.shape, prompts.boxes.shape
    if points != (*labels, 2) or labels[:1] != (batch,) or boxes != (batch, 4):
        msg = (
            f"`prompts` must have `points` (B, S, 2), labels (B, S) and boxes (B, 4) of {batch} "
            f"images, got {tuple(points)}, {tuple(labels)} and {tuple(boxes)}"
        )
        raise ValueError(msg)
    if prompts.previous is None:
        return
    if not previous_mask:
        msg = (
            "`prompts.previous` must be None for a network without previous mask, got a mask; "
            "choose a protocol without `previous_mask`, or a network that is built with "
            "previous_mask=True"
        )
        raise ValueError(msg)
    shape, wanted = tuple(prompts.previous.shape), (batch, 1, *size)
    if shape != wanted or not prompts.previous.is_floating_point():
        msg = (
            f"`prompts.previous` must be probabilities, float of shape {wanted}, got "
            f"{prompts.previous.dtype} of shape {shape}"
        )
        raise ValueError(msg)
