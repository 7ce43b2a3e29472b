"""Alignment of an answer with colours and contours of the image, by a minimum cut of its pixels."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.clicks.propagated import log_odds_gain, seeds
from probseg.errors import require
from probseg.ops.numerics import full_precision
from probseg.ops.units import PixelMixture, Scales, propagated
from probseg.types import Prompts

Floats = npt.NDArray[np.floating]
Indices = npt.NDArray[np.int32]

STEPS = 256  # integer steps per unit cost
# offsets (rows, columns) to the later half of the eight neighbours
NEIGHBOURS = ((0, 1), (1, 0), (1, 1), (1, -1))


def minimum_cut(advantage: Floats, image: Floats, smoothness: float) -> npt.NDArray[np.bool_]:
    """Divide an image `(h, w, C)` into object and background, bool `(h, w)`, at the least cost.

    A background pixel of positive advantage `(h, w)` costs its advantage, an object pixel of
    negative advantage costs its magnitude, and each divided pair of the eight neighbours costs
    `smoothness * exp(-b |colour difference|^2) / distance`, where `1 / b` is twice the mean of the
    squared differences (Boykov and Jolly, 2001; Rother et al., 2004). Costs are rounded to
    multiples of 1 / 256. Of several cheapest divisions, that with the smallest object is returned.
    """
    # Takes a seventh of a second to import, and networks without a cut import this module.
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    height, width = advantage.shape
    pixels = height * width
    source, sink = pixels, pixels + 1
    first, second, costs = _edges(image, smoothness)
    gains = np.rint(STEPS * advantage).astype(np.int32).ravel()
    gaining = np.flatnonzero(gains > 0).astype(np.int32)
    losing = np.flatnonzero(gains < 0).astype(np.int32)
    starts = [first, second, np.full_like(gaining, source), losing]
    ends = [second, first, gaining, np.full_like(losing, sink)]
    capacities = [costs, costs, gains[gaining], -gains[losing]]
    graph = csr_matrix(
        (np.concatenate(capacities), (np.concatenate(starts), np.concatenate(ends))),
        shape=(pixels + 2, pixels + 2),
    )
    left = graph - maximum_flow(graph, source, sink, method="dinic").flow
    left.eliminate_zeros()
    reached = breadth_first_order(left, source, return_predecessors=False)
    inside = np.zeros(pixels + 2, dtype=np.bool_)
    inside[reached] = True
    return inside[:pixels].reshape(height, width)


def _edges(image: Floats, smoothness: float) -> tuple[Indices, Indices, Indices]:
    """Return the two pixels of each pair of neighbours, and the cost to divide them, in steps."""
    height, width = image.shape[:2]
    numbers = np.arange(height * width, dtype=np.int32).reshape(height, width)
    firsts, seconds, squares, lengths = [], [], [], []
    for down, right in NEIGHBOURS:
        first = slice(0, height - down), slice(max(0, -right), width - max(0, right))
        second = slice(down, height), slice(max(0, right), width - max(0, -right))
        firsts.append(numbers[first].ravel())
        seconds.append(numbers[second].ravel())
        squares.append(np.square(image[first] - image[second]).sum(axis=-1).ravel())
        lengths.append(np.full(firsts[-1].shape, math.hypot(down, right)))
    square, length = np.concatenate(squares), np.concatenate(lengths)
    usual = 2 * square.mean() if square.any() else 1.0
    costs = smoothness * np.exp(-square / usual) / length
    pairs = np.concatenate(firsts), np.concatenate(seconds)
    return *pairs, np.rint(STEPS * costs).astype(np.int32)


LARGEST_LOGIT = 6.0  # logits are clamped to this magnitude

DECIDED = math.log(9)  # least magnitude of a pixel's logit after the cut: a probability of 0.9


class GraphCut(nn.Module):
    """Aligns the contour of a trained network's mask with the contours of the image.

    As in GrabCut (Rother et al., 2004), a minimum cut weighs the evidence of each pixel's colour
    against the contrast along the contour. That evidence comes from probabilistic attention: the
    pixels are queries of a mixture over colours, and of one over colours and places. The units of
    both adapt to the image (Gabbur et al., 2021, Eq. 16, without a prior). The network's answer and
    the clicks are observations of the units' values, which propagate to all pixels (Eqs. 23 and
    24). The advantage of a pixel as object is its logit plus the weighted log-odds of
    the object among similar pixels, relative to the whole image; disks around clicks are certain.

    Nothing is learnt, and it takes part in evaluation mode only: a cut has no gradient. It works on
    the CPU, image by image, in a time that grows somewhat faster than the number of pixels.

    Args:
        units: Units along each side of the grid, `units**2` in all.
        key_iterations: EM iterations in which the units adapt to the image.
        scales: Of colours and places, a pair for each mixture; see `probseg.ops.units.Scales`.
        stride: Of the grid of pixels on which values propagate.
        colour_weight: Weight of the evidence of each mixture.
        smoothness: Cost of a contour of one pixel through a single colour.
    """

    def __init__(
        self,
        units: int = 12,
        key_iterations: int = 2,
        scales: Scales = ((22.0, 0.0), (22.0, 8.0)),
        stride: int = 2,
        colour_weight: float = 0.5,
        smoothness: float = 10.0,
    ) -> None:
        super().__init__()
        self.mixture = PixelMixture(units, key_iterations, scales, stride)
        for name, weight in (("colour_weight", colour_weight), ("smoothness", smoothness)):
            require(0 <= weight <= 1000, name, "a number in [0, 1000]", weight)
        self.colour_weight, self.smoothness = colour_weight, smoothness

    @torch.no_grad()
    def forward(self, logits: Tensor, image: Tensor, prompts: Prompts) -> Tensor:
        """Refine logits `(B, 1, H, W)` of RGB images in [0, 1], `(B, 3, H, W)`.

        The result is float32: the network's logits where they agree with the cut, at least
        `DECIDED` in magnitude and positive where the cut has the object.
        """
        size = (image.shape[-2], image.shape[-1])
        positive, negative, _ = seeds(prompts.points.float(), prompts.labels, size)  # (B, H, W)
        with full_precision(image.device):
            logits = logits.float()[:, 0].clamp(-LARGEST_LOGIT, LARGEST_LOGIT)  # (B, H, W)
            queries, keys, _ = self.mixture(image)
            share = torch.where(positive, 1.0, torch.where(negative, 0.0, logits.sigmoid()))
            evidence = self._colour_evidence(queries, keys, share)
        advantage = logits + self.colour_weight * evidence
        cut = self._cut(advantage, positive, negative, image)
        return torch.where(cut, logits.clamp(min=DECIDED), logits.clamp(max=-DECIDED))[:, None]

    def _colour_evidence(self, queries: Tensor, keys: Tensor, share: Tensor) -> Tensor:
        """Return the mixtures' sum of `log_odds_gain` for shares of the object, `(B, H, W)`."""
        observed = F.avg_pool2d(share[:, None], self.mixture.stride, ceil_mode=True)  # (B, 1, h, w)
        read = propagated(queries, keys, observed)[:, :, 0]  # (B, G, h, w)
        odds = log_odds_gain(read, observed).sum(dim=1, keepdim=True)
        return self.mixture.enlarge(odds, share)[:, 0]

    def _cut(self, advantage: Tensor, positive: Tensor, negative: Tensor, image: Tensor) -> Tensor:
        """Return the object of each image, bool `(B, H, W)`."""
        # More than all that speaks against it: the pixel itself, and a contour around it.
        certain = float(advantage.abs().amax()) + 8 * self.smoothness + 1
        advantage = torch.where(positive, certain, torch.where(negative, -certain, advantage))
        colours = image.float().movedim(1, 3).cpu().numpy()
        pairs = zip(advantage.cpu().numpy(), colours, strict=True)
        cuts = [minimum_cut(gains, colour, self.smoothness) for gains, colour in pairs]
        return torch.from_numpy(np.stack(cuts)).to(advantage.device)
