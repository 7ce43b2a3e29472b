"""Corrective self-attention (Gabbur et al. 2021, §4.3 and Fig. 3)."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.attention import build_attention
from probseg.heads.base import Head, conv_norm_relu
from probseg.types import FeatureInfo


class CorrectiveSelfAttention(Head):
    """Head that classifies by self-attention, with the clicks in the value embedding only.

    A bottleneck reduces the features; an attention block along the height and one along the width
    follow, densely connected: the second sees the bottleneck's features and the first's result.
    No click map enters queries or keys directly, so that where to look depends on the image; they
    join the values, so that what is said there spreads. The sigmoid stays outside.

    Attention needs memory in proportion to the positions, also where each one sees every other;
    the time of the full layout still grows with the square of their number.

    Args:
        inputs: Channels and stride of the decoder's map.
        attention: A name in `ATTENTIONS`: ``"standard"`` or ``"probabilistic"``.
        layout: ``"axial"`` for the two blocks above, ``"full"`` for a single block in which every
            position sees every other (App. E); its cost grows with the square of the pixels.
        channels: Width C_B of the bottleneck.
        num_heads: Heads of the block along the height; the last block has a single output and
            therefore one head, whose queries and keys have ``channels / num_heads`` channels too.
        stride: Attention works on a grid of this stride over the image: 1 as published; larger
            ones are cheaper and enlarge the logits at the end.
        span: Positions that an axial block sees around each one, on its grid; None for all.
        options: Further arguments of the attention class, for instance
            ``{"key_iterations": 1, "key_prior": 0.0}``.

    Raises:
        UnknownNameError: If the attention is not in `ATTENTIONS`.
        ValueError: If the layout, the stride or the number of heads is wrong.
    """

    def __init__(
        self,
        inputs: FeatureInfo,
        attention: str = "probabilistic",
        layout: Literal["axial", "full"] = "axial",
        channels: int = 32,
        num_heads: int = 1,
        stride: int = 1,
        span: int | None = 64,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if stride < 1:
            msg = f"stride must be a whole number >= 1, got {stride}"
            raise ValueError(msg)
        if layout not in ("axial", "full"):
            msg = f"layout must be 'axial' or 'full', got {layout!r}"
            raise ValueError(msg)
        if num_heads < 1 or channels % num_heads:
            msg = f"channels must be divisible by num_heads >= 1, got {channels} and {num_heads}"
            raise ValueError(msg)
        self.stride = stride
        build = partial(build_attention, attention)
        shared = {"head_channels": max(channels // num_heads, 8), **(options or {})}
        self.bottleneck = conv_norm_relu(inputs.channels[0], channels, 1)
        # The first block: along the height, or none where one full block does it all.
        self.height: nn.Module | None = None
        seen = channels
        if layout == "axial":
            self.height = build(
                channels,
                channels,
                value_in_channels=channels + 2,
                num_heads=num_heads,
                axis="height",
                span=span,
                **shared,
            )
            seen = 2 * channels
        self.last = build(
            seen,
            1,
            value_in_channels=seen + 2,
            axis="full" if layout == "full" else "width",
            span=None if layout == "full" else span,
            **shared,
        )
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, features: Tensor, clicks: Tensor) -> Tensor:
        """Return logits ``(B, 1, H, W)``."""
        image_size = clicks.shape[-2:]
        grid = [max(1, -(-side // self.stride)) for side in image_size]
        # The maximum keeps every click, however coarse the grid.
        clicks = F.max_pool2d(clicks, self.stride, ceil_mode=True)  # (B, 2, h, w)
        clicks = clicks.to(features.dtype)
        x = F.interpolate(self.bottleneck(features), grid, mode="bilinear", align_corners=False)
        if self.height is not None:
            corrected = self.height(x, torch.cat([x, clicks], dim=1))
            x = torch.cat([x, corrected], dim=1)  # (B, 2 C_B, h, w)
        logits = self.last(x, torch.cat([x, clicks], dim=1)) + self.bias
        return F.interpolate(logits, image_size, mode="bilinear", align_corners=False)
