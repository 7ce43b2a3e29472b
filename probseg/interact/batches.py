"""Images of several sizes, and their prompts, in one call of a network."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from probseg.geometry import Size
from probseg.heads.base import DecoderMaps, Units
from probseg.models import Encoded, Segmenter
from probseg.types import Prompts

Decoded = tuple[Sequence[Tensor], Sequence[Tensor] | Tensor | None]
"""Logits `(H, W)` of each image, and the predicted IoU of each answer with the truth, from 0 to 1;
None of models that do not predict it."""


class Model(Protocol):
    """A model for clicks on many images at once; `SegmenterModel` makes one of a `Segmenter`."""

    def grid(self, size: Size) -> Hashable:
        """Return what images of size `(H, W)` must have in common to be computed together."""

    def encode_each(self, images: Sequence[Tensor]) -> Sequence[Any]:
        """Encode images `(3, H, W)` in [0, 1] of one `grid`; called once for each image."""

    def decode_each(self, encoded: Sequence[Any], prompts: Sequence[Prompts]) -> Decoded:
        """Answer all prompts so far (a batch of 1) on each image.

        Returns:
            Logits `(H, W)` of each image; and the IoU with the truth that the model predicts for
            each answer, from 0 to 1, or None if it predicts none.
        """


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

    def decode_each(self, encoded: Sequence[Tensor], prompts: Sequence[Prompts]) -> Decoded:
        """Call the function for each image."""
        pairs = zip(encoded, prompts, strict=True)
        return [self.predict(image[None], asked)[0, 0] for image, asked in pairs], None


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
        return self.network.sizes(size)[1]

    def encode_each(self, images: Sequence[Tensor]) -> list[Encoded]:
        """Compute what does not depend on prompts, for images of one `grid`."""
        prepared = [self.network.prepared(image[None]) for image in images]
        decoder_maps = self.network.features(torch.cat([encoded.image for encoded in prepared]))
        if decoder_maps is None:
            return prepared
        decoder_maps = decoder_maps._replace(auxiliary=None)  # for the loss alone
        return [
            encoded._replace(decoder_maps=decoder_maps.each(lambda maps, n=n: maps[n : n + 1]))  # type: ignore[misc]
            for n, encoded in enumerate(prepared)
        ]

    def decode_each(self, encoded: Sequence[Encoded], prompts: Sequence[Prompts]) -> Decoded:
        """Answer clicks and box of each image, a batch of 1 in its pixels.

        Raises:
            ValueError: If the shapes do not fit together.
        """
        network = self.network
        moved = [
            network.moved(network.uncalibrated(asked), image)
            for image, asked in zip(encoded, prompts, strict=True)
        ]
        images = torch.cat([image.image for image in encoded])
        raw, _, quality = network.grid_logits(
            images, _joined_features(encoded), _joined_prompts(moved)
        )
        logits = []
        for n, image in enumerate(encoded):
            refined = network.refined(raw[n : n + 1], image, moved[n])
            logits.append(network.calibrated(image.enlarged(refined))[0, 0])
        return logits, None if quality is None else quality.sigmoid()


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

    All of them have previous masks of one size, or none has.
    """
    if len(prompts) == 1:
        return prompts[0]
    previous = [each.previous for each in prompts if each.previous is not None]
    most = max(each.labels.shape[1] for each in prompts)
    missing = [most - each.labels.shape[1] for each in prompts]
    pairs = list(zip(prompts, missing, strict=True))
    return Prompts(
        points=torch.cat([F.pad(each.points, (0, 0, 0, n)) for each, n in pairs]),
        labels=torch.cat([F.pad(each.labels, (0, n), value=-1) for each, n in pairs]),
        boxes=torch.cat([each.boxes for each in prompts]),
        previous=torch.cat(previous) if previous else None,
    )
