"""Free energies of graphs with unknown edges: Hopfield networks, random fields.

Latents `z` have quadratic potentials, edges bilinear ones, and which edge is there is summed out
(Singh & Buckley, 2023, §4.0.2 and §4.0.3):

`F(z) = p/2 sum_k |z_k|² - 1/s sum_i L_i`, `L_i = log sum_e exp(s g_ie(z) + log_prior_ie)`,

with the precision `p` of the nodes and the inverse temperature `s` of the edges; the paper has
1 for both. The log evidence `L_i` is that of `attend`: a log-sum-exp of linear
functions of `z`, and therefore convex: F is a convex function minus a convex one. The
concave-convex procedure (Yuille & Rangarajan, 2001) puts the tangent in the place of the second and
minimises the sum, which is Eq. 7 of the paper:

`z_k <- 1/p sum_i sum_e softmax_e(s g_ie(z) + log_prior_ie) dg_ie/dz_k`.

The tangent is an upper bound that touches F, so that no step raises F, however large, and those
that leave it as it is are at a stationary point. That needs `p > 0` and `s > 0`, a fixed prior,
and fixed observations. It holds for all latents at once. The point need not be a minimum.

The energies of Hopfield networks and slots are sums of `node_energy` and `edge_energy`.

Random fields are pairwise, with a prior over their edges (Singh & Buckley, 2023, §3 and §4).
Independent edge variables `E_i` choose among alternatives, each a set of edges (§3.0.2)::

    log p(x, E) = -1/2 sum_v p_v |x_v|² + sum_i (log p(E_i) + g_i(E_i)) - log Z
    g_i(E_i) = sum_(e in E_i) psi_e(x_u, x_v)

Summing the edges out leaves the free energy of §4.0.2, and its minimisation Eq. 7::

    F(x) = 1/2 sum_v p_v |x_v|² - sum_i L_i         L_i = log sum_(E_i) p(E_i) exp(g_i(E_i))
    x_v <- 1/p_v d/dx_v sum_i L_i

The attention mechanisms of this package are instances: what they call the posterior over edges is
`edge_posteriors`, and `collapsed_update` is that of Hopfield networks, `slot_inference` and block
slots. Slot attention, EM and key adaptation divide it by the mass of their edges, and predictive
coding descends the same free energy with other potentials. Everything here holds all candidates in
memory: it defines a mechanism and checks it on small graphs.

Mean field is the same update. With `q(z) q(E)` in the place of the posterior, `q(E_i)` is the
posterior of edges at the means of `q(z)`, and `q(z_v)` is normal with the precision `p_v` and the
right side of Eq. 7 as its mean: the bound on the evidence is -F at the means, up to a constant
(`mean_field_bound`). That holds for potentials that are linear in each end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from probseg.attention.base import Attention2d, Shared
from probseg.errors import check_least, require
from probseg.ops.attention import LogPrior, attend, attend_checked, checked_terms
from probseg.ops.checks import check_shape, check_units
from probseg.ops.edges import EdgePosterior, SoftmaxEdges
from probseg.ops.numerics import working_dtype


def node_energy(latents: Tensor, precision: float = 1.0) -> Tensor:
    """Return minus the log potential of each latent, `p/2 |z_k|²`.

    Args:
        latents: `(..., K, D)`, floating.
        precision: `p`, above 0.

    Returns:
        `(..., K)`, float32 (float64 for float64); 0 or more.

    Raises:
        ValueError: If the precision is not finite and above 0.
    """
    check_positive("precision", precision)
    return 0.5 * precision * latents.to(working_dtype(latents.dtype)).square().sum(-1)


def edge_energy(log_evidence: Tensor, scale: float = 1.0) -> Tensor:
    """Return the free energy of each marginalised edge, `-L_i / s`.

    Args:
        log_evidence: `L_i` as `attend` returns it, of any shape.
        scale: `s`, the factor of the dot products in it, above 0.

    Returns:
        The same shape and dtype; inf where there can be no edge.

    Raises:
        ValueError: If the scale is not finite and above 0.
    """
    check_positive("scale", scale)
    return -log_evidence / scale


def check_positive(name: str, value: float) -> None:
    """Refuse a number that is not finite and above 0."""
    right = 0.0 < value < math.inf
    require(right, name, "finite and above 0", value, "the free energy falls only then")


class Hopfield(NamedTuple):
    """Result of `hopfield_retrieval`.

    Args:
        states: After the last update, `(B, G, N, D)`.
        log_evidence: Of the states before that update, `(B, G, N)`; -inf for a state that sees no
            pattern.
    """

    states: Tensor
    log_evidence: Tensor


def hopfield_retrieval(
    states: Tensor,
    patterns: Tensor,
    *,
    iterations: int = 1,
    scale: float = 1.0,
    log_prior: LogPrior | None = None,
    backend: str = "auto",
) -> Hopfield:
    """Let each state retrieve a pattern, `xi <- sum_j softmax_j(beta xi·x_j) x_j`.

    Ramsauer et al. (2021, Eq. 3). As inference, each state is a latent node with one edge to one of
    the patterns (Singh and Buckley, 2023, §4.0.4, for patterns that are projected already). No
    update raises `hopfield_energy`. One iteration is attention with the patterns as keys and
    values. If `beta` times the gap between a pattern's dot product with itself and with any other
    is large, states near the pattern end next to it; if it is small, they end between several
    patterns; for `beta = 0`, in the mean of all.

    Memory and precision are as in `attend`. Gradients go through every iteration.

    Args:
        states: Initial states, `(B, G, N, D)`.
        patterns: Stored patterns, `(B, G, M, D)`.
        iterations: Number of updates, at least 1; it is not shortened where states have settled.
        scale: Inverse temperature `beta`.
        log_prior: Of the patterns, as in `attend`; None is uniform.
        backend: As in `attend`.

    Returns:
        The states in the dtype of the arguments, and their log evidence in float32 (float64 for
        float64 arguments). A state that sees no pattern is zero.

    Raises:
        ValueError: If `iterations` is below 1; and as `attend` does.
    """
    check_least("iterations", iterations)
    check_units(states, patterns, patterns, payload_name="patterns", payload_of="keys")
    terms = checked_terms(states, patterns, log_prior, scale)
    for _ in range(iterations):
        retrieved = attend_checked(states, patterns, patterns, terms, scale, backend)
        states = retrieved.values
    return Hopfield(states, retrieved.log_evidence)


def hopfield_energy(
    states: Tensor,
    patterns: Tensor,
    *,
    scale: float = 1.0,
    log_prior: LogPrior | None = None,
    backend: str = "auto",
) -> Tensor:
    """Return the energy of each state, `|xi|²/2 - 1/beta log sum_j exp(beta xi·x_j)`, `(B, G, N)`.

    Ramsauer et al. (2021, Eq. 2) add `log M / beta + max_j |x_j|² / 2`, which does not depend on
    the state and is left out. With it, and without a prior, the energy of a mean of the patterns is
    between 0 and `2 max_j |x_j|²`. Arguments, dtypes and errors are those of `hopfield_retrieval`;
    the scale is above 0, and the log prior is added to `beta xi·x_j`. It is inf for a state that
    sees no pattern.
    """
    read = attend(states, patterns, patterns, log_prior=log_prior, scale=scale, backend=backend)
    return node_energy(states) + edge_energy(read.log_evidence, scale)


class HopfieldAttention2d(Attention2d):
    """Each pixel's query moves among the keys, and then reads the values out.

    The query is the first state of a Hopfield network that stores the keys of the pixels in sight
    (Singh & Buckley, 2023, §4.0.4). The read-out takes the posterior of the last state; without
    updates before it, that would be `StandardAttention2d`, whose parameters are the same. The
    inverse temperature is `1 / sqrt(D)`, with which first logits have unit variance.

    Args:
        iterations: Number of updates of the states before the read-out, at least 1. Ramsauer et al.
            (2021) count the read-out, too.
        **shared: As in `Attention2d`.

    Raises:
        ValueError: If `iterations` is below 1; and as `Attention2d` does.
    """

    no_position = (
        "its states move among keys that are the same for all pixels, and relative positions would "
        "give each pixel its own"
    )

    def __init__(
        self, in_channels: int, out_channels: int, *, iterations: int = 1, **shared: Unpack[Shared]
    ) -> None:
        super().__init__(in_channels, out_channels, **shared)
        check_least("iterations", iterations)
        self.iterations = iterations

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the posterior of the last states, see `Attention2d`."""
        del size
        scale = queries.shape[-1] ** -0.5
        states = hopfield_retrieval(
            queries, keys, iterations=self.iterations, scale=scale, log_prior=log_mask
        ).states
        return SoftmaxEdges(states, keys, log_mask, scale)


# log potential of edges: values of both ends `(..., I, C, D)` to `(..., I, C)`
Potential = Callable[[Tensor, Tensor], Tensor]


def dot_product(ends: Tensor, others: Tensor) -> Tensor:
    """Return the potential `x_u·x_v`, `(..., I, C)`."""
    return (ends * others).sum(-1)


@dataclass(frozen=True, eq=False)
class EdgeVariables:
    """Independent variables, each of which chooses among candidate edges: a structural prior.

    Args:
        edges: Nodes at both ends of the `C` candidates of each of `I` variables, int64,
            `(I, C, 2)`.
        log_prior: Of the alternatives, not necessarily normalised, `(I, A)`; None is uniform.
        alternatives: Which candidates each alternative consists of, bool, `(A, C)`; None is one
            candidate in each, `A = C`. `[[False], [True]]` is a single edge that is there or not.
        potential: Of the edges. What depends on pairs otherwise belongs into the log prior.

    Raises:
        ValueError: If a shape is wrong.
    """

    edges: Tensor
    log_prior: Tensor | None = None
    alternatives: Tensor | None = None
    potential: Potential = dot_product

    def __post_init__(self) -> None:
        variables, count, _ = self.edges.shape
        if self.alternatives is not None:
            check_shape(
                "alternatives", self.alternatives, (len(self.alternatives), count), "(A, C)"
            )
            count = len(self.alternatives)
        if self.log_prior is not None:
            check_shape("log_prior", self.log_prior, (variables, count), "(I, A)")

    def joint(self, nodes: Tensor) -> Tensor:
        """Return `log p(E_i) + g_i(E_i)` of all alternatives, `(..., I, A)`.

        Args:
            nodes: Values of all nodes, `(..., n, D)`.
        """
        ends = nodes[..., self.edges, :]  # (..., I, C, 2, D)
        scores = self.potential(ends[..., 0, :], ends[..., 1, :])  # (..., I, C)
        if self.alternatives is not None:
            scores = scores @ self.alternatives.to(scores.dtype).mT  # (..., I, A)
        if self.log_prior is None:
            return scores - math.log(scores.shape[-1])
        return scores + self.log_prior.to(scores.dtype).log_softmax(-1)


@dataclass(frozen=True, eq=False)
class RandomField:
    """Nodes with quadratic potentials, and the variables whose edges join them.

    Args:
        variables: Groups of edge variables; those of a group share their shape and potential.
        precision: `p_v` of the nodes, above 0 for those that are inferred: positive float, or
            `(n,)`.
    """

    variables: Sequence[EdgeVariables]
    precision: float | Tensor = 1.0


def edge_posteriors(field: RandomField, nodes: Tensor) -> list[Tensor]:
    """Return `p(E_i | x)` of each group of variables, whose edges do not depend on each other.

    Args:
        field: The graph.
        nodes: Values of all nodes, `(..., n, D)`, float32 or float64.

    Returns:
        For each group `(..., I, A)`, with the sum 1 over the alternatives.
    """
    return [group.joint(nodes).softmax(-1) for group in field.variables]


def free_energy(field: RandomField, nodes: Tensor) -> Tensor:
    """Return `-log sum_E p(x, E) - log Z`, the free energy of the marginalised graph (§4.0.2).

    Minus its gradient is the expectation, over the posterior of edges, of the gradient for a
    known graph (Eq. 6). Nodes are as in `edge_posteriors`; the result is `(...)`, in their dtype.
    """
    energy = (field.precision * nodes.square().sum(-1)).sum(-1) / 2
    return energy - _log_evidence(field, nodes)


def collapsed_update(field: RandomField, nodes: Tensor, latents: Tensor) -> Tensor:
    """Move latent nodes to the minimum of a bound on the free energy (§4.0.3, Eq. 7).

    `x_v <- 1/p_v d/dx_v sum_i L_i`: the expectation of what their edges say. It never raises the
    free energy for potentials that are linear in these nodes, as log-sum-exp of linear functions
    is convex. With an edge between two of them it is not, and the free energy can rise, also in
    the paper's setting: update such nodes one after the other.

    Args:
        field: The graph.
        nodes: As in `edge_posteriors`.
        latents: Nodes that move, all at once, int64 `(K,)`.

    Returns:
        All nodes afterwards, `(..., n, D)`. Gradients go through the update.

    Raises:
        ValueError: If a candidate edge joins two of the latents.
    """
    for group in field.variables:
        joined = torch.isin(group.edges, latents).all(-1)
        if joined.any():
            pair = group.edges[joined][0].tolist()
            raise ValueError(
                f"`latents` must not be joined by an edge, got both ends of {tuple(pair)}; update "
                "them one after the other, so that the free energy falls"
            )
    slope: Tensor = torch.func.grad(lambda x: _log_evidence(field, x).sum())(nodes)
    precision = torch.as_tensor(field.precision, dtype=nodes.dtype).expand(nodes.shape[-2])
    moved = slope[..., latents, :] / precision[latents].unsqueeze(-1)
    return nodes.index_copy(-2, latents, moved)


def mean_field_bound(field: RandomField, nodes: Tensor, latents: Tensor) -> Tensor:
    """Return the mean field bound on the log evidence of the observed nodes.

    `log int sum_E exp(...) dz >= K D / 2 log 2 pi - D/2 sum_v log p_v - F(x)`, in which the means
    of the latents are their values, and the distribution of the edges is the best one for them.

    Args:
        field: A graph with potentials that are linear in each end.
        nodes: As in `edge_posteriors`.
        latents: Nodes that are not observed, int64 `(K,)`.

    Returns:
        `(...)`, in the dtype of the nodes.
    """
    precision = torch.as_tensor(field.precision, dtype=nodes.dtype).expand(nodes.shape[-2])
    volume = (math.log(2 * math.pi) - precision[latents].log()).sum() * nodes.shape[-1] / 2
    return volume - free_energy(field, nodes)


def _log_evidence(field: RandomField, nodes: Tensor) -> Tensor:
    """Return `sum_i L_i`."""
    total = nodes.new_zeros(nodes.shape[:-2])
    for group in field.variables:
        total = total + group.joint(nodes).logsumexp(-1).sum(-1)
    return total
