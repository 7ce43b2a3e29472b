"""Both primitives in tiles of whole rows: plain PyTorch, any device, any prior, linear memory.

A tile holds the logits of some queries with all keys, so that its row softmax is exact; the
backward pass computes it again. Gradients follow from the responsibilities `w` and the shares
`p_ik = w_ik / N_k` of a key's mass (derived in `_Attend` and `_Assign`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import inf

import torch
from torch import Tensor

from probseg.ops.backends.interface import (
    Assigned,
    Attended,
    Block,
    Context,
    Layout,
    PairwisePrior,
    Scratch,
    Terms,
    finite,
    flatten,
    logits_of,
    refuse_double_backward,
    take_block,
    tile_size,
    tiles,
)
from probseg.ops.numerics import full_precision


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
        learnt = [position for position in positions if position in self.d_leaves]
        if not learnt:
            return
        # Leaves of the block alone where the prior knows its part of them.
        parts = [term.part(name, block.batch, block.heads) for name in term.tensors]
        if all(part is not None for part in parts):
            block = block._replace(batch=slice(None), heads=slice(None))
        indices = [() if None in parts or part is None else part for part in parts]
        leaves = [
            self.leaves[position][index].detach().requires_grad_(position in learnt)
            for position, index in zip(positions, indices, strict=True)
        ]
        term = term.with_tensors(dict(zip(term.tensors, leaves, strict=True)))
        with torch.enable_grad():
            prior = take_block(term, block, d_logits.dtype)
        gradients = torch.autograd.grad(
            prior,
            [leaf for leaf in leaves if leaf.requires_grad],
            d_logits.sum_to_size(prior.shape),
            allow_unused=True,
        )
        for position, gradient in zip(learnt, gradients, strict=True):
            if gradient is not None:
                self.d_leaves[position][indices[position - positions.start]] += gradient

    def gradients(self) -> tuple[Tensor | None, ...]:
        """Return the gradients in the order of the arguments of the forward pass."""
        of_tensors = (self.d_leaves.get(index) for index in range(len(self.leaves)))
        return None, self.d_queries, self.d_keys, self.d_payload, *of_tensors


HALF_PRECISION: frozenset[str] = frozenset()

UNDERFLOW = 1e-24
"""Mass below which a key's sums are recomputed in the log domain: responsibilities are exact in
float32 down to 1e-38, so that 65,536 lost ones change a larger mass by less than 1e-9 of it."""


def refuse(queries: Tensor, keys: Tensor, payload: Tensor, terms: Terms) -> None:
    """Return None: this backend supports every call."""
    del queries, keys, payload, terms


def attend(queries: Tensor, keys: Tensor, values: Tensor, terms: Terms, scale: float) -> Attended:
    """Average the values of the keys by each query's responsibilities, see `reference`."""
    layout, tensors = flatten(terms, scale)
    return Attended(*_run(_Attend, layout, queries, keys, values, *tensors))


def assign(
    queries: Tensor, keys: Tensor, observations: Tensor, terms: Terms, scale: float
) -> Assigned:
    """Average the observations of the queries by each key's responsibilities, see `reference`."""
    layout, tensors = flatten(terms, scale)
    return Assigned(*_run(_Assign, layout, queries, keys, observations, *tensors))


def _run(
    function: type[torch.autograd.Function], layout: Layout, *tensors: Tensor
) -> tuple[Tensor, Tensor]:
    apply: Callable[..., tuple[Tensor, Tensor]] = function.apply
    if torch.compiler.is_compiling():
        # Unrolled, the loop over the tiles would be a graph of thousands of nodes.
        reason = "a large prior of pairs is computed in a loop over tiles: use fullgraph=False"
        apply = torch.compiler.disable(apply, reason=reason)  # type: ignore[no-untyped-call]
    return apply(layout, *tensors)


class _Context(Context):
    layout: Layout


class _Attend(torch.autograd.Function):
    """`o_i = sum_j w_ij v_j` and `L_i`.

    `dS_ij = w_ij (do_i·v_j - do_i·o_i + dL_i)`.
    """

    @staticmethod
    def forward(
        ctx: _Context,
        layout: Layout,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        attended = queries.new_zeros(*queries.shape[:-1], values.shape[-1])  # (B, G, N, V)
        log_evidence = queries.new_full(queries.shape[:-1], -inf)  # (B, G, N)
        for block, weights in _row_tiles(layout, queries, keys, log_evidence):
            attended[block[:3]] = weights @ values[block[:2]]
        ctx.layout = layout
        ctx.save_for_backward(queries, keys, values, attended, log_evidence, *tensors)
        return attended, log_evidence

    @staticmethod
    def backward(
        ctx: _Context, d_attended: Tensor, d_evidence: Tensor
    ) -> tuple[Tensor | None, ...]:
        refuse_double_backward("chunked")
        queries, keys, values, attended, log_evidence, *tensors = ctx.saved_tensors
        sweep = BackwardSweep(ctx.layout, queries, keys, values, tensors, ctx.needs_input_grad[4:])
        # Common to all pairs of a row: -do_i·o_i + dL_i.
        shared = (d_evidence - (d_attended * attended).sum(-1)).unsqueeze(-1)  # (B, G, N, 1)
        with full_precision(queries.device):
            for block in tiles(sweep.sizes, sweep.terms):
                rows, units = block[:3], block[:2]
                weights = sweep.exponential(block, log_evidence, None)  # w
                sweep.d_payload[units] += weights.mT @ d_attended[rows]
                d_logits = sweep.scratch.product("gradient", d_attended[rows], values[units].mT)
                d_logits += shared[rows]
                d_logits *= weights
                sweep.accumulate(block, d_logits)
        return sweep.gradients()


class _Assign(torch.autograd.Function):
    """`m_k = sum_i p_ik o_i` and `log N_k`.

    With `a_ik = p_ik (dm_k·o_i - dm_k·m_k + dlogN_k)`: `dS_ik = a_ik - w_ik sum_l a_il`.
    """

    @staticmethod
    def forward(
        ctx: _Context,
        layout: Layout,
        queries: Tensor,
        keys: Tensor,
        observations: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ones = observations.new_ones(*observations.shape[:-1], 1)
        payload = torch.cat([observations, ones], dim=-1).mT  # (B, G, V + 1, N)
        sums = keys.new_zeros(*payload.shape[:-1], keys.shape[-2])  # (B, G, V + 1, M)
        log_evidence = queries.new_full(queries.shape[:-1], -inf) if layout.recorded else None
        for block, weights in _row_tiles(layout, queries, keys, log_evidence):
            columns = payload[block.batch, block.heads, :, block.rows]  # (b, g, V + 1, n)
            # Whole heads of one or more items, or a single head: both are one dimension in memory.
            stack = sums[block[:2]].view(-1, *sums.shape[-2:])  # (b g, V + 1, M)
            stack.baddbmm_(columns.flatten(0, 1), weights.flatten(0, 1))
        mass = sums[..., -1, :]  # (B, G, M)
        means = (sums[..., :-1, :] / mass.unsqueeze(-2).clamp_min(UNDERFLOW)).mT.contiguous()
        log_mass = mass.log()
        underflown = mass < UNDERFLOW  # (B, G, M)
        for term in layout.terms:
            if isinstance(term, Tensor):  # a key that is hidden from all queries stays so
                underflown = underflown & (term > -inf).any(-2)
        if queries.shape[-2] and underflown.any():
            if log_evidence is None:  # it was not needed so far
                log_evidence = queries.new_empty(queries.shape[:-1])  # (B, G, N)
                deque(_row_tiles(layout, queries, keys, log_evidence), maxlen=0)
            for index, *recovered in _in_the_log(
                layout, queries, keys, observations, log_evidence, underflown
            ):
                means[index], log_mass[index] = recovered
        ctx.layout = layout
        # Without evidence, there is no backward pass.
        ctx.save_for_backward(queries, keys, observations, log_evidence, means, log_mass, *tensors)  # type: ignore[arg-type]
        return means, log_mass

    @staticmethod
    def backward(ctx: _Context, d_means: Tensor, d_mass: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward("chunked")
        queries, keys, observations, log_evidence, means, log_mass, *tensors = ctx.saved_tensors
        sweep = BackwardSweep(
            ctx.layout, queries, keys, observations, tensors, ctx.needs_input_grad[4:]
        )
        # Common to all pairs of a column: -dm_k·m_k + dlogN_k.
        shared = (d_mass - (d_means * means).sum(-1)).unsqueeze(-2)  # (B, G, 1, M)
        mass = log_mass.exp().unsqueeze(-2)  # (B, G, 1, M)
        with full_precision(queries.device):
            for block in tiles(sweep.sizes, sweep.terms):
                rows, units = block[:3], block[:2]
                shares = sweep.exponential(block, log_evidence, log_mass)  # p
                sweep.d_payload[rows] = shares @ d_means[units]
                d_logits = sweep.scratch.product("gradient", observations[rows], d_means[units].mT)
                d_logits += shared[units]
                d_logits *= shares
                total = d_logits.sum(-1, keepdim=True)
                # w = p N underflows with N; it is then negligible against the first term.
                d_logits -= shares.mul_(mass[units]).mul_(total)
                sweep.accumulate(block, d_logits)
        return sweep.gradients()


def _row_tiles(
    layout: Layout, queries: Tensor, keys: Tensor, log_evidence: Tensor | None
) -> Iterator[tuple[Block, Tensor]]:
    """Yield blocks of rows with all keys, and their responsibilities `(b, g, n, M)`.

    Those of a query that sees no key are 0; the next block overwrites them. `log_evidence`
    `(B, G, N)`, where it is wanted, is filled with the log-sum-exp of the rows.
    """
    scratch = Scratch()
    for block in tiles((*queries.shape[:-1], keys.shape[-2]), layout.terms):
        logits = logits_of(block, layout.terms, layout.scale, queries, keys, scratch)
        highest: Tensor | None = None
        if layout.terms or log_evidence is not None:
            highest = logits.amax(-1)  # (b, g, n)
        weights = torch.softmax(
            logits, -1, out=logits
        )  # in place: half of the memory to go through
        if layout.terms and highest is not None:
            weights.masked_fill_((highest == -inf).unsqueeze(-1), 0.0)
        if log_evidence is not None and highest is not None:
            log_evidence[block[:3]] = _log_sum(highest, weights)
        yield block, weights


def _in_the_log(
    layout: Layout,
    queries: Tensor,
    keys: Tensor,
    observations: Tensor,
    log_evidence: Tensor,
    wanted: Tensor,
) -> Iterator[tuple[tuple[int, int, Tensor], Tensor, Tensor]]:
    """Yield the index in `(B, G, M)`, means and log masses of some keys, from the log domain."""
    scratch = Scratch()
    count = max(1, tile_size(layout.terms) // queries.shape[-2])
    for b, g in wanted.any(-1).nonzero().tolist():
        for columns in torch.split(wanted[b, g].nonzero().squeeze(-1), count):
            block = Block(slice(b, b + 1), slice(g, g + 1), slice(None), columns)
            logits = logits_of(block, layout.terms, layout.scale, queries, keys, scratch)
            logits -= finite(log_evidence[block[:3]]).unsqueeze(-1)
            across = logits[0, 0].mT  # over the queries: (m, N)
            highest = across.amax(-1)  # (m,)
            shares = across.softmax(-1).masked_fill((highest == -inf).unsqueeze(-1), 0.0)
            yield (b, g, columns), shares @ observations[b, g], _log_sum(highest, shares)


def _log_sum(highest: Tensor, weights: Tensor) -> Tensor:
    """Return the log-sum-exp of rows with their largest logit and their softmax.

    That of a row of -inf is -inf.
    """
    # The largest weight is exp(highest - log_sum): at least 1 / M and thus never small.
    return (highest - weights.amax(-1).log()).masked_fill(highest == -inf, -inf)
