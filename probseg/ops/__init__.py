"""Pure functions of tensors: attention as inference in a mixture of Gaussians."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probseg.kinds import lazy_getattr
from probseg.ops.attention import BackendError, LogPrior, assign, attend
from probseg.ops.axial import axial_attention
from probseg.ops.backends.interface import Assigned, Attended, Block, PairwisePrior
from probseg.ops.edges import EdgePosterior, SoftmaxEdges, gaussian_edges
from probseg.ops.position import FactoredPosition, FullPosition, RelativePosition
from probseg.ops.priors import DistancePrior, WindowPrior
from probseg.ops.probabilistic import ProbabilisticAttention, probabilistic_attention
from probseg.ops.settings import (
    DirichletPrior,
    GammaPrior,
    InferenceSettings,
    KeyAdaptation,
    ValuePropagation,
)

if TYPE_CHECKING:
    from probseg.ops.em import EMAttention, em_attention, l2_normalise, layer_normalise, logistic_em

_LAZY = {
    "EMAttention": "probseg.ops.em.EMAttention",
    "em_attention": "probseg.ops.em.em_attention",
    "l2_normalise": "probseg.ops.em.l2_normalise",
    "layer_normalise": "probseg.ops.em.layer_normalise",
    "logistic_em": "probseg.ops.em.logistic_em",
}

__all__ = [
    "Assigned",
    "Attended",
    "BackendError",
    "Block",
    "DirichletPrior",
    "DistancePrior",
    "EMAttention",
    "EdgePosterior",
    "FactoredPosition",
    "FullPosition",
    "GammaPrior",
    "InferenceSettings",
    "KeyAdaptation",
    "LogPrior",
    "PairwisePrior",
    "ProbabilisticAttention",
    "RelativePosition",
    "SoftmaxEdges",
    "ValuePropagation",
    "WindowPrior",
    "assign",
    "attend",
    "axial_attention",
    "em_attention",
    "gaussian_edges",
    "l2_normalise",
    "layer_normalise",
    "logistic_em",
    "probabilistic_attention",
]

__getattr__ = lazy_getattr(__name__, _LAZY)
