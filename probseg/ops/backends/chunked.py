"""Both primitives in tiles of whole rows: plain PyTorch, any device, any prior, linear memory.

A tile holds the logits of some queries with all keys, so that its row softmax is exact; the
backward pass computes it again. Gradients follow from the responsibilities ``w`` and the shares
``p_ik = w_ik / N_k`` of a key's mass (derived in ``_Attend`` and ``_Assign``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from probseg.ops.backends.gradients import Context, refuse_double_backward
from probseg.ops.backends.interface import (
    Assigned,
    Attended,
    Block,
    PairwisePrior,
    Term,
    Terms,
    is_unit,
    take_block,
)
from probseg.ops.backends.tiles import rows_of, tile_size, tiles, units_of
from probseg.ops.numerics import full_precision

HALF_PRECISION: frozenset[str] = frozenset()

UNDERFLOW = 1e-24
"""Mass below which a key's sums are taken again in the log: responsibilities are exact in float32
down to 1e-38, so that 65,536 lost ones change a larger mass by less than 1e-9 of it."""


def refuse(queries: Tensor, keys: Tensor, payload: Tensor, terms: Terms) -> None:
    """Say why a call cannot be served: this backend serves all."""
    del queries, keys, payload, terms


def attend(queries: Tensor, keys: Tensor, values: Tensor, terms: Terms, scale: float) -> Attended:
    """Average the values of the keys by each query's responsibilities, see ``reference``."""
    layout, tensors = _flatten(terms, scale)
    return Attended(*_run(_Attend, layout, queries, keys, values, *tensors))


def assign(
    queries: Tensor, keys: Tensor, observations: Tensor, terms: Terms, scale: float
) -> Assigned:
    """Average the observations of the queries by each key's responsibilities, see ``reference``."""
    layout, tensors = _flatten(terms, scale)
    return Assigned(*_run(_Assign, layout, queries, keys, observations, *tensors))


def _run(
    function: type[torch.autograd.Function], layout: _Layout, *tensors: Tensor
) -> tuple[Tensor, Tensor]:
    apply: Callable[..., tuple[Tensor, Tensor]] = function.apply
    if torch.compiler.is_compiling():
        # Unrolled, the loop over the tiles would be a graph of thousands of nodes.
        apply = torch.compiler.disable(apply)  # type: ignore[no-untyped-call]
    return apply(layout, *tensors)


class _Layout(NamedTuple):
    """What is not a tensor: autograd functions take tensors as separate arguments."""

    scale: float
    terms: Terms  # detached; their tensors are given beside them

    def terms_with(self, tensors: Sequence[Tensor]) -> Terms:
        """Return the terms with other tensors in the place of theirs."""
        remaining = iter(tensors)
        return tuple(
            next(remaining)
            if isinstance(term, Tensor)
            else term.with_tensors({name: next(remaining) for name in term.tensors})
            for term in self.terms
        )


def _flatten(terms: Terms, scale: float) -> tuple[_Layout, list[Tensor]]:
    tensors: list[Tensor] = []
    detached: list[Term] = []
    for term in terms:
        if isinstance(term, Tensor):
            tensors.append(term)
            detached.append(term.detach())
        else:
            tensors.extend(term.tensors.values())
            detached.append(
                term.with_tensors({name: value.detach() for name, value in term.tensors.items()})
            )
    return _Layout(scale, tuple(detached)), tensors


class _Context(Context):
    layout: _Layout


class _Attend(torch.autograd.Function):
    """``o_i = sum_j w_ij v_j`` and ``L_i``.

    ``dS_ij = w_ij (do_i·v_j - do_i·o_i + dL_i)``.
    """

    @staticmethod
    def forward(
        ctx: _Context,
        layout: _Layout,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        sizes = (*queries.shape[:-1], keys.shape[-2])  # (B, G, N, M)
        attended = queries.new_zeros(*queries.shape[:-1], values.shape[-1])  # (B, G, N, V)
        log_evidence = queries.new_full(queries.shape[:-1], -inf)  # (B, G, N)
        for block in tiles(sizes, layout.terms):
            weights, log_sum = _softmax(_logits(block, layout.terms, layout.scale, queries, keys))
            attended[rows_of(block)] = weights @ values[units_of(block)]
            log_evidence[rows_of(block)] = log_sum
        ctx.layout = layout
        ctx.save_for_backward(queries, keys, values, attended, log_evidence, *tensors)
        return attended, log_evidence

    @staticmethod
    def backward(
        ctx: _Context, d_attended: Tensor, d_evidence: Tensor
    ) -> tuple[Tensor | None, ...]:
        refuse_double_backward("chunked")
        queries, keys, values, attended, log_evidence, *tensors = ctx.saved_tensors
        sweep = _Backward(ctx.layout, queries, keys, values, tensors, ctx.needs_input_grad[4:])
        # What all pairs of a row share: -do_i·o_i + dL_i.
        shared = (d_evidence - (d_attended * attended).sum(-1)).unsqueeze(-1)  # (B, G, N, 1)
        with full_precision(queries.device):
            for block in tiles(sweep.sizes, sweep.terms):
                rows, units = rows_of(block), units_of(block)
                weights = sweep.exponential(block, log_evidence, None)  # w
                sweep.d_payload[units] += weights.mT @ d_attended[rows]
                d_logits = d_attended[rows] @ values[units].mT
                d_logits += shared[rows]
                d_logits *= weights
                sweep.accumulate(block, d_logits)
        return sweep.gradients()


class _Assign(torch.autograd.Function):
    """``m_k = sum_i p_ik o_i`` and ``log N_k``.

    With ``a_ik = p_ik (dm_k·o_i - dm_k·m_k + dlogN_k)``: ``dS_ik = a_ik - w_ik sum_l a_il``.
    """

    @staticmethod
    def forward(
        ctx: _Context,
        layout: _Layout,
        queries: Tensor,
        keys: Tensor,
        observations: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        sizes = (*queries.shape[:-1], keys.shape[-2])  # (B, G, N, M)
        ones = observations.new_ones(*observations.shape[:-1], 1)
        payload = torch.cat([observations, ones], dim=-1).mT.contiguous()  # (B, G, V + 1, N)
        sums = keys.new_zeros(*payload.shape[:-1], sizes[3])  # (B, G, V + 1, M)
        log_evidence = queries.new_full(queries.shape[:-1], -inf)  # (B, G, N)
        for block in tiles(sizes, layout.terms):
            weights, log_sum = _softmax(_logits(block, layout.terms, layout.scale, queries, keys))
            sums[units_of(block)] += payload[block.batch, block.heads, :, block.rows] @ weights
            log_evidence[rows_of(block)] = log_sum
        mass = sums[..., -1, :]  # (B, G, M)
        means = (sums[..., :-1, :] / mass.unsqueeze(-2).clamp_min(UNDERFLOW)).mT.contiguous()
        log_mass = mass.log()
        _recover_underflown(
            layout, queries, keys, observations, log_evidence, means=means, log_mass=log_mass
        )
        ctx.layout = layout
        ctx.save_for_backward(queries, keys, observations, log_evidence, means, log_mass, *tensors)
        return means, log_mass

    @staticmethod
    def backward(ctx: _Context, d_means: Tensor, d_mass: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward("chunked")
        queries, keys, observations, log_evidence, means, log_mass, *tensors = ctx.saved_tensors
        sweep = _Backward(
            ctx.layout, queries, keys, observations, tensors, ctx.needs_input_grad[4:]
        )
        # What all pairs of a column share: -dm_k·m_k + dlogN_k.
        shared = (d_mass - (d_means * means).sum(-1)).unsqueeze(-2)  # (B, G, 1, M)
        mass = log_mass.exp().unsqueeze(-2)  # (B, G, 1, M)
        with full_precision(queries.device):
            for block in tiles(sweep.sizes, sweep.terms):
                rows, units = rows_of(block), units_of(block)
                shares = sweep.exponential(block, log_evidence, log_mass)  # p
                sweep.d_payload[rows] = shares @ d_means[units]
                d_logits = observations[rows] @ d_means[units].mT
                d_logits += shared[units]
                d_logits *= shares
                total = d_logits.sum(-1, keepdim=True)
                # w = p N underflows with N, and then nothing is left of it beside the first term.
                d_logits -= shares.mul_(mass[units]).mul_(total)
                sweep.accumulate(block, d_logits)
        return sweep.gradients()


class _Backward:
    """The part of a backward pass that both primitives share."""

    def __init__(
        self,
        layout: _Layout,
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
        self.d_queries, self.d_keys = torch.zeros_like(queries), torch.zeros_like(keys)
        self.d_payload = torch.zeros_like(payload)
        self.d_leaves = {
            index: torch.zeros_like(leaf)
            for index, leaf in enumerate(self.leaves)
            if leaf.requires_grad
        }

    def exponential(self, block: Block, log_evidence: Tensor, log_mass: Tensor | None) -> Tensor:
        """Compute ``exp(S - L)`` or ``exp(S - L - log N)`` of a block; 0 where S is -inf."""
        logits = _logits(block, self.terms, self.scale, self.queries, self.keys)
        logits -= _finite(log_evidence[rows_of(block)]).unsqueeze(-1)
        if log_mass is not None:
            logits -= _finite(log_mass[units_of(block)]).unsqueeze(-2)
        return logits.exp_()

    def accumulate(self, block: Block, d_logits: Tensor) -> None:
        """Carry the gradient of a block's logits on to queries, keys and prior."""
        rows, units = rows_of(block), units_of(block)
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
        with torch.enable_grad():
            prior = take_block(term, block, d_logits.dtype)
        found = torch.autograd.grad(
            prior,
            [self.leaves[position] for position in wanted],
            d_logits.sum_to_size(prior.shape),
            allow_unused=True,
        )
        for position, gradient in zip(wanted, found, strict=True):
            if gradient is not None:
                self.d_leaves[position] += gradient

    def gradients(self) -> tuple[Tensor | None, ...]:
        """Return the gradients in the order of the arguments of the forward pass."""
        of_tensors = (self.d_leaves.get(index) for index in range(len(self.leaves)))
        return None, self.d_queries, self.d_keys, self.d_payload, *of_tensors


def _recover_underflown(
    layout: _Layout,
    queries: Tensor,
    keys: Tensor,
    observations: Tensor,
    log_evidence: Tensor,
    *,
    means: Tensor,
    log_mass: Tensor,
) -> None:
    """Recompute, in place and in the log, keys that are far from all queries.

    Their responsibilities underflow, but the shares ``p`` are well defined. Usually there are none.
    """
    underflown = log_mass.exp() < UNDERFLOW  # (B, G, M)
    for term in layout.terms:
        if isinstance(term, Tensor) and is_unit(
            term
        ):  # hidden from all queries: nothing to recover
            underflown = underflown & (term.squeeze(-2) > -inf)
    batch_size, heads, rows, _ = queries.shape
    if rows == 0 or not underflown.any():
        return
    seen = _finite(log_evidence)
    for b in range(batch_size):
        for g in range(heads):
            columns = underflown[b, g].nonzero().squeeze(-1)
            for some in torch.split(columns, max(1, tile_size(layout.terms) // rows)):
                block = Block(slice(b, b + 1), slice(g, g + 1), slice(None), some)
                logits = _logits(block, layout.terms, layout.scale, queries, keys)
                logits -= seen[rows_of(block)].unsqueeze(-1)
                shares, total = _softmax(logits[0, 0].mT)  # over the queries
                means[b, g, some] = shares @ observations[b, g]
                log_mass[b, g, some] = total


def _logits(block: Block, terms: Terms, scale: float, queries: Tensor, keys: Tensor) -> Tensor:
    columns = keys[block.batch, block.heads][:, :, block.columns]
    logits = (scale * queries[rows_of(block)]) @ columns.mT  # (b, g, n, m)
    for term in terms:
        logits += take_block(term, block, logits.dtype).detach()
    return logits


def _softmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Normalise along the last dimension; lines of -inf get weights of 0 and log-sum-exp -inf."""
    highest = logits.amax(-1)
    weights = logits.softmax(-1)
    # exp(highest - log_sum) is the largest weight, at least 1 / M and thus never small.
    log_sum = highest - weights.amax(-1).log()
    dead = highest == -inf
    if dead.any():
        weights.masked_fill_(dead.unsqueeze(-1), 0.0)
        log_sum.masked_fill_(dead, -inf)
    return weights, log_sum


def _finite(log_sums: Tensor) -> Tensor:
    """Replace -inf, whose lines have logits of -inf, by 0: ``-inf - (-inf)`` would be NaN."""
    return log_sums.masked_fill(log_sums == -inf, 0.0)
