"""The straight road from image and prompts to logits."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.backbones import Backbone
from probseg.clicks.maps import ClickMaps
from probseg.heads import Decoder, Head
from probseg.types import FeatureInfo, Prompts


class Segmenter(nn.Module):
    """Interactive segmentation network.

    Normalisation, click maps, prompt stem, backbone, decoder and head, in this order; images of
    any size, odd ones too.

    Args:
        backbone: Image and click maps to feature maps.
        decoder: Builds the decoder for the backbone's features, for instance
            ``functools.partial(FPNDecoder, channels=96)``.
        head: Builds the head for the decoder's features.
        click_maps: Draws the prompts; disks of radius 8 by default.
        working_size: Longest side in pixels that the network works at. Larger images are reduced
            to it, with their prompts, and the logits enlarged again: objects then appear at the
            sizes that the network was trained on. None works at every image's own size.

    Raises:
        ValueError: If ``working_size`` is not positive.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: Backbone,
        decoder: Callable[[FeatureInfo], Decoder],
        head: Callable[[FeatureInfo], Head],
        click_maps: ClickMaps | None = None,
        working_size: int | None = None,
    ) -> None:
        super().__init__()
        if working_size is not None and working_size < 1:
            msg = f"working_size must be a positive number of pixels or None, got {working_size}"
            raise ValueError(msg)
        self.working_size = working_size
        self.click_maps = click_maps if click_maps is not None else ClickMaps()
        self.backbone = backbone
        self.decoder = decoder(backbone.features)
        self.head = head(self.decoder.features)
        self.register_buffer("mean", torch.tensor(backbone.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(backbone.std).view(3, 1, 1), persistent=False)

    def forward(self, image: Tensor, prompts: Prompts) -> Tensor:
        """Compute the logits of the object.

        Args:
            image: RGB in [0, 1], float, shape ``(B, 3, H, W)``.
            prompts: Clicks and boxes of the ``B`` images, on the same device.

        Returns:
            Logits, float32, shape ``(B, 1, H, W)``.

        Raises:
            ValueError: If the shapes do not fit together.
        """
        if image.ndim != 4 or image.shape[1] != 3 or not image.is_floating_point():
            msg = (
                "image must be float in [0, 1] of shape (B, 3, H, W), got "
                f"{image.dtype} of shape {tuple(image.shape)}"
            )
            raise ValueError(msg)
        batch = image.shape[0]
        points, labels, boxes = (tuple(tensor.shape) for tensor in prompts)
        if points != (*labels, 2) or labels[:1] != (batch,) or boxes != (batch, 4):
            msg = (
                f"prompts must be given for each of the {batch} images: expected points (B, S, 2), "
                f"labels (B, S) and boxes (B, 4), got {points}, {labels} and {boxes}"
            )
            raise ValueError(msg)
        size = (image.shape[-2], image.shape[-1])
        if self.working_size is not None and max(size) > self.working_size:
            small, prompts = shrink(image, prompts, self.working_size / max(size))
            logits = self._segment(small, prompts)
            return F.interpolate(logits, size, mode="bilinear", align_corners=False)
        return self._segment(image, prompts)

    def _segment(self, image: Tensor, prompts: Prompts) -> Tensor:
        maps = self.click_maps(prompts, (image.shape[-2], image.shape[-1]))  # (B, 3, H, W)
        normalised = (image - self.mean) / self.std
        # Under true half precision the weights, and with them this buffer, are not float32.
        x = torch.cat([normalised, maps], dim=1).to(self.mean.dtype)
        features = self.backbone(x)
        logits: Tensor = self.head(self.decoder(features), maps[:, 1:])
        return logits.float()


def shrink(image: Tensor, prompts: Prompts, factor: float) -> tuple[Tensor, Prompts]:
    """Reduce images and their prompts.

    Args:
        image: Shape ``(B, 3, H, W)``.
        prompts: Clicks and boxes in pixels of ``image``.
        factor: New size over old size, at most 1.

    Returns:
        Images of at least one pixel, and prompts in their pixels.
    """
    height, width = image.shape[-2:]
    size = (max(1, round(height * factor)), max(1, round(width * factor)))
    small = F.interpolate(image, size, mode="bilinear", align_corners=False, antialias=True)
    scale = prompts.boxes.new_tensor([size[1] / width, size[0] / height])
    # A point is the centre of a pixel, half a pixel from the pixel's border; boxes are borders.
    return small, prompts._replace(
        points=(prompts.points + 0.5) * scale - 0.5, boxes=prompts.boxes * scale.repeat(2)
    )
