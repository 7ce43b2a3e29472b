"""Attention through slots that compete for the pixels (Locatello et al., 2020)."""

from __future__ import annotations

from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn

from probseg.attention.base import Attention2d, Shared
from probseg.family.bases import BasesEdges
from probseg.family.slots import slot_attention
from probseg.ops.checks import check_iterations
from probseg.ops.edges import EdgePosterior


class SlotAttention2d(Attention2d):
    """Slots compete for pixels and take the mean of theirs; pixels read from their slots.

    The posterior leads from a pixel to a slot, and from there to one of the pixels that the slot
    explains. Its cost is linear in the pixels. Slots are inferred for each line of each map, from
    those that are learnt: they do not start at random, as in Locatello et al. (2020), because the
    same picture is to get the same answer, and slots that start apart can learn to stand for
    different things.

    Dot products of the `D` channels of unit variance are unscaled, as in a mixture of Gaussians
    of precision 1: each update multiplies small differences between slots by the scale times the
    variance of the pixels in their direction, and with the `1 / sqrt(D)` of standard attention
    all slots of a new layer would become the mean of the map, without a gradient to part them.

    Args:
        in_channels: Channels of the features.
        out_channels: Channels of the output, divided evenly among the heads.
        num_slots: Number `K` of slots in each head, at least 1; with 1, all pixels get the mean.
        iterations: Number of updates of the slots, at least 1.
        **shared: As in `Attention2d`.

    Raises:
        ValueError: If `num_slots` or `iterations` is below 1; and as `Attention2d` does.
    """

    no_position: ClassVar[str | None] = (
        "its pixels look at slots, which do not lie anywhere in the map"
    )
    no_span: ClassVar[str | None] = "its slots are shared by all pixels of a line"
    has_keys: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_slots: int = 8,
        iterations: int = 3,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(in_channels, out_channels, **shared)
        check_iterations(iterations)
        if num_slots < 1:
            msg = f"`num_slots` must be at least 1, got {num_slots}; pixels look at nothing else"
            raise ValueError(msg)
        self.iterations = iterations
        self.scale = 1.0
        self.initial = nn.Parameter(torch.randn(self.num_heads, num_slots, self.head_channels))

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the slots and the posterior of edges through them, see `Attention2d`."""
        del keys, log_mask, size
        slots = self.infer(queries, self.initial.expand(len(queries), -1, -1, -1))
        return BasesEdges(queries, slots, scale=self.scale)

    def infer(self, inputs: Tensor, slots: Tensor) -> Tensor:
        """Infer the keys of the last comparison.

        Args:
            inputs: The pixels of each line, `(B, G, N, D)`.
            slots: Initial slots, `(B, G, K, D)`, in the dtype of the parameters.

        Returns:
            `(B, G, K, D)`, in the dtype of the inputs.
        """
        return slot_attention(
            inputs, slots.to(inputs.dtype), iterations=self.iterations, scale=self.scale
        ).slots


class GRUSlotAttention2d(SlotAttention2d):
    """Slot attention with the learnt update of Locatello et al. (2020, Alg. 1).

    Slots are the states of a gated recurrent unit with the means as inputs; a residual perceptron
    follows, and pixels are compared with layer-normalised slots. Heads share all three. Two
    projections of Algorithm 1 are left out: that of slots, which is a matrix times that of pixels,
    and that of values. The unit gathers the `D` channels that the slots are compared with, which is
    no restriction where `D` is the number of channels of the features; with fewer, Algorithm 1 can
    gather other combinations of the features than it compares, and this layer cannot. Inputs are
    not layer-normalised. Dot products are multiplied by `1 / sqrt(D)`.

    For arguments see `SlotAttention2d`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_slots: int = 8,
        iterations: int = 3,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(
            in_channels, out_channels, num_slots=num_slots, iterations=iterations, **shared
        )
        width = self.head_channels
        self.scale = width**-0.5
        self.norm = nn.LayerNorm(width)
        self.cell = nn.GRUCell(width, width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def infer(self, inputs: Tensor, slots: Tensor) -> Tensor:
        """Infer the slots and normalise them, see `SlotAttention2d`."""

        def as_keys(states: Tensor) -> Tensor:
            normalised: Tensor = self.norm(states)
            return normalised.to(inputs.dtype)

        states = slot_attention(
            inputs,
            slots,
            iterations=self.iterations,
            scale=self.scale,
            as_keys=as_keys,
            update=self._update,
        ).slots
        return as_keys(states)

    def _update(self, means: Tensor, states: Tensor) -> Tensor:
        rows = means.to(states.dtype).flatten(0, 2), states.flatten(0, 2)  # (B * G * K, D)
        moved = self.cell(*rows).view(states.shape)
        result: Tensor = moved + self.perceptron(moved)
        return result
