"""Attention through a few bases: EM attention and double attention."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from probseg.attention.base import Attention2d, Shared
from probseg.attention.bases import Bases, Normalisation, Update
from probseg.family.bases import BasesEdges
from probseg.ops.edges import EdgePosterior
from probseg.ops.em import m_step


class EMAttention2d(Attention2d):
    """Pixels gather values through bases that EM fits to the queries (after Li et al., 2019).

    With the responsibilities `Z` of the last E step, the value of a basis is the mean of the
    values weighted by `Z`, and pixels read these means out with `Z`. EMANet does the same with
    the queries in the place of the values. It costs `O(N K T)`.

    Along the axes "height" and "width", each line of the map has its own bases, which start from
    the same ones. A moving average takes place whenever edges are inferred in training mode.

    Args:
        in_channels: Channels of the features.
        out_channels: Channels of the output, divided evenly among the heads.
        num_bases: Number `K` of bases in each head.
        bases: How the initial bases change in training: "moving_average", "learnt" or "fixed".
        normalisation: Of the bases: "l2", "layer" or None.
        train_iterations: Number `T` of EM iterations in training.
        eval_iterations: Number of EM iterations in evaluation.
        scale: Inverse temperature of the responsibilities (`lambda`, Eq. 12).
        momentum: Of the moving average (`alpha`, Eq. 15).
        **shared: Further arguments of `Attention2d`; there is no position and no span.

    Raises:
        UnknownNameError: If there are no such bases, or no such normalisation.
        ValueError: If a number is out of range, or the arguments of `Attention2d` do not fit.
    """

    no_position = "bases have no place on the map, and so no offset from a pixel"
    no_span = "bases are fitted to all pixels of a line at once"
    has_keys = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_bases: int = 64,
        bases: Update = "moving_average",
        normalisation: Normalisation | None = "l2",
        train_iterations: int = 3,
        eval_iterations: int = 3,
        scale: float = 1.0,
        momentum: float = 0.9,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(in_channels, out_channels, **shared)
        self.scale = scale
        self.bases = Bases(
            num_bases,
            self.head_channels,
            num_heads=self.num_heads,
            update=bases,
            normalisation=normalisation,
            momentum=momentum,
            train_iterations=train_iterations,
            eval_iterations=eval_iterations,
        )

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the posterior over edges, see `Attention2d`."""
        del keys, log_mask, size  # neither keys nor a span: pixels look at bases
        tokens = queries.to(self.bases.initial.dtype)  # which autocast has lowered
        bases = self.bases.start(len(tokens))
        for _ in range(self.bases.iterations - 1):
            bases = self._m_step(tokens, bases)
        if self.bases.follows:
            with torch.no_grad():
                self.bases.follow(self._m_step(tokens, bases))
        return BasesEdges(tokens, bases, scale=self.scale)

    def _m_step(self, tokens: Tensor, bases: Tensor) -> Tensor:
        return m_step(tokens, bases, scale=self.scale, normalise=self.bases.normalise)


class DoubleAttention2d(EMAttention2d):
    """EM attention of one iteration through learnt bases: double attention (Li et al., 2019, §5.4).

    Bases gather values from the pixels, and pixels read them out again. Unlike in A2-Net as
    published (Chen et al., 2018), one and the same softmax over the bases does both.

    Args:
        in_channels: Channels of the features.
        out_channels: Channels of the output, divided evenly among the heads.
        num_bases: Number `K` of bases in each head.
        **shared: Further arguments of `Attention2d`; there is no position and no span.

    Raises:
        ValueError: If a number is out of range, or the arguments of `Attention2d` do not fit.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_bases: int = 64,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            num_bases=num_bases,
            bases="learnt",
            normalisation=None,
            train_iterations=1,
            eval_iterations=1,
            **shared,
        )
