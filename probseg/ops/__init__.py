"""Pure functions of tensors: attention as inference in a mixture of Gaussians."""

from probseg.ops.attention import BackendError, LogPrior, assign, attend
from probseg.ops.axial import axial_attention
from probseg.ops.backends.interface import Assigned, Attended, Block, PairwisePrior
from probseg.ops.edges import EdgePosterior, SoftmaxEdges, gaussian_edges
from probseg.ops.em import EMAttention, em_attention, l2_normalise, layer_normalise
from probseg.ops.family.additive import AdditiveScores, additive_edges
from probseg.ops.family.bases import BasesEdges
from probseg.ops.family.block_slots import Memories, block_slot_free_energy, block_slot_inference
from probseg.ops.family.free_energy import edge_energy, node_energy
from probseg.ops.family.hard import (
    Edges,
    most_probable_edges,
    sample_edges,
    score_function_loss,
    straight_through,
    take_values,
)
from probseg.ops.family.hopfield import Hopfield, hopfield_energy, hopfield_retrieval
from probseg.ops.family.information import posterior_divergence, posterior_entropy
from probseg.ops.family.kernel_regression import kernel_edges, nadaraya_watson
from probseg.ops.family.predictive_coding import (
    Descent,
    NormalisedErrors,
    free_energy_descent,
    normalised_errors,
    predictive_coding_inference,
)
from probseg.ops.family.slots import Slots, slot_attention, slot_free_energy, slot_inference
from probseg.ops.logistic import logistic_em
from probseg.ops.priors import DistancePrior, WindowPrior
from probseg.ops.probabilistic import ProbabilisticAttention, probabilistic_attention
from probseg.ops.relative_position import FactoredPosition, FullPosition, RelativePosition
from probseg.ops.settings import InferenceSettings
from probseg.ops.updates import (
    DirichletPrior,
    GammaPrior,
    KeyAdaptation,
    ValuePropagation,
)

__all__ = [
    "AdditiveScores",
    "Assigned",
    "Attended",
    "BackendError",
    "BasesEdges",
    "Block",
    "Descent",
    "DirichletPrior",
    "DistancePrior",
    "EMAttention",
    "EdgePosterior",
    "Edges",
    "FactoredPosition",
    "FullPosition",
    "GammaPrior",
    "Hopfield",
    "InferenceSettings",
    "KeyAdaptation",
    "LogPrior",
    "Memories",
    "NormalisedErrors",
    "PairwisePrior",
    "ProbabilisticAttention",
    "RelativePosition",
    "Slots",
    "SoftmaxEdges",
    "ValuePropagation",
    "WindowPrior",
    "additive_edges",
    "assign",
    "attend",
    "axial_attention",
    "block_slot_free_energy",
    "block_slot_inference",
    "edge_energy",
    "em_attention",
    "free_energy_descent",
    "gaussian_edges",
    "hopfield_energy",
    "hopfield_retrieval",
    "kernel_edges",
    "l2_normalise",
    "layer_normalise",
    "logistic_em",
    "most_probable_edges",
    "nadaraya_watson",
    "node_energy",
    "normalised_errors",
    "posterior_divergence",
    "posterior_entropy",
    "predictive_coding_inference",
    "probabilistic_attention",
    "sample_edges",
    "score_function_loss",
    "slot_attention",
    "slot_free_energy",
    "slot_inference",
    "straight_through",
    "take_values",
]
