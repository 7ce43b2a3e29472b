"""LightningModules: what is trained and how."""

from probseg.tasks.interactive import InteractiveSegmentation
from probseg.tasks.schedule import PolynomialThenConstant

__all__ = ["InteractiveSegmentation", "PolynomialThenConstant"]
