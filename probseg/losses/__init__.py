"""Losses of binary masks; pixels marked 255 never count."""

from probseg.losses.binary import (
    BinaryCrossEntropy,
    MaskLoss,
    NormalizedFocalLoss,
    SoftIoULoss,
    WeightedSum,
)

__all__ = [
    "BinaryCrossEntropy",
    "MaskLoss",
    "NormalizedFocalLoss",
    "SoftIoULoss",
    "WeightedSum",
]
