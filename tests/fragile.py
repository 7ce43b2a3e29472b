"""A network that divides by zero on photographs with white pixels, and such a photograph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from fakes import save
from PIL import Image
from torch import Tensor, nn

from probseg.backbones import TimmBackbone

WHITE = 0.8
"""Value of a normalised channel, between those of the drawn ground and those of white."""


class Divide(nn.Module):
    """Divides the features of an image by zero if one of its pixels is white, else by one."""

    def forward(self, features: Tensor, image: Tensor) -> Tensor:
        white = (image[:, :3].amin(dim=1) > WHITE).flatten(1).any(dim=1)  # (B,)
        return features / (~white).to(features.dtype).view(-1, 1, 1, 1)


class Fragile(TimmBackbone):
    """timm's test network, whose coarsest map is not finite for white photographs."""

    def __init__(self) -> None:
        super().__init__("test_resnet.r160_in1k")
        self.divide = Divide()

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = super().forward(x)
        return [*maps[:-1], self.divide(maps[-1], x)]


class Cautious(Fragile):
    """The same without the fault, and with the same weights."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return super().forward(torch.zeros_like(x))


def whiten(path: Path) -> None:
    """Make the grey ground of a drawn photograph white."""
    image = np.asarray(Image.open(path)).copy()
    image[np.ptp(image.astype(int), axis=2) < 60] = 255
    save(image, path)
