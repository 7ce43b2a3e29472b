"""Images of several sizes, and their prompts, in one call of a network."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from probseg.heads.base import DecoderMaps, Units
from probseg.models import Encoded, Segmenter
from probseg.models.encoded import Size, as_given
from probseg.types import Prompts


class Model(Protocol):
    """A model for clicks on many images at once; `SegmenterModel` makes one of a `Segmenter`."""

    def grid(self, size: Size) -> Hashable:
        """Return what images of size `(H, W)` must have in common to be computed together."""

    def encode_each(self, images: Sequence[Tensor]) -> Sequence[Any]:
        """Encode images `(3, H, W)` in [0, 1] of one `grid`; called once for each image."""

    def decode_each(self, encoded: Sequence[Any], prompts: Sequence[Prompts]) -> Sequence[Tensor]:
        """Return logits `(H, W)` of each image for all its prompts so far (a batch of 1)."""


class Answered(NamedTuple):
    """Answer to all prompts on one image.

    Args:
        logits: Calibrated, float32, shape `(H, W)`.
        quality: Predicted IoU of the mask with the truth, as far as the image shows it, from 0 to
            1, shape `()`; None where the model does not predict it.
    """

    logits: Tensor
    quality: Tensor | None = None


class OneStep(NamedTuple):
    """A model that is one function of image `(1, 3, H, W)` and prompts.

    Args:
        predict: Returns logits `(1, 1, H, W)`.
    """

    predict: Callable[[Tensor, Prompts], Tensor]

    def grid(self, size: Size) -> Size:
        """Compute images of one size together."""
        return size

    def encode_each(self, images: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the images unchanged."""
        return images

    def decode_each(self, encoded: Sequence[Tensor], prompts: Sequence[Prompts]) -> list[Tensor]:
        """Call the function for each image."""
        return [
            self.predict(image[None], own)[0, 0]
            for image, own in zip(encoded, prompts, strict=True)
        ]


class SegmenterModel(NamedTuple):
    """The `Model` of a `Segmenter`: images of several sizes in one call.

    The answers are those of `Segmenter.encode` and `Segmenter.decode` for each image, up to the
    rounding of batched kernels. Images that are padded to one size share a call.

    Args:
        network: In evaluation mode.
    """

    network: Segmenter

    def grid(self, size: Size) -> Size:
        """Return the size of the padded image that the network sees, for one of size `(H, W)`."""
        height, width = self.network.sized(size)
        cell = self.network.cell
        return height + -height % cell, width + -width % cell

    def encode_each(self, images: Sequence[Tensor]) -> list[Encoded]:
        """Compute what does not depend on prompts.

        Args:
            images: RGB in [0, 1], float, shape `(3, H, W)` each, all of one `grid`.
        """
        prepared = [self.network.prepared(image[None]) for image in images]
        decoder_maps = self.network.features(torch.cat([encoded.image for encoded in prepared]))
        if decoder_maps is None:
            return prepared
        decoder_maps = decoder_maps._replace(auxiliary=None)  # for the loss alone
        return [
            encoded._replace(decoder_maps=decoder_maps.each(lambda maps, n=n: maps[n : n + 1]))  # type: ignore[misc]
            for n, encoded in enumerate(prepared)
        ]

    def decode_each(self, encoded: Sequence[Encoded], prompts: Sequence[Prompts]) -> list[Tensor]:
        """Return the logits of `answer_each`."""
        return [answered.logits for answered in self.answer_each(encoded, prompts)]

    def answer_each(self, encoded: Sequence[Encoded], prompts: Sequence[Prompts]) -> list[Answered]:
        """Answer the prompts on each image.

        Args:
            encoded: Of `encode_each`, all of one `grid`.
            prompts: Clicks and box of each image, as a batch of 1, in its pixels.

        Raises:
            ValueError: If the shapes do not fit together.
        """
        network = self.network
        moved = [
            network.moved(network.uncalibrated(own), image)
            for image, own in zip(encoded, prompts, strict=True)
        ]
        image = torch.cat([part.image for part in encoded])
        maps = _joined_features(encoded)
        raw, _, quality = network.grid_logits(image, maps, _joined_prompts(moved))
        answers = []
        for n, part in enumerate(encoded):
            refined = as_given(network.refined(raw[n : n + 1], part, moved[n]), part)
            own = None if quality is None else quality[n].sigmoid()
            answers.append(Answered(network.calibrated(refined)[0, 0], own))
        return answers


def _joined_features(encoded: Sequence[Encoded]) -> DecoderMaps | None:
    """Return the features of several images as one batch; None where prompts enter at the stem."""
    parts = [image.decoder_maps for image in encoded if image.decoder_maps is not None]
    if len(parts) <= 1:
        return parts[0] if parts else None
    units = [maps.units for maps in parts if maps.units is not None]
    return DecoderMaps(
        torch.cat([maps.features for maps in parts]),
        coarser=tuple(map(torch.cat, zip(*(maps.coarser for maps in parts), strict=True))),
        units=Units(*map(torch.cat, zip(*units, strict=True))) if units else None,
    )


def _joined_prompts(prompts: Sequence[Prompts]) -> Prompts:
    """Return the prompts of several images as one batch, padded with rows that are no clicks.

    Args:
        prompts: Of each image; all of them with previous masks of one size, or all without.
    """
    if len(prompts) == 1:
        return prompts[0]
    previous = [own.previous for own in prompts if own.previous is not None]
    most = max(own.labels.shape[1] for own in prompts)
    missing = [most - own.labels.shape[1] for own in prompts]
    pairs = list(zip(prompts, missing, strict=True))
    return Prompts(
        points=torch.cat([F.pad(own.points, (0, 0, 0, n)) for own, n in pairs]),
        labels=torch.cat([F.pad(own.labels, (0, n), value=-1) for own, n in pairs]),
        boxes=torch.cat([own.boxes for own in prompts]),
        previous=torch.cat(previous) if previous else None,
    )
