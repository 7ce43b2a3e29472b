"""Attention through slots whose blocks look up memories (Singh & Buckley, 2023, §4.0.6)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from probseg.attention.base import Shared
from probseg.family.block_slots import Memories, block_slot_inference
from probseg.family.slots_layer import SlotAttention2d
from probseg.ops.edges import EdgePosterior
from probseg.ops.numerics import working_dtype


class BlockSlotAttention2d(SlotAttention2d):
    """Slot attention that minimises a free energy, with learnt memories for blocks of the slots.

    Sums over the pixels would grow with their number and drive the softmax to one slot. The node
    potentials of the slots therefore have the precision `N / K`, the number of pixels that a slot
    has if all have the same: a slot is then the mean of its pixels, times its mass relative to
    that, in maps of any size. Memories count for as many pixels. What all pixels of a line have in
    common would do the same, as the slot with the largest mass has the largest share in it, and is
    subtracted first. The dot products are unscaled, as in `SlotAttention2d`.

    Args:
        in_channels: Channels of the features.
        out_channels: Channels of the output, divided evenly among the heads.
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
            msg = (
                f"`head_channels` must be divisible by `num_blocks`, got {self.head_channels} and "
                f"{num_blocks}; each block has its own memories"
            )
            raise ValueError(msg)
        if num_memories < 1:
            msg = f"`num_memories` must be at least 1, got {num_memories}; use 'slot' for none"
            raise ValueError(msg)
        shape = (self.num_heads, num_blocks, num_memories, self.head_channels // num_blocks)
        self.memories = nn.Parameter(torch.randn(shape))

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
        patterns = self.memories.to(dtype).expand(len(inputs), -1, -1, -1, -1)
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
