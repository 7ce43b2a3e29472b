"""LightningModules: training of networks, and prediction."""

from probseg.tasks.base import PolynomialDecay, PolynomialThenConstant
from probseg.tasks.interactive import InteractiveSegmentation
from probseg.tasks.side_by_side import SideBySide

__all__ = ["InteractiveSegmentation", "PolynomialDecay", "PolynomialThenConstant", "SideBySide"]
