"""Nadaraya-Watson kernel regression as attention (Nadaraya, 1964; Watson, 1964).

The estimate at a query is an average of the known values, weighted by a kernel of the distances to
the keys they belong to: `f(q) = sum_j K(q - k_j) v_j / sum_l K(q - k_l)`. With the Gaussian
kernel, the weights are the posterior over edges to Gaussian units of equal prior and precision.
"""

from __future__ import annotations

import math

from torch import Tensor

from probseg.ops.attention import LogPrior
from probseg.ops.edges import SoftmaxEdges, gaussian_edges


def kernel_edges(
    queries: Tensor,
    keys: Tensor,
    *,
    bandwidth_inverse: float | Tensor = 1.0,
    log_mask: LogPrior | None = None,
) -> SoftmaxEdges:
    """Build the posterior whose probabilities are the weights of kernel regression.

    `p(E_i = j) = softmax_j(-|w (q_i - k_j)|² / 2)`.

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
        if bandwidth_inverse.ndim and bandwidth_inverse.shape[-1] != 1:
            msg = (
                "`bandwidth_inverse` must be shared by the keys, with a last size of 1, got shape "
                f"{tuple(bandwidth_inverse.shape)}; for precisions of single units, use "
                "gaussian_edges"
            )
            raise ValueError(msg)
    elif not 0.0 < bandwidth_inverse < math.inf:
        msg = (
            f"`bandwidth_inverse` must be finite and above 0, got {bandwidth_inverse}; near 0 all "
            "keys have the same weight"
        )
        raise ValueError(msg)
    return gaussian_edges(
        queries,
        keys,
        query_precision=bandwidth_inverse**2,
        log_prior="uniform",
        log_mask=log_mask,
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
