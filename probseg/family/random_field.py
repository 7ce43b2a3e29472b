"""Pairwise Markov random fields with a prior over their edges (Singh & Buckley, 2023, §3 and §4).

Nodes have quadratic potentials, and it is not known which edges there are. Independent edge
variables `E_i` choose among alternatives, each a set of edges (§3.0.2)::

    log p(x, E) = -1/2 sum_v p_v |x_v|² + sum_i (log p(E_i) + g_i(E_i)) - log Z
    g_i(E_i) = sum_(e in E_i) psi_e(x_u, x_v)

Summing the edges out leaves the free energy of §4.0.2, and its minimisation Eq. 7::

    F(x) = 1/2 sum_v p_v |x_v|² - sum_i L_i         L_i = log sum_(E_i) p(E_i) exp(g_i(E_i))
    x_v <- 1/p_v d/dx_v sum_i L_i

The attention mechanisms of this package are instances: what they call an edge posterior is
`edge_posteriors`, and their updates are `collapsed_update` of all latent nodes. Everything here holds all candidates in memory: it
defines a mechanism and checks it on small graphs.

Mean field is the same update. With `q(z) q(E)` in the place of the posterior, `q(E_i)` is the
posterior of edges at the means of `q(z)`, and `q(z_v)` is normal with the precision `p_v` and the
right side of Eq. 7 as its mean: the bound on the evidence is -F at the means, up to a constant
(`mean_field_bound`). That holds for potentials that are linear in each end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probseg.ops.checks import check_shape

Potential = Callable[[Tensor, Tensor], Tensor]
"""Log potential of edges: values of both ends `(..., I, C, D)` to `(..., I, C)`."""


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
        if self.edges.ndim != 3 or self.edges.shape[-1] != 2:
            msg = (
                "`edges` must have shape (I, C, 2), the nodes at both ends of candidates, got "
                f"{tuple(self.edges.shape)}"
            )
            raise ValueError(msg)
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
    known graph (Eq. 6).

    Args:
        field: The graph.
        nodes: As in `edge_posteriors`.

    Returns:
        `(...)`, in the dtype of the nodes.
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
            msg = (
                f"`latents` must not be joined by an edge, got both ends of {tuple(pair)}; update "
                "them one after the other, so that the free energy falls"
            )
            raise ValueError(msg)
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
