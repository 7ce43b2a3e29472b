"""Attention whose queries first retrieve keys (Ramsauer et al., 2021)."""

from __future__ import annotations

from typing import ClassVar, Unpack

from torch import Tensor

from probseg.attention.base import Attention2d, Shared
from probseg.family.hopfield import hopfield_retrieval
from probseg.ops.checks import check_iterations
from probseg.ops.edges import EdgePosterior, SoftmaxEdges


class HopfieldAttention2d(Attention2d):
    """Each pixel's query moves among the keys, and then reads the values out.

    The query is the first state of a Hopfield network that stores the keys of the pixels in sight
    (Singh & Buckley, 2023, §4.0.4). The read-out takes the posterior of the last state; without
    updates before it, that would be `StandardAttention2d`, whose parameters are the same. The
    inverse temperature is `1 / sqrt(D)`, with which first logits have unit variance.

    Args:
        in_channels: Channels of the features.
        out_channels: Channels of the output, divided evenly among the heads.
        iterations: Number of updates of the states before the read-out, at least 1. Ramsauer et al.
            (2021) count the read-out, too.
        **shared: As in `Attention2d`.

    Raises:
        ValueError: If `iterations` is below 1; and as `Attention2d` does.
    """

    no_position: ClassVar[str | None] = (
        "its states move among keys that are the same for all pixels, and relative positions would "
        "give each pixel its own"
    )

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        iterations: int = 1,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(in_channels, out_channels, **shared)
        check_iterations(iterations)
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
