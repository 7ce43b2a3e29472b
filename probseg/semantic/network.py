"""The network from an image to class logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from probseg.attention.bases import Bases
from probseg.backbones import Backbone, ResNet
from probseg.kinds import TaskName
from probseg.models.network import Network, check_head, check_image, normalised
from probseg.ops.checks import check_iterations
from probseg.semantic.heads import EMAHead, SemanticHead
from probseg.types import FeatureInfo


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
    mean: Tensor
    std: Tensor

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
        """Compute the logits of the classes.

        Args:
            image: RGB in [0, 1], float, shape `(B, 3, H, W)`.

        Returns:
            Logits, float32, shape `(B, C, H, W)`.

        Raises:
            ValueError: If the image is something else.
        """
        logits = self.head(self.features(image)).float()
        return enlarged(logits, self.backbone.features.strides[-1], image.shape[-2:])

    def features(self, image: Tensor) -> list[Tensor]:
        """Compute what the head sees.

        Args:
            image: RGB in [0, 1], float, shape `(B, 3, H, W)`.

        Returns:
            Feature maps of the backbone, finest first.

        Raises:
            ValueError: If the image is something else.
        """
        maps: list[Tensor] = self.backbone(self._filled(image))
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
            msg = (
                "`head` must be an EMAHead to have responsibilities, got "
                f"{type(self.head).__name__}"
            )
            raise ValueError(msg)
        return self.head.responsibilities(self.features(image))

    @contextmanager
    def iterations(self, number: int) -> Iterator[None]:
        """Set the EM iterations of the head in evaluation mode, until the end of the context.

        Args:
            number: Number of iterations, at least 1.

        Raises:
            ValueError: If it is less, or nothing in the head iterates EM.
        """
        check_iterations(number, "number")
        layers = [module for module in self.head.modules() if isinstance(module, Bases)]
        if not layers:
            msg = (
                "`head` must have bases to set the iterations of EM, got "
                f"{type(self.head).__name__} without any"
            )
            raise ValueError(msg)
        before = [layer.eval_iterations for layer in layers]
        try:
            for layer in layers:
                layer.eval_iterations = number
            yield
        finally:
            for layer, own in zip(layers, before, strict=True):
                layer.eval_iterations = own

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
            msg = (
                f"`backbone` must be a ResNet to change its output stride, got "
                f"{type(self.backbone).__name__}; leave the output stride out"
            )
            raise ValueError(msg)
        with self.backbone.at_output_stride(number):
            yield

    @contextmanager
    def changed(self, iterations: int | None, output_stride: int | None) -> Iterator[None]:
        """Set iterations and output stride, until the end of the context.

        Args:
            iterations: As for `iterations`; None for the network's own.
            output_stride: As for `output_stride`; None for the network's own.

        Raises:
            ValueError: If the network cannot have them.
        """
        with ExitStack() as changes:
            if iterations is not None:
                changes.enter_context(self.iterations(iterations))
            if output_stride is not None:
                changes.enter_context(self.output_stride(output_stride))
            yield

    def _filled(self, image: Tensor) -> Tensor:
        """Return the pixels that the backbone sees."""
        check_image(image)
        image = normalised(image, self.mean, self.std)
        stride = self.backbone.features.strides[-1]
        height, width = image.shape[-2:]
        return F.pad(image, (0, -(width - 1) % stride, 0, -(height - 1) % stride))


def enlarged(maps: Tensor, stride: int, size: Sequence[int]) -> Tensor:
    """Enlarge maps bilinearly: sample `i` of a map comes to lie at pixel `i * stride`.

    Args:
        maps: Shape `(B, C, h, w)`.
        stride: Pixels per sample.
        size: Height and width of the result, at most `(h - 1) * stride + 1` and
            `(w - 1) * stride + 1`; the pixels beyond are cut off.

    Returns:
        Maps of shape `(B, C, *size)`.
    """
    height, width = ((side - 1) * stride + 1 for side in maps.shape[-2:])
    large = F.interpolate(maps, (height, width), mode="bilinear", align_corners=True)
    return large[..., : size[0], : size[1]]
