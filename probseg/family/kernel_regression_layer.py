"""Nadaraya-Watson kernel regression among the pixels of a map."""

from __future__ import annotations

import math
from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn

from probseg.attention.base import Attention2d, Shared
from probseg.family.kernel_regression import kernel_edges
from probseg.ops.edges import EdgePosterior


class KernelRegressionAttention2d(Attention2d):
    """Pixels weigh each other by a Gaussian kernel of the distance between query and key.

    The inverse bandwidth of each head starts at `D**-0.25`: the dot products in the expanded
    squares then have the factor `1 / sqrt(D)` of scaled dot-product attention, whatever the
    number of channels.

    Args:
        in_channels: Channels of the features.
        out_channels: Channels of the output, divided evenly among the heads.
        learn_bandwidth: Learn the inverse bandwidths, in the log, so that they stay positive. False
            leaves them where they start: the nonparametric estimator, on learnt projections.
        **shared: As in `Attention2d`.
    """

    no_position: ClassVar[str | None] = (
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

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the posterior over edges, see `Attention2d`."""
        del size
        width: float | Tensor = queries.shape[-1] ** -0.25
        if self.log_bandwidth_inverse is not None:
            width = self.log_bandwidth_inverse.exp()  # (G, 1)
        return kernel_edges(queries, keys, bandwidth_inverse=width, log_mask=log_mask)
