"""Corrective self-attention (Gabbur et al. 2021, §4.3 and Fig. 3)."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.attention import (
    AdaptiveClassifier,
    Attention2d,
    ClickAdaptation,
    ProbabilisticAttention2d,
    build_attention,
)
from probseg.errors import require
from probseg.heads.base import Head, conv_norm_relu
from probseg.types import FeatureInfo

CLICKED = 0.5  # a pixel is clicked where a click map is above this value


class CorrectiveSelfAttention(Head):
    """Head that classifies by self-attention, with the clicks in the value embedding only.

    A bottleneck reduces the features; an attention block along the height and one along the width
    follow, densely connected: the second sees the bottleneck's features and the first's result.
    No click map enters queries or keys directly, so that where to look depends on the image; they
    join the values, and spread with them. The sigmoid is not part of the head.

    With `propagation_iterations`, clicks also fix the logits of their pixels in the last block,
    to one learnt value for each sign, and expectation maximisation propagates them to the others
    (§4.4). Pixels that clicks of both signs claim are not fixed.

    Attention needs memory in proportion to the positions, also where each one sees every other;
    the time of the full layout still grows with the square of their number.

    Args:
        inputs: Channels and stride of the decoder's map; an aligned one is enlarged with aligned
            corners, see `FeatureInfo`.
        value_channels: Channels of the value features, which values are then made of; None takes
            the bottleneck's.
        attention: A name in `ATTENTIONS`: `"standard"` or `"probabilistic"`.
        layout: `"axial"` for the two blocks above, `"full"` for a single block in which every
            position sees every other (App. E); its cost grows with the square of the pixels.
        channels: Width C_B of the bottleneck.
        num_heads: Heads of the block along the height; the last block has a single output and
            therefore one head, whose queries and keys have `channels / num_heads` channels too.
        stride: Attention works on a grid of this stride over the image: 1 as published; larger
            ones are cheaper and enlarge the logits at the end.
        span: Positions that an axial block sees around each one, on its grid; None for all. With 64
            it sees 32 on each side and itself.
        propagation_iterations: EM iterations in which clicks propagate (1 and 5 as published); the
            number can be changed in a trained network, also to 0. With 0 here the head has no
            logits to fix, and cannot propagate later.
        value_prior: Precision of the prior of the value means in that propagation. Of the published
            candidates 0.1, 1, 10 and 100, the first lets the few pixels of a disk move others; from
            1 on, they hardly do.
        value_precision: `beta` of the last block where clicks propagate.
        corrections: What the corrective channels show: "disks", the click maps as the stem gets
            them, or "pixels", the click locations alone (§4.3). These are also the pixels that
            propagation fixes.
        click_iterations: With a number, an `AdaptiveClassifier` of the value features and of what
            the last block infers gives the logits, on the map of the value features: fine features
            pass the attention by. It adapts to the clicks in so many EM steps.
        bottleneck_at: Where the bottleneck reduces channels: on the decoder's "map", or on the
            attention's "grid" after the map was enlarged (Fig. 3). The two differ by the ReLU.
        options: Further arguments of the attention class of all blocks, for instance
            `{"key_iterations": 1, "key_prior": 0.0}`. The last block of a head that propagates
            has `{"log_prior": "key_magnitude"}` unless another is given.
    """

    def __init__(
        self,
        inputs: FeatureInfo,
        value_channels: int | None = None,
        attention: str = "probabilistic",
        layout: Literal["axial", "full"] = "axial",
        channels: int = 32,
        num_heads: int = 1,
        stride: int = 1,
        span: int | None = 64,
        propagation_iterations: int = 0,
        value_prior: float = 0.1,
        value_precision: float = 0.1,
        corrections: Literal["disks", "pixels"] = "disks",
        bottleneck_at: Literal["map", "grid"] = "map",
        click_iterations: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        require(stride >= 1, "stride", "a whole number >= 1", stride)
        for name, value, known in (
            ("layout", layout, ("axial", "full")),
            ("corrections", corrections, ("disks", "pixels")),
            ("bottleneck_at", bottleneck_at, ("map", "grid")),
        ):
            require(value in known, name, f"{known[0]!r} or {known[1]!r}", repr(value))
        even = num_heads >= 1 and channels % num_heads == 0
        require(even, "channels", "divisible by `num_heads` >= 1", f"{channels} and {num_heads}")
        require(
            not propagation_iterations or attention == "probabilistic",
            "propagation_iterations",
            f"0 with attention={attention!r}",
            propagation_iterations,
            "only attention='probabilistic' propagates",
        )
        self.stride = stride
        self.clicked_pixels = corrections == "pixels"
        self.bottleneck_at = bottleneck_at
        self.aligned = inputs.aligned
        shared: dict[str, Any] = {"head_channels": max(channels // num_heads, 8), **(options or {})}
        self.bottleneck = conv_norm_relu(inputs.channels[0], channels, 1)
        # The first block: along the height, or none where one full block does it all.
        self.height: Attention2d | None = None
        self.classifier: AdaptiveClassifier | None = None
        if click_iterations is not None:
            seen = (value_channels or inputs.channels[0]) + 1
            self.classifier = AdaptiveClassifier(seen, ClickAdaptation(click_iterations))
            nn.init.ones_(self.classifier.weight[:, -1])  # of what the last block infers
        query_channels, value_channels = channels, value_channels or channels
        if layout == "axial":
            self.height = build_attention(
                attention,
                channels,
                channels,
                value_in_channels=value_channels + 2,
                num_heads=num_heads,
                axis="height",
                span=span,
                **shared,
            )
            query_channels, value_channels = query_channels + channels, value_channels + channels
        if propagation_iterations:
            propagation = {
                "propagation_iterations": propagation_iterations,
                "value_prior": value_prior,
                "value_precision": value_precision,
                # With the value term of the literal prior, a few pixels of large logits would
                # answer for all, with and without clicks.
                "log_prior": "key_magnitude",
            }
            shared = {**propagation, **shared}
        self.last = build_attention(
            attention,
            query_channels,
            1,
            value_in_channels=value_channels + 2,
            axis="full" if layout == "full" else "width",
            span=None if layout == "full" else span,
            **shared,
        )
        self.bias = nn.Parameter(torch.zeros(1)) if self.classifier is None else None
        self.fixed_logits: nn.Parameter | None = None
        if propagation_iterations:
            # Of positive and negative clicks: sure at first, but not beyond a gradient's reach.
            self.fixed_logits = nn.Parameter(torch.tensor([2.0, -2.0]))

    def forward(
        self, features: Tensor, clicks: Tensor, value_features: Tensor | None = None
    ) -> Tensor:
        """Return logits `(B, 1, H, W)`."""
        image_size, disks = clicks.shape[-2:], clicks
        grid = [max(1, -(-side // self.stride)) for side in image_size]
        # The maximum keeps every click, however coarse the grid.
        clicks = F.max_pool2d(clicks, self.stride, ceil_mode=True)  # (B, 2, h, w)
        clicks = clicks.to(features.dtype)
        if self.bottleneck_at == "map":
            x = _resized(self.bottleneck(features), grid, self.aligned)  # (B, C_B, h, w)
        else:
            x = self.bottleneck(_resized(features, grid, self.aligned))
        valued = x if value_features is None else _resized(value_features, grid, self.aligned)
        queried: tuple[Tensor, ...] = (x,)
        if self.height is not None:
            corrected = self.height(x, (valued, clicks))
            queried = (x, corrected)  # together (B, 2 C_B, h, w)
        fixed = self._fixed(clicks) if self.propagates else ()
        logits = self.last(queried, (valued, *queried[1:], clicks), *fixed)
        if self.classifier is None:
            logits = logits + self.bias
        else:
            finest = features if value_features is None else value_features
            inferred = _resized(logits, list(finest.shape[-2:]))
            logits = self.classifier(torch.cat([finest, inferred], dim=1), disks)
        return _resized(logits, list(image_size))

    @property
    def propagates(self) -> bool:
        """Whether clicks propagate at present."""
        last = self.last
        return (
            self.fixed_logits is not None
            and isinstance(last, ProbabilisticAttention2d)
            and last.settings.propagates
        )

    def _fixed(self, clicks: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits `(B, 1, h, w)` that clicks `(B, 2, h, w)` fix, and where."""
        assert self.fixed_logits is not None, "only heads that propagate fix logits"
        positive, negative = (clicks > CLICKED).unbind(dim=1)  # each (B, h, w)
        values = torch.where(positive, self.fixed_logits[0], self.fixed_logits[1])
        return values[:, None], positive ^ negative


def _resized(maps: Tensor, size: list[int], aligned: bool = False) -> Tensor:
    if list(maps.shape[-2:]) == size:
        return maps
    return F.interpolate(maps, size, mode="bilinear", align_corners=aligned)
