"""Attention by other scores of pairs than dot products: additive attention, kernel regression."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Unpack

import torch
from torch import Tensor, nn

from probseg.attention.base import Attention2d, Shared
from probseg.errors import require
from probseg.ops.attention import LogPrior
from probseg.ops.backends.interface import Block, PairwisePrior
from probseg.ops.checks import as_terms, check_shape, check_units
from probseg.ops.edges import EdgePosterior, SoftmaxEdges, gaussian_edges
from probseg.ops.numerics import full_precision, working_dtype


@dataclass(frozen=True, eq=False)
class AdditiveScores(PairwisePrior):
    """`a_ij = w_v · tanh(q_i + k_j)`, computed block by block; gradients flow to all three.

    The backend "flex" does not serve it: it would compute H hyperbolic tangents of each single
    pair.

    Args:
        queries: `W_q q`, `(B, G, N, H)`, float32 or float64.
        keys: `W_k k`, `(B, G, M, H)`.
        weights: `w_v`, `(G, H)`.

    Raises:
        ValueError: As `attend` does.
    """

    queries: Tensor
    keys: Tensor
    weights: Tensor

    def __post_init__(self) -> None:
        check_units(self.queries, self.keys, self.keys, payload_name="keys", payload_of="keys")
        expected = (self.queries.shape[1], self.queries.shape[-1])
        check_shape("weights", self.weights, expected, "(G, H)")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """See `PairwisePrior`."""
        batch, heads, count, _ = self.queries.shape
        return batch, heads, count, self.keys.shape[-2]

    @property
    def numbers_per_pair(self) -> int:
        """See `PairwisePrior`: the sums and their hyperbolic tangents."""
        return 2 * max(1, self.queries.shape[-1])

    def part(self, name: str, batch: slice, heads: slice) -> tuple[slice, ...]:
        """See `PairwisePrior`."""
        return (heads,) if name == "weights" else (batch, heads)

    def block(self, block: Block) -> Tensor:
        """See `PairwisePrior`."""
        rows = self.queries[block.batch, block.heads][:, :, block.rows].mT  # (b, g, H, n)
        columns = self.keys[block.batch, block.heads][:, :, block.columns].mT  # (b, g, H, m)
        hidden = torch.tanh(rows.unsqueeze(-1) + columns.unsqueeze(-2))  # (b, g, H, n, m)
        weights = self.weights[block.heads].unsqueeze(1)  # (g, 1, H)
        with full_precision(hidden.device):
            scores = weights @ hidden.flatten(-2)  # (b, g, 1, n m)
        return scores.reshape(*hidden.shape[:2], *hidden.shape[3:])  # (b, g, n, m)


def additive_edges(
    queries: Tensor, keys: Tensor, weights: Tensor, *, log_mask: LogPrior | None = None
) -> SoftmaxEdges:
    """Build the posterior over edges of additive attention (Bahdanau et al., 2015, §A.1.2).

    `p(E_i = j) = softmax_j(w_v · tanh(q_i + k_j) + log_mask_ij)`, where queries and keys are
    already projected to the H hidden units. The score, here without bias, is not a dot product and
    enters `attend` as a prior of pairs, with dot products of zero. Its expectation costs `N M H`
    operations, and memory that is linear in N and M.

    Args:
        queries: `W_q q`, `(B, G, N, H)`.
        keys: `W_k k`, `(B, G, M, H)`.
        weights: `w_v`, `(G, H)`.
        log_mask: Added to the logits, as `log_prior` of `attend`: 0 for keys that a query sees
            and -inf for others.

    Raises:
        ValueError: As `attend` does.
    """
    dtype = working_dtype(queries.dtype)
    check_units(queries, keys, keys, payload_name="keys", payload_of="keys")
    scores = AdditiveScores(queries.to(dtype), keys.to(dtype), weights.to(dtype))
    nothing = queries.new_zeros(*queries.shape[:-1], 1, dtype=dtype)  # (B, G, N, 1)
    zeros = keys.new_zeros(*keys.shape[:-1], 1, dtype=dtype)  # (B, G, M, 1)
    return SoftmaxEdges(nothing, zeros, (scores, *as_terms("log_mask", log_mask, queries, keys)))


class AdditiveAttention2d(Attention2d):
    """The logit of two pixels is `w_v · tanh(W_q q + W_k k)`, learnt for each head.

    `head_channels` is the number of hidden units. Time grows with it for each pair of pixels,
    and memory does not: prefer the axes "height" and "width" on large maps.

    Args:
        **shared: As in `Attention2d`.
    """

    no_position = "its logits are not dot products, to which position embeddings could be added"

    def __init__(self, in_channels: int, out_channels: int, **shared: Unpack[Shared]) -> None:
        super().__init__(in_channels, out_channels, **shared)
        hidden = self.head_channels
        self.score = nn.Parameter(torch.randn(self.num_heads, hidden) * hidden**-0.5)

    def reset_parameters(self) -> None:
        """Draw all parameters anew, see `Attention2d`."""
        super().reset_parameters()
        nn.init.normal_(self.score, std=self.head_channels**-0.5)

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the posterior over edges, see `Attention2d`."""
        del size
        return additive_edges(queries, keys, self.score, log_mask=log_mask)


class DecoderStep(NamedTuple):
    """Result of one step of a decoder.

    Args:
        state: The new state `s_t`, `(B, S)`.
        context: Expectation of the encoder's states, `(B, E)`; zero where all is padding.
        weights: Posterior over the tokens that were read, `(B, T)`: not negative, with the sum
            1, or 0 where all is padding.
    """

    state: Tensor
    context: Tensor
    weights: Tensor


class BahdanauDecoderStep(nn.Module):
    """One step of a recurrent decoder, with a separate context for each output token.

    The context `c_t = sum_j p(E_t = j) h_j` is additive attention whose query is the previous
    state `s_{t-1}` and whose keys and values are the states `h_j` of the encoder. A gated
    recurrent unit (Cho et al., 2014) then reads the token written last and the context:
    `s_t = GRU([x_t, c_t], s_{t-1})`.

    Args:
        input_channels: `I`, of the features of the token written last.
        state_channels: `S`, of the decoder's state.
        encoder_channels: `E`, of the encoder's states.
        hidden_channels: `H`, hidden units of the scores.
    """

    def __init__(
        self, input_channels: int, state_channels: int, encoder_channels: int, hidden_channels: int
    ) -> None:
        super().__init__()
        self.input_channels = input_channels
        self.query = nn.Linear(state_channels, hidden_channels, bias=False)
        self.key = nn.Linear(encoder_channels, hidden_channels, bias=False)
        self.score = nn.Parameter(torch.randn(1, hidden_channels) * hidden_channels**-0.5)
        self.cell = nn.GRUCell(input_channels + encoder_channels, state_channels)

    def forward(
        self, state: Tensor, encoder_states: Tensor, inputs: Tensor, padding: Tensor | None = None
    ) -> DecoderStep:
        """Attend to the encoder's states and decode one token.

        Args:
            state: The previous state, `(B, S)`.
            encoder_states: `(B, T, E)`.
            inputs: Features of the token written last, `(B, I)`.
            padding: True where a sequence is over, bool, `(B, T)`; None where none is.

        Raises:
            ValueError: If a shape is wrong.
        """
        batch, length = encoder_states.shape[:2]
        expected = (batch, length, self.key.in_features)
        check_shape("encoder_states", encoder_states, expected, "(B, T, E)")
        check_shape("state", state, (batch, self.query.in_features), "(B, S)")
        check_shape("inputs", inputs, (batch, self.input_channels), "(B, I)")
        mask = None
        if padding is not None:
            check_shape("padding", padding, (batch, length), "(B, T)")
            mask = torch.zeros_like(padding, dtype=torch.float32).masked_fill(padding, -torch.inf)
            mask = mask.unsqueeze(1)  # (B, 1, T)
        queries = self.query(state)[:, None, None]  # (B, 1, 1, H)
        keys = self.key(encoder_states).unsqueeze(1)  # (B, 1, T, H)
        edges = additive_edges(queries, keys, self.score, log_mask=mask)
        context = edges.expect(encoder_states.unsqueeze(1))[:, 0, 0]  # (B, E)
        weights = edges.log_probability(slice(None)).exp()[:, 0, 0]  # (B, T)
        new_state = self.cell(torch.cat([inputs, context], dim=-1), state)
        return DecoderStep(new_state, context, weights)


def kernel_edges(
    queries: Tensor,
    keys: Tensor,
    *,
    bandwidth_inverse: float | Tensor = 1.0,
    log_mask: LogPrior | None = None,
) -> SoftmaxEdges:
    """Build the posterior whose probabilities are the weights of kernel regression.

    `p(E_i = j) = softmax_j(-|w (q_i - k_j)|² / 2)` (Nadaraya, 1964; Watson, 1964): the posterior
    over edges to Gaussian units of equal prior and precision.

    Args:
        queries: `(B, G, N, D)`.
        keys: `(B, G, M, D)`.
        bandwidth_inverse: `w`, above 0: a float, or a tensor that broadcasts to `(B, G, 1)`.
            All keys of a head share it: units with individual precisions would also have individual
            normalisers, which a kernel does not have.
        log_mask: Added to the logits, as `log_prior` of `attend`: 0 for keys that a query sees
            and -inf for others.

    Raises:
        ValueError: If the inverse bandwidth is not above 0, or not shared by the keys. Tensors are
            not searched for numbers out of range.
    """
    if isinstance(bandwidth_inverse, Tensor):
        shape = tuple(bandwidth_inverse.shape)
        expected = "shared by the keys, (B, G, 1); gaussian_edges takes precisions of single units"
        require(not shape or shape[-1] == 1, "bandwidth_inverse", expected, shape)
    else:
        fits = 0.0 < bandwidth_inverse < math.inf
        require(fits, "bandwidth_inverse", "finite and above 0", bandwidth_inverse)
    return gaussian_edges(
        queries, keys, query_precision=bandwidth_inverse**2, log_prior="uniform", log_mask=log_mask
    )


def nadaraya_watson(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    bandwidth_inverse: float | Tensor = 1.0,
    log_mask: LogPrior | None = None,
) -> Tensor:
    """Estimate the values of a function at the queries from those at the keys.

    `f(q_i) = sum_j softmax_j(-|w (q_i - k_j)|² / 2) v_j` in linear memory. With `w = 1` it is
    the nonparametric estimator; with a learnt `w`, the parametric one. Near `w = 0` it is the
    mean of all values, and for a large `w` the value of the nearest key.

    Args:
        queries: Where the function is wanted, `(B, G, N, D)`.
        keys: Where it is known, `(B, G, M, D)`.
        values: Values of the function there, `(B, G, M, V)`.
        bandwidth_inverse: `w`, as in `kernel_edges`.
        log_mask: As in `kernel_edges`.

    Returns:
        `(B, G, N, V)`, in the dtype of the values; zero for a query that sees no key.

    Raises:
        ValueError: As `kernel_edges`, and if a shape is wrong.
    """
    edges = kernel_edges(queries, keys, bandwidth_inverse=bandwidth_inverse, log_mask=log_mask)
    return edges.expect(values)


class KernelRegressionAttention2d(Attention2d):
    """Pixels weigh each other by a Gaussian kernel of the distance between query and key.

    The inverse bandwidth of each head starts at `D**-0.25`: the dot products in the expanded
    squares then have the factor `1 / sqrt(D)` of scaled dot-product attention, whatever the
    number of channels.

    Args:
        learn_bandwidth: Learn the inverse bandwidths, in the log, so that they stay positive. False
            leaves them where they start: the nonparametric estimator, on learnt projections.
        **shared: As in `Attention2d`.
    """

    no_position = (
        "with equal weights of all keys their norms count, and position embeddings need a prior "
        "that cancels them (Gabbur et al., 2021, Eq. 26)"
    )

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        learn_bandwidth: bool = True,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(in_channels, out_channels, **shared)
        self.log_bandwidth_inverse: nn.Parameter | None = None
        if learn_bandwidth:
            start = -0.25 * math.log(self.head_channels)
            self.log_bandwidth_inverse = nn.Parameter(torch.full((self.num_heads, 1), start))

    def reset_parameters(self) -> None:
        """Draw all parameters anew, see `Attention2d`."""
        super().reset_parameters()
        if self.log_bandwidth_inverse is not None:
            nn.init.constant_(self.log_bandwidth_inverse, -0.25 * math.log(self.head_channels))

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the posterior over edges, see `Attention2d`."""
        del size
        width: float | Tensor = queries.shape[-1] ** -0.25
        if self.log_bandwidth_inverse is not None:
            width = self.log_bandwidth_inverse.exp()  # (G, 1)
        return kernel_edges(queries, keys, bandwidth_inverse=width, log_mask=log_mask)
