"""The network from an image to class logits, its presets, and the classes it predicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from probseg.attention.bases import Bases
from probseg.backbones import Backbone, ResNet
from probseg.descriptions import Changes
from probseg.errors import check_least
from probseg.kinds import TaskName
from probseg.models import build, override, read_preset
from probseg.models.network import (
    Network,
    check_head,
    check_image,
    check_values,
    normalise,
    resize_maps,
)
from probseg.ops.numerics import working_dtype
from probseg.semantic.heads import EMAHead, SemanticHead
from probseg.types import FeatureInfo
from probseg.zoo.store import check_fit
from probseg.zoo.trained import read_trained


class SemanticSegmenter(Network):
    """Network for semantic segmentation: normalisation, backbone and head.

    Images have any size. Sample `i` of a map of stride `s` lies at pixel `i s`. Images are
    therefore filled up with the mean colour, at the right and at the bottom, to one pixel more than
    a multiple of the stride, and logits enlarged with the outermost samples on the outermost
    pixels.

    Args:
        backbone: Image to feature maps.
        head: Builds the head for the backbone's features, for instance
            `functools.partial(EMAHead, num_classes=12)`.

    Raises:
        ValueError: If the head is one for interactive segmentation.
    """

    task: ClassVar[TaskName] = "semantic"

    def __init__(self, backbone: Backbone, head: Callable[[FeatureInfo], SemanticHead]) -> None:
        super().__init__()
        check_head(head, SemanticHead, "SemanticSegmenter")
        self.backbone = backbone
        self.head: SemanticHead = head(backbone.features)
        self.register_buffer("mean", torch.tensor(backbone.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(backbone.std).view(3, 1, 1), persistent=False)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.head.num_classes

    def forward(self, image: Tensor) -> Tensor:
        """Return logits `(B, C, H, W)`, float32 (or 64), of RGB images `(B, 3, H, W)` in [0, 1]."""
        check_image(image)
        check_values(image)
        return self.decode(self.features(image), image.shape[-2:])

    def decode(self, maps: list[Tensor], size: Sequence[int]) -> Tensor:
        """Return logits `(B, C, H, W)`, float32 (or 64), of the maps of images of this size."""
        logits = self.head(maps)
        logits = logits.to(working_dtype(logits.dtype))
        return enlarge(logits, self.backbone.features.strides[-1], size)

    def features(self, image: Tensor) -> list[Tensor]:
        """Return the backbone's maps, finest first, of RGB images `(B, 3, H, W)` in [0, 1]."""
        check_image(image)
        image = normalise(image, self.mean, self.std)
        stride = self.backbone.features.strides[-1]
        height, width = image.shape[-2:]
        image = F.pad(image, (0, -(width - 1) % stride, 0, -(height - 1) % stride))
        maps: list[Tensor] = self.backbone(image)
        return maps

    def responsibilities(self, image: Tensor) -> Tensor:
        """Return the responsibilities of the head's bases for each position in the last E step.

        Args:
            image: RGB in [0, 1], float, shape `(B, 3, H, W)`.

        Returns:
            `(B, K, h, w)` in [0, 1], float32; the sum over the `K` bases is 1. Sample
            `(i, j)` lies at pixel `(i s, j s)` for the stride `s` of the coarsest map.

        Raises:
            ValueError: If the head has no bases.
        """
        if not isinstance(self.head, EMAHead):
            raise ValueError(
                "`head` must be an EMAHead to have responsibilities, got "
                f"{type(self.head).__name__}"
            )
        return self.head.responsibilities(self.features(image))

    @contextmanager
    def iterations(self, number: int) -> Iterator[None]:
        """Set the EM iterations of the head in evaluation mode, until the end of the context.

        Args:
            number: Number of iterations, at least 1.

        Raises:
            ValueError: If it is less, or nothing in the head iterates EM.
        """
        check_least("number", number)
        layers = [module for module in self.head.modules() if isinstance(module, Bases)]
        if not layers:
            raise ValueError(
                "`head` must have bases to set the iterations of EM, got "
                f"{type(self.head).__name__} without any"
            )
        before = [layer.eval_iterations for layer in layers]
        try:
            for layer in layers:
                layer.eval_iterations = number
            yield
        finally:
            for layer, value in zip(layers, before, strict=True):
                layer.eval_iterations = value

    @contextmanager
    def output_stride(self, number: int) -> Iterator[None]:
        """Give the coarsest map another stride, until the end of the context.

        Weights stay the same; strides and dilations of the backbone's convolutions are exchanged.

        Args:
            number: The stride: 8, 16 or 32.

        Raises:
            ValueError: If it is another, or the backbone has no choice.
        """
        if number == self.backbone.features.strides[-1]:
            yield
            return
        if not isinstance(self.backbone, ResNet):
            raise ValueError(
                f"`backbone` must be a ResNet to change its output stride, got "
                f"{type(self.backbone).__name__}; leave the output stride out"
            )
        with self.backbone.at_output_stride(number):
            yield

    @contextmanager
    def changed(self, iterations: int | None, output_stride: int | None) -> Iterator[None]:
        """Set iterations and output stride, until the end of the context; None leaves them."""
        with ExitStack() as changes:
            if iterations is not None:
                changes.enter_context(self.iterations(iterations))
            if output_stride is not None:
                changes.enter_context(self.output_stride(output_stride))
            yield


def enlarge(maps: Tensor, stride: int, size: Sequence[int]) -> Tensor:
    """Enlarge maps `(B, C, h, w)` bilinearly: sample `i` comes to lie at pixel `i * stride`.

    Pixels beyond the size, at most `(h - 1) * stride + 1` and `(w - 1) * stride + 1`, are cut off.
    """
    height, width = ((side - 1) * stride + 1 for side in maps.shape[-2:])
    large = F.interpolate(maps, (height, width), mode="bilinear", align_corners=True)
    return large[..., : size[0], : size[1]]


def predict_classes(
    model: SemanticSegmenter, image: Tensor, scales: Sequence[float] = (1.0,), flip: bool = False
) -> Tensor:
    """Predict the class of each pixel.

    With several sizes relative to the image `(B, 3, H, W)`, or mirrored, it is the class `(B, H,
    W)` of the highest mean probability, as is usual in tests "MS" and "Flip" (Li et al. 2019,
    Tab. 1).
    """
    if tuple(scales) == (1.0,) and not flip:  # the order of logits is that of probabilities
        logits: Tensor = model(image)
        return logits.argmax(dim=1)
    return class_probabilities(model, image, scales, flip).argmax(dim=1)


def class_probabilities(
    model: SemanticSegmenter, image: Tensor, scales: Sequence[float] = (1.0,), flip: bool = False
) -> Tensor:
    """Return the mean class probabilities `(B, C, H, W)` over all scales, mirrored too."""
    size = image.shape[-2], image.shape[-1]
    total = image.new_zeros(())
    for scale in scales:
        scaled = resize_maps(
            image, (max(1, round(scale * size[0])), max(1, round(scale * size[1])))
        )
        for mirrored in (False, True) if flip else (False,):
            logits = model(scaled.flip(-1) if mirrored else scaled)
            probabilities = resize_maps(logits.softmax(dim=1), size)
            probabilities = probabilities.flip(-1) if mirrored else probabilities
            total = total + probabilities
    return total / (len(scales) * (1 + flip))


def semantic_variant(
    of: str, changes: Changes | None = None, weights: str | None = None
) -> SemanticSegmenter:
    """Build a preset for semantic segmentation with some arguments changed.

    Args:
        of: Name of the preset, one of `probseg.models.list_presets("semantic")`.
        changes: Arguments to change, as in `probseg.models.override`:
            `{"head": {"num_classes": 12}}`.
        weights: Run of `probseg fit` (its best checkpoint), checkpoint or model folder whose
            weights the network starts from; None leaves those of the preset.

    Raises:
        UnknownNameError: If there is no such preset.
        UsageError: If it is a preset for another task.
        ValueError: If a part is to be changed by something else than a dictionary.
        WeightsError: If weights differ in name or shape.
    """
    model = build(override(read_preset(of, "semantic"), changes or {}), SemanticSegmenter)
    if weights is not None:
        start = read_trained(Path(weights)).weights
        check_fit(model.state_dict(), start, f"{weights}, for {of}")
        model.load_state_dict(start)
    return model
