"""Softmax attention by positive random features: Performers (Choromanski et al., 2021).

`exp(q·k) = E_w[phi_w(q) phi_w(k)]` for `phi_w(x) = exp(w·x - |x|²/2)` and normal `w` (Lemma 1).
The mean over R features makes attention linear in the tokens. As inference, the edges of all
queries lead through the R features: from a query to a feature, and from there to a key::

    p(A_i = r) = softmax_r(w_r·q_i + log Z_r)        Z_r = sum_j phi_r(k_j)
    p(B_r = j) = softmax_j(w_r·k_j - |k_j|²/2)

The posterior is a restricted one, of rank R, in the place of that of softmax attention. Its log
evidence and all products are computed in the log, so that no feature overflows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from probseg.family.composed import ComposedEdges
from probseg.family.free_energy import check_positive
from probseg.ops.attention import attend
from probseg.ops.backends.interface import Attended
from probseg.ops.checks import check_shape, check_units
from probseg.ops.edges import SoftmaxEdges, widened
from probseg.ops.numerics import working_dtype


def random_features(
    count: int, channels: int, heads: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    """Draw directions `w` for the features, orthogonal to each other in blocks of D.

    Each is normal, `N(0, I)`, by itself, so that estimates stay unbiased; orthogonal ones have a
    lower variance (Choromanski et al., 2021, §2.4).

    Args:
        count: Number `R` of features, at least 1.
        channels: `D` of queries and keys.
        heads: `G`, each with directions of its own.
        generator: Source of the random numbers; None is PyTorch's own.

    Returns:
        `(G, R, D)`, float32.

    Raises:
        ValueError: If `count` is below 1.
    """
    if count < 1:
        msg = f"`count` must be at least 1, got {count}; edges lead through the features"
        raise ValueError(msg)
    blocks = -(-count // channels)
    normal = torch.randn(heads, blocks, channels, channels, generator=generator)
    rotation, triangle = torch.linalg.qr(normal)
    # With the signs of the diagonal, rotations are uniform.
    rotation = rotation * triangle.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    lengths = torch.randn(heads, blocks, channels, channels, generator=generator).norm(dim=-1)
    return (lengths.unsqueeze(-1) * rotation).flatten(1, 2)[:, :count]


def random_feature_attention(
    queries: Tensor, keys: Tensor, values: Tensor, features: Tensor, *, scale: float = 1.0
) -> Attended:
    """Estimate `attend` in time and memory that are linear in N and M.

    `o_i = phi(q_i) (phi(K)ᵀ V) / phi(q_i) (phi(K)ᵀ 1)`. Numerator, denominator and with it
    `exp(log_evidence)` are unbiased estimates; the values, a quotient, converge as
    `1 / sqrt(R)`. The variance grows with `exp(scale |q_i + k_j|²)`.

    Args:
        queries: `(B, G, N, D)`.
        keys: `(B, G, M, D)`.
        values: `(B, G, M, V)`.
        features: Directions of the features, `(G, R, D)`, such as `random_features` draws.
        scale: Factor of the dot products, above 0.

    Returns:
        Values `(B, G, N, V)` in the dtype of the values, and log evidence `(B, G, N)` in float32
        (float64 for float64).

    Raises:
        ValueError: If a shape or a device is wrong, or the scale is not above 0.
        TypeError: If a dtype is wrong.
    """
    scaled = _scaled(queries, keys, features, scale)
    payload = widened(values, scaled.queries)
    gathered = attend(scaled.features, scaled.keys, payload, log_prior=scaled.log_prior)
    read = attend(
        scaled.queries,
        scaled.features,
        gathered.values,
        log_prior=gathered.log_evidence.to(scaled.queries.dtype),
    )
    constant = scaled.queries.square().sum(-1) / 2 + math.log(features.shape[-2])
    return Attended(read.values.to(values.dtype), read.log_evidence - constant)


def random_feature_edges(
    queries: Tensor, keys: Tensor, features: Tensor, *, scale: float = 1.0
) -> ComposedEdges:
    """Build the posterior over edges whose expectation is `random_feature_attention`.

    For arguments and exceptions see there.
    """
    scaled = _scaled(queries, keys, features, scale)
    nothing = scaled.keys[..., :0]
    mass = attend(scaled.features, scaled.keys, nothing, log_prior=scaled.log_prior).log_evidence
    return ComposedEdges(
        SoftmaxEdges(scaled.queries, scaled.features, mass),
        SoftmaxEdges(scaled.features, scaled.keys, scaled.log_prior),
    )


class _Scaled(NamedTuple):
    """Arguments in the working dtype, the scale in queries and keys.

    Args:
        queries: `(B, G, N, D)`.
        keys: `(B, G, M, D)`.
        features: `(B, G, R, D)`.
        log_prior: `-|k_j|²/2`, `(B, G, M)`.
    """

    queries: Tensor
    keys: Tensor
    features: Tensor
    log_prior: Tensor


def _scaled(queries: Tensor, keys: Tensor, features: Tensor, scale: float) -> _Scaled:
    check_positive("scale", scale)
    check_units(queries, keys, keys, payload_name="keys", payload_of="keys")
    batch, heads, _, channels = queries.shape
    check_shape("features", features, (heads, features.shape[-2], channels), "(G, R, D)")
    dtype = working_dtype(queries.dtype)
    root = math.sqrt(scale)
    keys = root * keys.to(dtype)
    directions = features.to(dtype).expand(batch, -1, -1, -1)
    return _Scaled(root * queries.to(dtype), keys, directions, -keys.square().sum(-1) / 2)
