"""Scaled dot-product attention (Vaswani et al., 2017)."""

from __future__ import annotations

from torch import Tensor

from probseg.attention.base import Attention2d
from probseg.ops.attention import attend
from probseg.ops.axial import from_lines, line_mask, to_lines


class StandardAttention2d(Attention2d):
    """Softmax attention with scale ``1 / sqrt(D)``; the arguments are those of ``Attention2d``."""

    def attend_maps(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Infer the value of each pixel, see ``Attention2d``."""
        channels, height, width = queries.shape[-3:]
        attended = attend(
            to_lines(queries, self.axis),
            to_lines(keys, self.axis),
            to_lines(values, self.axis),
            log_prior=line_mask(self.axis, height, width, self.span, queries.device),
            scale=channels**-0.5,
        )
        return from_lines(attended.values, self.axis, height, width)
