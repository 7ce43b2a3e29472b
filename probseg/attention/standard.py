"""Scaled dot-product attention (Vaswani et al., 2017)."""

from __future__ import annotations

from torch import Tensor

from probseg.attention.base import Attention2d
from probseg.ops.axial import axial_attention


class StandardAttention2d(Attention2d):
    """Softmax attention with scale ``1 / sqrt(D)``; the arguments are those of ``Attention2d``."""

    def attend_maps(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        fixed_values: Tensor | None,
        fixed_mask: Tensor | None,
    ) -> Tensor:
        """Infer the value of each pixel, see ``Attention2d``.

        Raises:
            ValueError: If values are fixed.
        """
        if fixed_values is not None or fixed_mask is not None:
            msg = (
                "standard attention cannot propagate fixed_values; use the attention "
                "'probabilistic' with propagation_iterations, or leave them out"
            )
            raise ValueError(msg)
        return axial_attention(
            queries,
            keys,
            values,
            axis=self.axis,
            span=self.span,
            position=self.position_tables(*queries.shape[-2:]),
        )
