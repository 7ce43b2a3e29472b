"""The other attentions: function and layer of each mechanism side by side.

`probseg.family.slots` holds functions of tensors, `probseg.family.slots_layer` the layers on maps;
configurations name the layers as `probseg.attention.ATTENTIONS` does.
"""

from probseg.family.additive import AdditiveScores, additive_edges
from probseg.family.additive_layer import AdditiveAttention2d
from probseg.family.bahdanau_layer import BahdanauDecoderStep, DecoderStep
from probseg.family.bases import BasesEdges
from probseg.family.block_slots import Memories, block_slot_free_energy, block_slot_inference
from probseg.family.block_slots_layer import BlockSlotAttention2d
from probseg.family.composed import ComposedEdges
from probseg.family.em_layer import DoubleAttention2d, EMAttention2d
from probseg.family.free_energy import edge_energy, node_energy
from probseg.family.hard import (
    Edges,
    most_probable_edges,
    sample_edges,
    score_function_loss,
    straight_through,
    take_values,
)
from probseg.family.hard_layer import HardAttention2d
from probseg.family.hopfield import Hopfield, hopfield_energy, hopfield_retrieval
from probseg.family.hopfield_layer import HopfieldAttention2d
from probseg.family.information import posterior_divergence, posterior_entropy
from probseg.family.kernel_regression import kernel_edges, nadaraya_watson
from probseg.family.kernel_regression_layer import KernelRegressionAttention2d
from probseg.family.linformer import pooling_log_projection, projected_edges
from probseg.family.linformer_layer import LinformerAttention2d
from probseg.family.perceiver import latent_edges
from probseg.family.perceiver_layer import PerceiverAttention2d
from probseg.family.performer import random_feature_attention, random_feature_edges, random_features
from probseg.family.performer_layer import PerformerAttention2d
from probseg.family.predictive_coding import (
    Descent,
    NormalisedErrors,
    free_energy_descent,
    normalised_errors,
    predictive_coding_inference,
)
from probseg.family.predictive_coding_layer import PredictiveCodingAttention2d
from probseg.family.random_field import (
    EdgeVariables,
    RandomField,
    collapsed_update,
    edge_posteriors,
    free_energy,
    mean_field_bound,
)
from probseg.family.slots import Slots, slot_attention, slot_free_energy, slot_inference
from probseg.family.slots_layer import GRUSlotAttention2d, SlotAttention2d

__all__ = [
    "AdditiveAttention2d",
    "AdditiveScores",
    "BahdanauDecoderStep",
    "BasesEdges",
    "BlockSlotAttention2d",
    "ComposedEdges",
    "DecoderStep",
    "Descent",
    "DoubleAttention2d",
    "EMAttention2d",
    "EdgeVariables",
    "Edges",
    "GRUSlotAttention2d",
    "HardAttention2d",
    "Hopfield",
    "HopfieldAttention2d",
    "KernelRegressionAttention2d",
    "LinformerAttention2d",
    "Memories",
    "NormalisedErrors",
    "PerceiverAttention2d",
    "PerformerAttention2d",
    "PredictiveCodingAttention2d",
    "RandomField",
    "SlotAttention2d",
    "Slots",
    "additive_edges",
    "block_slot_free_energy",
    "block_slot_inference",
    "collapsed_update",
    "edge_energy",
    "edge_posteriors",
    "free_energy",
    "free_energy_descent",
    "hopfield_energy",
    "hopfield_retrieval",
    "kernel_edges",
    "latent_edges",
    "mean_field_bound",
    "most_probable_edges",
    "nadaraya_watson",
    "node_energy",
    "normalised_errors",
    "pooling_log_projection",
    "posterior_divergence",
    "posterior_entropy",
    "predictive_coding_inference",
    "projected_edges",
    "random_feature_attention",
    "random_feature_edges",
    "random_features",
    "sample_edges",
    "score_function_loss",
    "slot_attention",
    "slot_free_energy",
    "slot_inference",
    "straight_through",
    "take_values",
]
