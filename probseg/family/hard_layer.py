"""Hard attention: a single edge of each pixel (Singh & Buckley, 2023, §5.1.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from probseg.attention.standard import StandardAttention2d
from probseg.family.hard import most_probable_edges, sample_edges, straight_through, take_values
from probseg.ops.edges import EdgePosterior


class HardAttention2d(StandardAttention2d):
    """Each pixel attends to one other pixel, by the posterior of `StandardAttention2d`.

    In training, that pixel is drawn from the posterior, and the gradient is the one of the
    expectation (`straight_through`). In evaluation, it is the most probable one; gradients then
    flow to the values only. `posterior` is the whole posterior in both modes.

    The other estimator of the gradient, `score_function_loss`, is not a layer: it weighs the
    probabilities of the edges by the loss, which a layer does not know. The arguments are those of
    `Attention2d`.
    """

    def gather(self, edges: EdgePosterior, values: Tensor) -> Tensor:
        """Take the value of one key for each query, see `Attention2d`."""
        with torch.no_grad():
            chosen = sample_edges(edges) if self.training else most_probable_edges(edges)
        if self.training:
            return straight_through(edges, values, chosen)
        return take_values(values, chosen.indices)
