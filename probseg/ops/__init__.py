"""Pure functions of tensors: attention as inference in a mixture of Gaussians."""

from probseg.ops.attention import BackendError, LogPrior, assign, attend
from probseg.ops.axial import axial_attention
from probseg.ops.backends.interface import Assigned, Attended, Block, PairwisePrior
from probseg.ops.priors import DistancePrior
from probseg.ops.probabilistic import ProbabilisticAttention, probabilistic_attention
from probseg.ops.relative_position import FactoredPosition, FullPosition, RelativePosition
from probseg.ops.updates import (
    DirichletPrior,
    GammaPrior,
    KeyAdaptation,
    ValuePropagation,
)

__all__ = [
    "Assigned",
    "Attended",
    "BackendError",
    "Block",
    "DirichletPrior",
    "DistancePrior",
    "FactoredPosition",
    "FullPosition",
    "GammaPrior",
    "KeyAdaptation",
    "LogPrior",
    "PairwisePrior",
    "ProbabilisticAttention",
    "RelativePosition",
    "ValuePropagation",
    "assign",
    "attend",
    "axial_attention",
    "probabilistic_attention",
]
