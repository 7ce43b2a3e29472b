"""Attention by predictive coding of the pixels (Singh & Buckley, 2023, §5)."""

from __future__ import annotations

from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn

from probseg.attention.base import Attention2d, Shared
from probseg.family.bases import BasesEdges
from probseg.family.predictive_coding import predictive_coding_inference
from probseg.ops.edges import EdgePosterior
from probseg.ops.numerics import full_precision, working_dtype


class PredictiveCodingAttention2d(Attention2d):
    """Pixels attend to each other through a few latent causes that predict them.

    The causes of each head start from learnt states, and predict the queries of the pixels by a
    learnt generative matrix. They descend the free energy of the normalised prediction errors, with
    steps that never increase it, however many pixels there are. Each pixel then looks, through the
    causes that explain it, at the pixels that these explain. It costs `N K` for K causes.

    The precision of the pixels is `1 / sqrt(D)`, so that logits are scaled as in dot-product
    attention.

    Args:
        in_channels: Channels of the features.
        out_channels: Channels of the output, divided evenly among the heads.
        num_causes: Number `K` of causes of each head.
        steps: Number of steps of the descent.
        prior_precision: Of the zero-mean prior of the causes.
        **shared: As in `Attention2d`.

    Raises:
        ValueError: If a number is out of range.
    """

    no_position: ClassVar[str | None] = (
        "pixels look at latent causes, which have no place in the map"
    )
    no_span: ClassVar[str | None] = (
        "pixels look at latent causes of their whole line, and only through these at each other"
    )
    has_keys: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_causes: int = 8,
        steps: int = 3,
        prior_precision: float = 1.0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(in_channels, out_channels, **shared)
        if num_causes < 1 or steps < 1 or not prior_precision > 0.0:
            msg = (
                "`num_causes` and `steps` must be at least 1 and `prior_precision` above 0, got "
                f"{num_causes}, {steps} and {prior_precision}"
            )
            raise ValueError(msg)
        self.steps = steps
        self.prior_precision = prior_precision
        channels = self.head_channels
        self.causes = nn.Parameter(torch.randn(self.num_heads, num_causes, channels))
        # Orthogonal matrices predict queries of unit variance and have the shortest way to them.
        self.generative = nn.Parameter(torch.empty(self.num_heads, channels, channels))
        for matrix in self.generative:
            nn.init.orthogonal_(matrix)

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the causes and the posterior over edges through them, see `Attention2d`."""
        del keys, log_mask, size
        tokens = queries.to(working_dtype(queries.dtype))
        precision = tokens.shape[-1] ** -0.5
        (causes,) = predictive_coding_inference(
            tokens,
            [self.causes.to(tokens.dtype).expand(len(tokens), -1, -1, -1)],
            [self.generative],
            precisions=[precision],
            prior_precision=self.prior_precision,
            steps=self.steps,
        )
        with full_precision(tokens.device):
            predictions = causes @ self.generative.to(tokens.dtype).mT  # (B, G, K, D)
        log_prior = -precision / 2 * predictions.square().sum(-1)  # (B, G, K)
        return BasesEdges(tokens, predictions, log_prior, precision)
