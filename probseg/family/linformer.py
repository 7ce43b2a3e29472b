"""Attention to a few projections of the keys: Linformers (Wang et al., 2020).

Keys and values of M tokens are projected to K of them, `softmax(Q (E K)ᵀ) (F V)`, for any matrices
E and F: `attend(Q, E K, F V)`. It is a posterior over edges to the M tokens where the rows of F
are probabilities. Here E = F, as in the paper's "key-value sharing" (§4), and edges lead from a
query to a projection, and from there to a token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from probseg.family.composed import ComposedEdges
from probseg.ops.checks import check_shape
from probseg.ops.edges import SoftmaxEdges
from probseg.ops.numerics import working_dtype


def projected_edges(
    queries: Tensor, keys: Tensor, log_projection: Tensor, *, scale: float = 1.0
) -> ComposedEdges:
    """Build the posterior of edges that lead through projections of the keys.

    `p(E_i = j) = sum_k softmax_k(scale q_i·(P K)_k) P_kj`, of rank K, in time and memory that are
    linear in N and M. With the identity as P, it is softmax attention.

    Args:
        queries: `(B, G, N, D)`.
        keys: `(B, G, M, D)`.
        log_projection: `log P`, `(K, M)`, floating; normalised over the tokens. -inf for tokens
            that have no part in a projection.
        scale: Factor of the dot products.

    Raises:
        ValueError: If a shape, a device or the scale is wrong.
        TypeError: If a dtype is wrong.
    """
    check_shape("log_projection", log_projection, (len(log_projection), keys.shape[-2]), "(K, M)")
    queries, keys = (tokens.to(working_dtype(tokens.dtype)) for tokens in (queries, keys))
    nothing = keys.new_zeros(*keys.shape[:-1], 1)  # (B, G, M, 1)
    few = nothing[:, :, :1].expand(-1, -1, len(log_projection), -1)  # (B, G, K, 1)
    pooling = SoftmaxEdges(few, nothing, log_projection.to(keys.dtype))
    return ComposedEdges(SoftmaxEdges(queries, pooling.expect(keys), scale=scale), pooling)


def pooling_log_projection(
    height: int, width: int, bins: tuple[int, int], device: torch.device | None = None
) -> Tensor:
    """Return the projection that takes means over the bins of a map (Wang et al., 2020, §4).

    Bins are those of adaptive average pooling: `floor(b H / B)` to `ceil((b + 1) H / B)`.

    Args:
        height: `H` of the map.
        width: `W` of the map.
        bins: Along height and width, each at least 1 and at most the size.
        device: Of the result.

    Returns:
        For `projected_edges`: 0 for a pixel in the bin and -inf for others, `(K, H * W)`, float32,
        with the bins in the order of the pixels.

    Raises:
        ValueError: If a number of bins is out of range.
    """
    members = []
    for name, size, count in (("height", height, bins[0]), ("width", width, bins[1])):
        if not 1 <= count <= size:
            msg = f"`bins` along {name} must be 1 to {size}, got {count}; an empty bin has no mean"
            raise ValueError(msg)
        place = torch.arange(size, device=device)
        number = torch.arange(count, device=device).unsqueeze(-1)
        members.append(
            (place >= number * size // count) & (place < -(-(number + 1) * size // count))
        )
    inside = members[0][:, None, :, None] & members[1][None, :, None, :]  # (B_h, B_w, H, W)
    flat = inside.flatten(2).flatten(0, 1)
    return torch.zeros(flat.shape, device=device).masked_fill(~flat, -torch.inf)
