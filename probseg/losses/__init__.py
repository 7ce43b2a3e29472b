"""Losses of binary masks; pixels marked 255 never count."""

from probseg.losses.binary import (
    BinaryCrossEntropy,
    MaskLoss,
    NormalizedFocalLoss,
    SoftIoULoss,
    WeightedSum,
    clicked_loss,
    iou_cross_entropy,
)

__all__ = [
    "BinaryCrossEntropy",
    "MaskLoss",
    "NormalizedFocalLoss",
    "SoftIoULoss",
    "WeightedSum",
    "clicked_loss",
    "iou_cross_entropy",
]
