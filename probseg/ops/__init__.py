"""Pure functions of tensors: attention as inference in a mixture of Gaussians."""

from probseg.ops.adaptation import KeyAdaptation, ValuePropagation
from probseg.ops.attention import assign, attend
from probseg.ops.axial import axial_attention
from probseg.ops.backends.interface import Assigned, Attended
from probseg.ops.probabilistic import ProbabilisticAttention, probabilistic_attention

__all__ = [
    "Assigned",
    "Attended",
    "KeyAdaptation",
    "ProbabilisticAttention",
    "ValuePropagation",
    "assign",
    "attend",
    "axial_attention",
    "probabilistic_attention",
]
