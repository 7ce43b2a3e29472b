"""Losses of binary masks; pixels marked 255 never count."""

from probseg.losses.binary import (
    BinaryCrossEntropy,
    MaskLoss,
    NormalizedFocalLoss,
    SoftIoULoss,
    WeightedSum,
    binary_cross_entropy,
    clicked_loss,
    iou_cross_entropy,
    normalized_focal_loss,
    soft_iou_loss,
    taught_loss,
)

__all__ = [
    "BinaryCrossEntropy",
    "MaskLoss",
    "NormalizedFocalLoss",
    "SoftIoULoss",
    "WeightedSum",
    "binary_cross_entropy",
    "clicked_loss",
    "iou_cross_entropy",
    "normalized_focal_loss",
    "soft_iou_loss",
    "taught_loss",
]
