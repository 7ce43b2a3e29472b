"""Transfer of images and prompts to a network's grid, and of logits back to the images."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from probseg.geometry import Size
from probseg.heads.base import DecoderMaps
from probseg.models.network import resized
from probseg.types import Prompts


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

    def unpadded(self, maps: Tensor) -> Tensor:
        """Return maps `(B, C, h + ..., w + ...)` without the padding, `(B, C, h, w)`."""
        return maps[..., : self.working_size[0], : self.working_size[1]]

    def enlarged(self, logits: Tensor) -> Tensor:
        """Return logits of the padded or of the unpadded images at the size of the images."""
        logits = self.unpadded(logits.float())
        if self.working_size == self.size:
            return logits
        return F.interpolate(logits, self.size, mode="bilinear", align_corners=False)


def moved_prompts(prompts: Prompts, size: Size, new_size: Size) -> Prompts:
    """Return prompts on images of `size`, `(H, W)`, in the pixels of these images resized."""
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


def check_prompts(prompts: Prompts, batch: int, size: Size, previous_mask: bool) -> None:
    """Raise a ValueError unless prompts fit `batch` images `(H, W)` and what the network takes."""
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
    shape, expected = tuple(prompts.previous.shape), (batch, 1, *size)
    if shape != expected or not prompts.previous.is_floating_point():
        msg = (
            f"`prompts.previous` must be probabilities, float of shape {expected}, got "
            f"{prompts.previous.dtype} of shape {shape}"
        )
        raise ValueError(msg)
