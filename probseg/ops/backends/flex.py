"""Both primitives in PyTorch's FlexAttention: one compiled kernel that knows any prior, on CUDA.

The kernel computes the terms of the prior pair by pair and adds them to the logits in float32, so
that they may be pairwise functions and may need gradients, and nothing of the size N x M is held.
It also returns the row log-sum-exp and differentiates it. `assign` is two of its passes: one
for `L`, and one with the roles swapped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import inf
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from probseg.ops.backends.interface import Assigned, Attended, PairwisePrior, ScoredPrior, Terms
from probseg.ops.numerics import working_dtype

HALF_PRECISION: frozenset[str] = frozenset({"cuda"})

LANES = 16
"""Number of channels that the kernel needs at least; missing ones are zero."""

VARIANTS = 64
"""Number of kernels that may be compiled. One model needs more than the 8 of PyTorch: there is one
for each kind of prior, width, number of heads, and for training and inference."""

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""Returns a logit, given the dot product of a pair and its batch, head, row and column."""


def refuse(queries: Tensor, keys: Tensor, payload: Tensor, terms: Terms) -> str | None:
    """Return why a call is not supported, in words that follow "because"; None if it is."""
    del payload
    device = queries.device.type
    if device != "cuda":
        return f"FlexAttention returns no log evidence and no gradients on {device}, only on CUDA"
    if queries.dtype == torch.float64:
        return "FlexAttention has no float64 on CUDA"
    if not hasattr(_pytorch(), "AuxRequest"):
        return f"FlexAttention of PyTorch {torch.__version__} is too old: it has no AuxRequest"
    if 0 in (*queries.shape[:-1], keys.shape[-2]):
        return "FlexAttention takes no empty tensors"
    for term in terms:
        if isinstance(term, PairwisePrior) and not isinstance(term, ScoredPrior):
            return f"{type(term).__name__} has no score of single pairs"
    return None


def attend(queries: Tensor, keys: Tensor, values: Tensor, terms: Terms, scale: float) -> Attended:
    """Average the values of the keys by each query's responsibilities, see `reference`."""
    logit = _score_mod(terms, queries.dtype)
    return Attended(*_softmax_average(queries, keys, values, logit, scale))


def assign(
    queries: Tensor, keys: Tensor, observations: Tensor, terms: Terms, scale: float
) -> Assigned:
    """Average the observations of the queries by each key's responsibilities, see `reference`.

    With the roles swapped and `-L_i` as one more term, the softmax over the queries gives the
    shares `w_ik / N_k` of a key's mass, and its log-sum-exp is `log N_k`.
    """
    logit = _score_mod(terms, queries.dtype)
    # Only L is wanted: the fewer the values, the cheaper.
    nothing = keys.new_zeros(*keys.shape[:-1], LANES)  # (B, G, M, 16)
    _, log_evidence = _softmax_average(queries, keys, nothing, logit, scale)
    # Queries that see no key have logits of -inf: -inf - (-inf) would be NaN.
    evidence = log_evidence.masked_fill(log_evidence == -inf, 0.0)  # (B, G, N)

    def log_responsibility(
        score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor
    ) -> Tensor:
        return logit(score, batch, head, column, row) - evidence[batch, head, column]

    return Assigned(*_softmax_average(keys, queries, observations, log_responsibility, scale))


def _score_mod(terms: Terms, dtype: torch.dtype) -> ScoreMod:
    """Return the function that adds the terms of a prior to a logit."""
    precision = working_dtype(dtype)
    # Sizes of 1 stand for any number of pairs: times 0, an index is that of their only entry. The
    # kernel does not compile if a tensor that needs a gradient is indexed twice or as a view.
    tensors = [
        (term, tuple(int(size > 1) for size in term.shape))
        for term in terms
        if isinstance(term, Tensor)
    ]
    priors = [term for term in terms if isinstance(term, ScoredPrior)]

    def logit(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        pair = (batch, head, row, column)
        for tensor, varies in tensors:
            index = tuple(i * factor for i, factor in zip(pair, varies, strict=True))
            score = score + tensor[index]
        for prior in priors:
            score = score + prior.score(*pair).to(precision)
        return score

    return logit


def _softmax_average(
    queries: Tensor, keys: Tensor, values: Tensor, score_mod: ScoreMod, scale: float
) -> tuple[Tensor, Tensor]:
    """Average `(B, G, M, V)` by the row softmax of the logits; return its log-sum-exp, too."""
    # By default a second scale would be compiled as a variable, which the kernel cannot have.
    with torch._dynamo.config.patch(recompile_limit=VARIANTS, specialize_float=True):
        padded, auxiliary = _compiled()(
            _pad(queries),
            _pad(keys),
            _pad(values),
            score_mod=score_mod,
            scale=scale,
            return_aux=_pytorch().AuxRequest(lse=True),
        )
    log_sum = auxiliary.lse  # (B, G, N)
    hidden = log_sum == -inf
    # Rows of -inf are so already; this keeps what comes back to them out of the kernel's gradient.
    average = padded[..., : values.shape[-1]].masked_fill(hidden.unsqueeze(-1), 0.0)
    return average, log_sum.masked_fill(hidden, -inf)


def _pytorch() -> ModuleType:
    """Import FlexAttention on first use: this takes half as long as importing PyTorch."""
    from torch.nn.attention import flex_attention

    return flex_attention


@cache
def _compiled() -> Callable[..., Any]:
    """Compile FlexAttention once; uncompiled, it holds all N x M logits."""
    # A whole graph or an error: PyTorch would fall back to the uncompiled function otherwise.
    return torch.compile(_pytorch().flex_attention, fullgraph=True)


def _pad(tensor: Tensor) -> Tensor:
    """Fill up the channels with zeros, and lay them next to each other."""
    missing = LANES - tensor.shape[-1]
    return functional.pad(tensor, (0, missing)) if missing > 0 else tensor.contiguous()
