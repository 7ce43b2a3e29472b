"""LightningModules: what is trained and how, and what is only evaluated."""

from probseg.tasks.baseline import Baseline
from probseg.tasks.interactive import InteractiveSegmentation
from probseg.tasks.schedule import PolynomialThenConstant

__all__ = ["Baseline", "InteractiveSegmentation", "PolynomialThenConstant"]
