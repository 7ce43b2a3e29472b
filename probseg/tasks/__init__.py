"""LightningModules: training of networks, and prediction."""

from probseg.tasks.interactive import InteractiveSegmentation
from probseg.tasks.schedule import PolynomialDecay, PolynomialThenConstant

__all__ = [
    "InteractiveSegmentation",
    "PolynomialDecay",
    "PolynomialThenConstant",
]
