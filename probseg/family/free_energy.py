"""Free energy of latents whose edges are marginalised (Singh & Buckley, 2023, §4.0.2 and §4.0.3).

Latents `z` have quadratic potentials, edges bilinear ones, and which edge is there is summed out:

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

The energies are sums of the two functions below: `hopfield_energy`, `slot_free_energy` and
`block_slot_free_energy`.
"""

from __future__ import annotations

import math

from torch import Tensor

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
    """Raise a ValueError unless a number is finite and above 0."""
    if not 0.0 < value < math.inf:
        msg = f"`{name}` must be finite and above 0, got {value}; the free energy falls only then"
        raise ValueError(msg)
