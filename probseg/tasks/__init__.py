"""LightningModules: training of networks, and evaluation of baselines."""

from probseg.tasks.baseline import Baseline
from probseg.tasks.interactive import InteractiveSegmentation
from probseg.tasks.schedule import PolynomialDecay, PolynomialThenConstant
from probseg.tasks.semantic import SemanticSegmentation

__all__ = [
    "Baseline",
    "InteractiveSegmentation",
    "PolynomialDecay",
    "PolynomialThenConstant",
    "SemanticSegmentation",
]
