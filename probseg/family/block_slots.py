"""Slots that compete for inputs, with memories for their blocks (Singh & Buckley, 2023, §4.0.6).

Slot attention and Hopfield retrieval are edges of one graph: each input has an edge to one of the
slots, and each block of a slot's channels has an edge to one of that block's memories. The idea of
block-slot attention is that of Singh et al. (2022), who alternate the two instead.

The paper prints a prior in which every memory chooses a slot, and an update in which every slot
chooses a memory, `softmax_k`. Eq. 7 turns that prior into a softmax over the slots, so that only
one of them can be right. Here it is the update, as in the text and in Singh et al. (2022).
Its prior is `p(E_i) = Uniform{(z_i, m_1), ..., (z_i, m_l)}` for each block of each slot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor, nn

from probseg.attention.base import Shared
from probseg.family.energy import check_positive, edge_energy
from probseg.family.slots import SlotAttention2d, Slots, holding_sums, slot_free_energy, sums_of
from probseg.ops.attention import LogPrior, assign_checked, attend_checked, checked_terms
from probseg.ops.backends.interface import Attended
from probseg.ops.checks import check_least, check_like, check_shape, check_units
from probseg.ops.edges import EdgePosterior
from probseg.ops.numerics import working_dtype


@dataclass(frozen=True, eq=False)
class Memories:
    """Memories of the blocks of slots.

    Args:
        patterns: `L` memories for each of `P` blocks, `(B, G, P, L, D / P)`. `P = 1` is the
            update without blocks.
        scale: Factor of their dot products with the blocks of slots.
        strength: `c`: how many inputs a memory counts for, 0 or more; the paper has 1. With 0,
            slots do not remember anything.

    Raises:
        ValueError: If a number is out of range.
    """

    patterns: Tensor
    scale: float = 1.0
    strength: float = 1.0

    def __post_init__(self) -> None:
        check_positive("scale", self.scale)
        if not 0.0 <= self.strength < math.inf:
            raise ValueError(
                f"`strength` must be finite and 0 or more, got {self.strength}; 0 is no memory"
            )


def block_slot_inference(
    inputs: Tensor,
    slots: Tensor,
    memories: Memories,
    *,
    iterations: int = 3,
    scale: float = 1.0,
    precision: float = 1.0,
    log_prior: LogPrior | None = None,
    backend: str = "auto",
) -> Slots:
    """Infer slots from the inputs that choose them and the memories that their blocks choose.

    `slot_k <- 1/p (sum_i softmax_k(scale x_i·slot_k + log_prior_ik) x_i + c sum_b r_k^(b))` with
    `r_k^(b) = sum_l softmax_l(memory_scale slot_k^(b)·m_l^(b)) m_l^(b)`, in the channels of block
    b (Singh & Buckley, 2023, §4.0.6, who have 1 for all constants). No update raises
    `block_slot_free_energy`. For memories without strength it is `slot_inference`; as there, a
    precision of `N / K` keeps slots as large as inputs, and the same number as strength makes
    memories as loud as these.

    Memory is linear in N + K. Everything is float32 (float64 for float64): float16 would not hold
    the sums. Gradients go through every iteration.

    Arguments, results and errors are those of `slot_inference`, and the memories for the blocks of
    the slots, in the dtype of the inputs or of the result.
    """
    check_least("iterations", iterations)
    check_positive("precision", precision)
    inputs, slots, memories = _checked(inputs, slots, memories)
    terms = checked_terms(inputs, slots, log_prior, scale)
    for _ in range(iterations):
        assigned = assign_checked(inputs, slots, inputs, terms, scale, backend)
        seen = sums_of(*assigned, precision)
        recalled = _recall(slots, memories, backend).values  # (B, G * P, K, D / P)
        weight = memories.strength / precision
        apart = torch.unflatten(recalled, 1, (slots.shape[1], -1))  # (B, G, P, K, D / P)
        slots = seen + weight * apart.transpose(2, 3).flatten(-2)
    return Slots(slots, assigned.log_mass)


def block_slot_free_energy(
    inputs: Tensor,
    slots: Tensor,
    memories: Memories,
    *,
    scale: float = 1.0,
    precision: float = 1.0,
    log_prior: LogPrior | None = None,
    backend: str = "auto",
) -> Tensor:
    """Return `slot_free_energy` with the term of the edges to memories, `(B, G)`.

    `- c / memory_scale sum_kb log sum_l exp(memory_scale slot_k^(b)·m_l^(b))`; see
    `probseg.family.energy`. Arguments, dtypes and errors are those of `block_slot_inference`; the
    scale is above 0. It is inf if an input sees no slot.
    """
    inputs, slots, memories = _checked(inputs, slots, memories)
    seen = slot_free_energy(
        inputs, slots, scale=scale, precision=precision, log_prior=log_prior, backend=backend
    )
    evidence = _recall(slots, memories, backend).log_evidence  # (B, G * P, K)
    of_memories = torch.unflatten(
        edge_energy(evidence, memories.scale), 1, (slots.shape[1], -1)
    )  # (B, G, P, K)
    return seen + memories.strength * of_memories.sum((-2, -1))


def _checked(inputs: Tensor, slots: Tensor, memories: Memories) -> tuple[Tensor, Tensor, Memories]:
    """Bring the three to the dtype that holds sums, and check that they fit together."""
    patterns = holding_sums(inputs, memories.patterns)[1]
    inputs, slots = holding_sums(inputs, slots)
    check_units(inputs, slots, inputs, payload_name="observations", payload_of="queries")
    check_like("patterns", patterns, inputs)
    batch, heads, _, channels = slots.shape
    blocks, stored = patterns.shape[2:4]
    if blocks == 0 or channels % blocks:
        raise ValueError(
            f"`patterns` must have a number of blocks P that divides the {channels} channels of "
            f"slots, got {blocks}"
        )
    expected = (batch, heads, blocks, stored, channels // blocks)
    check_shape("patterns", patterns, expected, "(B, G, P, L, D / P)")
    return inputs, slots, replace(memories, patterns=patterns)


def _recall(slots: Tensor, memories: Memories, backend: str) -> Attended:
    """Read the memories for the blocks of all slots, with blocks as heads."""
    parts = torch.unflatten(slots, -1, (memories.patterns.shape[2], -1)).transpose(2, 3)
    queries, keys = parts.flatten(1, 2), memories.patterns.flatten(1, 2)
    return attend_checked(queries, keys, keys, scale=memories.scale, backend=backend)


class BlockSlotAttention2d(SlotAttention2d):
    """Slot attention that minimises a free energy, with learnt memories for blocks of the slots.

    Sums over the pixels would grow with their number and drive the softmax to one slot. The node
    potentials of the slots therefore have the precision `N / K`, the number of pixels that a slot
    has if all have the same: a slot is then the mean of its pixels, times its mass relative to
    that, in maps of any size. Memories count for as many pixels. What all pixels of a line have in
    common would do the same, as the slot with the largest mass has the largest share in it, and is
    subtracted first. The dot products are unscaled, as in `SlotAttention2d`.

    Args:
        num_slots: See `SlotAttention2d`.
        iterations: See `SlotAttention2d`.
        num_blocks: Number `P` of blocks that the channels of a slot are divided into.
        num_memories: Number `L` of memories of each block, at least 1.
        **shared: As in `Attention2d`.

    Raises:
        ValueError: If `head_channels` are not divisible by `num_blocks`, or there are no
            memories; and as `SlotAttention2d` does.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_slots: int = 8,
        iterations: int = 3,
        num_blocks: int = 4,
        num_memories: int = 16,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(
            in_channels, out_channels, num_slots=num_slots, iterations=iterations, **shared
        )
        if num_blocks < 1 or self.head_channels % num_blocks:
            raise ValueError(
                f"`head_channels` must be divisible by `num_blocks`, got {self.head_channels} and "
                f"{num_blocks}; each block has its own memories"
            )
        check_least("num_memories", num_memories)
        shape = (self.num_heads, num_blocks, num_memories, self.head_channels // num_blocks)
        self.memories = nn.Parameter(torch.randn(shape))

    def reset_parameters(self) -> None:
        """Draw all parameters anew, see `Attention2d`."""
        super().reset_parameters()
        nn.init.normal_(self.memories)

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the slots of centred pixels, see `SlotAttention2d`."""
        centred = queries - queries.mean(-2, keepdim=True)
        return super().edges(centred, keys, log_mask, size)

    def infer(self, inputs: Tensor, slots: Tensor) -> Tensor:
        """Infer the slots, see `SlotAttention2d`."""
        share = inputs.shape[-2] / slots.shape[-2]
        dtype = working_dtype(inputs.dtype)
        patterns = self.memories.to(dtype).expand(inputs.shape[0], -1, -1, -1, -1)
        memories = Memories(patterns, scale=self.scale, strength=share)
        inferred = block_slot_inference(
            inputs,
            slots.to(dtype),
            memories,
            iterations=self.iterations,
            scale=self.scale,
            precision=share,
        ).slots
        return inferred.to(inputs.dtype)
