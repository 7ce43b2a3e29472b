"""The expectation-maximisation attention unit of EMANet (Li et al., 2019, §5)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.attention.bases import Bases, Normalisation, Update
from probseg.ops.em import EMAttention, em_attention, responsibilities


class EMAU(nn.Module):
    """A residual block around EM attention (Li et al., 2019, Fig. 2).

    1x1 convolution, EM attention, ReLU, 1x1 convolution and batch normalisation, the sum with the
    input, ReLU. The first convolution has no ReLU behind it, so that bases may be negative (§5.1).
    Time and memory are linear in the number of pixels unless the pixels are the bases.

    Convolutions start with the initialisation of He et al. (2015), which gives the pixels the
    length that bases need to come apart: of short ones, every basis becomes the mean. The last
    normalisation starts at 0, and with it the unit as the identity, as usual for residual blocks
    (Goyal et al., 2017).

    The authors' released code differs from the paper and from this in three points, which
    `released` reproduces up to its two divisions with 1e-6: the stored bases are not normalised
    before the first E step, so that the moving average shrinks them; the whole EM attention has no
    gradient, so that the first convolution stays as it was initialised; and the last normalisation
    starts at 1.

    Args:
        channels: Channels of the map, of the bases and of the result.
        num_bases: Number `K` of bases; without effect for `bases="pixels"`.
        bases: How the initial bases change in training, "moving_average", "learnt" or "fixed", see
            `Bases`; or "pixels", where the pixels are the bases and there is no M step: a
            non-local block (§6.2.2), for which `channels**-0.5` is a usual `scale`.
        normalisation: Of the bases: "l2", "layer" or None; the pixels are left as they are.
        train_iterations: Number of EM iterations in training.
        eval_iterations: Number of EM iterations in evaluation.
        scale: `lambda` of Eq. 12.
        momentum: `alpha` of Eq. 15.
        released: Compute what the authors' code computes.

    Raises:
        UnknownNameError: If there are no such bases, or no such normalisation.
        ValueError: If a number is out of range, or `released` comes with other bases than the
            moving average with "l2".
    """

    def __init__(
        self,
        channels: int,
        num_bases: int = 64,
        bases: Update | Literal["pixels"] = "moving_average",
        normalisation: Normalisation | None = "l2",
        train_iterations: int = 3,
        eval_iterations: int = 3,
        scale: float = 1.0,
        momentum: float = 0.9,
        released: bool = False,
    ) -> None:
        super().__init__()
        if released and (bases, normalisation) != ("moving_average", "l2"):
            msg = (
                "`released` must be False unless bases='moving_average' and normalisation='l2', as "
                f"in the authors' code, got bases={bases!r} and normalisation={normalisation!r}"
            )
            raise ValueError(msg)
        self.released = released
        self.scale = scale
        self.enter = nn.Conv2d(channels, channels, kernel_size=1)
        self.bases: Bases | None = None
        if bases != "pixels":
            self.bases = Bases(
                num_bases,
                channels,
                update=bases,
                normalisation=normalisation,
                momentum=momentum,
                train_iterations=train_iterations,
                eval_iterations=eval_iterations,
                renormalise=not released,
            )
        convolution = nn.Conv2d(channels, channels, kernel_size=1, bias=False)
        norm = nn.BatchNorm2d(channels)
        for weight in (self.enter.weight, convolution.weight):
            nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")
        if released:
            self.enter.requires_grad_(False)  # which no loss reaches
        else:
            nn.init.zeros_(norm.weight)
        self.leave = nn.Sequential(convolution, norm)

    def forward(self, x: Tensor) -> Tensor:
        """Transform `(B, channels, h, w)`; in training, the moving average follows the picture.

        Args:
            x: Features, `(B, channels, h, w)`.

        Returns:
            Features of the same shape, at least 0.
        """
        read = F.relu(self._read_out(x))
        # In place, as at the end of every residual block: maps are what takes memory here.
        return F.relu(self.leave(read).add_(x), inplace=True)

    def responsibilities(self, x: Tensor) -> Tensor:
        """Return the responsibility of each basis for each pixel in the last E step.

        Args:
            x: Features, `(B, channels, h, w)`.

        Returns:
            `(B, K, h, w)` in [0, 1], float32; the sum over the bases is 1.

        Raises:
            ValueError: If the pixels are the bases.
        """
        if self.bases is None:
            msg = (
                "`bases` must not be the pixels, which have no responsibilities; build the unit "
                "with bases='moving_average', 'learnt' or 'fixed'"
            )
            raise ValueError(msg)
        tokens = self._tokens(x)
        shares = responsibilities(tokens, self._attention(tokens).previous, self.scale)
        return shares.squeeze(1).transpose(-2, -1).reshape(len(x), -1, *x.shape[-2:])

    def _read_out(self, x: Tensor) -> Tensor:
        with torch.no_grad() if self.released else nullcontext():
            tokens = self._tokens(x)
            attention = self._attention(tokens)
        if self.bases is not None:
            self.bases.follow(attention.bases)
        return attention.values.squeeze(1).transpose(-2, -1).reshape(x.shape)

    def _tokens(self, x: Tensor) -> Tensor:
        # Autocast lowers the map; the bases, and with them EM, keep the precision of the weights.
        tokens = self.enter(x).to(self.enter.weight.dtype)
        result: Tensor = tokens.flatten(2).transpose(-2, -1).unsqueeze(1)
        return result

    def _attention(self, tokens: Tensor) -> EMAttention:
        if self.bases is None:
            return em_attention(tokens, tokens, iterations=0, scale=self.scale)
        return em_attention(
            tokens,
            self.bases.start(len(tokens)),
            iterations=self.bases.iterations,
            scale=self.scale,
            normalise=self.bases.normalise,
        )
