"""The backward pass through tiles of pairs, for the "chunked" backend."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from probseg.ops.backends.interface import Block, PairwisePrior, take_block
from probseg.ops.backends.tiles import Layout, Scratch, finite, logits_of


class BackwardSweep:
    """Shared part of the backward passes of both primitives."""

    def __init__(
        self,
        layout: Layout,
        queries: Tensor,
        keys: Tensor,
        payload: Tensor,
        tensors: Sequence[Tensor],
        wanted: Sequence[bool],
    ) -> None:
        self.scale = layout.scale
        self.queries, self.keys = queries, keys
        self.sizes = (*queries.shape[:-1], keys.shape[-2])  # (B, G, N, M)
        # Leaves: the gradients of a block of the prior stop at them.
        self.leaves = [
            tensor.detach().requires_grad_(needed)
            for tensor, needed in zip(tensors, wanted, strict=True)
        ]
        self.terms = layout.terms_with(self.leaves)
        self.scratch = Scratch()
        self.d_queries, self.d_keys = torch.zeros_like(queries), torch.zeros_like(keys)
        self.d_payload = torch.zeros_like(payload)
        self.d_leaves = {
            index: torch.zeros_like(leaf)
            for index, leaf in enumerate(self.leaves)
            if leaf.requires_grad
        }

    def exponential(self, block: Block, log_evidence: Tensor, log_mass: Tensor | None) -> Tensor:
        """Compute `exp(S - L)` or `exp(S - L - log N)` of a block; 0 where S is -inf."""
        logits = logits_of(block, self.terms, self.scale, self.queries, self.keys, self.scratch)
        logits -= finite(log_evidence[block[:3]]).unsqueeze(-1)
        if log_mass is not None:
            logits -= finite(log_mass[block[:2]]).unsqueeze(-2)
        return logits.exp_()

    def accumulate(self, block: Block, d_logits: Tensor) -> None:
        """Carry the gradient of a block's logits on to queries, keys and prior."""
        rows, units = block[:3], block[:2]
        self.d_queries[rows] = self.scale * (d_logits @ self.keys[units])
        self.d_keys[units] += self.scale * (d_logits.mT @ self.queries[rows])
        position = 0
        for term in self.terms:
            if isinstance(term, Tensor):
                if position in self.d_leaves:
                    piece = take_block(self.d_leaves[position], block, d_logits.dtype)
                    piece += d_logits.sum_to_size(piece.shape)  # a view: adds in place
                position += 1
                continue
            count = len(term.tensors)
            self._accumulate_pairwise(term, range(position, position + count), block, d_logits)
            position += count

    def _accumulate_pairwise(
        self, term: PairwisePrior, positions: range, block: Block, d_logits: Tensor
    ) -> None:
        wanted = [position for position in positions if position in self.d_leaves]
        if not wanted:
            return
        # Leaves of the block alone where the prior knows its part of them.
        parts = [term.part(name, block.batch, block.heads) for name in term.tensors]
        if all(part is not None for part in parts):
            block = block._replace(batch=slice(None), heads=slice(None))
        indices = [() if None in parts or part is None else part for part in parts]
        leaves = [
            self.leaves[position][index].detach().requires_grad_(position in wanted)
            for position, index in zip(positions, indices, strict=True)
        ]
        term = term.with_tensors(dict(zip(term.tensors, leaves, strict=True)))
        with torch.enable_grad():
            prior = take_block(term, block, d_logits.dtype)
        found = torch.autograd.grad(
            prior,
            [leaf for leaf in leaves if leaf.requires_grad],
            d_logits.sum_to_size(prior.shape),
            allow_unused=True,
        )
        for position, gradient in zip(wanted, found, strict=True):
            if gradient is not None:
                self.d_leaves[position][indices[position - positions.start]] += gradient

    def gradients(self) -> tuple[Tensor | None, ...]:
        """Return the gradients in the order of the arguments of the forward pass."""
        of_tensors = (self.d_leaves.get(index) for index in range(len(self.leaves)))
        return None, self.d_queries, self.d_keys, self.d_payload, *of_tensors
