"""Losses of binary masks; pixels marked 255 never count."""

from probseg.losses.binary import (
    BinaryCrossEntropy,
    MaskLoss,
    NormalizedFocalLoss,
    SoftIoULoss,
    WeightedSum,
)
from probseg.losses.quality import iou_cross_entropy

__all__ = [
    "BinaryCrossEntropy",
    "MaskLoss",
    "NormalizedFocalLoss",
    "SoftIoULoss",
    "WeightedSum",
    "iou_cross_entropy",
]
