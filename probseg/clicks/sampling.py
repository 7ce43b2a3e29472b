"""Training-time prompts, drawn for whole batches on the model's device.

The three stages of the curriculum (Gabbur et al. 2021, C.2) differ in where clicks come from: there
are none, or they are on object and background, or on errors of the model's own prediction. The
prompts of an image depend on its own seed alone; see `Draws`.
"""

from __future__ import annotations

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from probseg.seeds import Draws


def distance_to(region: Tensor) -> Tensor:
    """City-block distance of each pixel to the nearest one of a region, int32 `(B, H, W)`.

    0 in the region, and at least `H + W` everywhere where it is empty. OpenCV computes it on
    processors, PyTorch on other devices.
    """
    height, width = region.shape[1:]
    if region.device.type == "cpu":
        return _by_opencv(~region, cv2.DIST_L1).clamp(max=height + width).int()
    return _by_minima(region)


def erode(region: Tensor, margin: int) -> Tensor:
    """Return the pixels of a region `(B, H, W)` that have `margin` more of it on each side.

    Pixels beyond the image's border are outside.
    """
    if region.device.type == "cpu":
        return _by_opencv(F.pad(region, (1, 1, 1, 1)), cv2.DIST_C)[:, 1:-1, 1:-1] > margin
    return _by_maxima(region, margin)


def _by_opencv(inside: Tensor, metric: int) -> Tensor:
    """Return the distance of pixels `(B, H, W)` to the nearest one outside; huge without any."""
    distances = [
        cv2.distanceTransform(mask, metric, 3)
        for mask in inside.contiguous().numpy().view(np.uint8)
    ]
    return torch.from_numpy(np.stack(distances)) if distances else inside.float()


def _by_minima(region: Tensor) -> Tensor:
    """Return the same as `distance_to`: distances in rows, then in columns."""
    height, width = region.shape[1:]
    distance = torch.where(region, 0, height + width).int()
    return _spread(_spread(distance, dim=2), dim=1)


def _by_maxima(region: Tensor, margin: int) -> Tensor:
    """Return the same as `erode`."""
    outside = F.pad((~region).float().unsqueeze(1), [margin] * 4, value=1.0)
    return F.max_pool2d(outside, 2 * margin + 1, stride=1).squeeze(1) == 0


def _spread(distance: Tensor, dim: int) -> Tensor:
    """Let distances `(B, H, W)` grow by 1 for each step along a dimension."""
    steps = torch.arange(distance.shape[dim], dtype=distance.dtype, device=distance.device)
    steps = steps[:, None] if dim == 1 else steps
    before = (distance - steps).cummin(dim).values + steps
    after = (distance + steps).flip(dim).cummin(dim).values.flip(dim) - steps
    return torch.minimum(before, after)


def random_points(
    region: Tensor, counts: Tensor, max_points: int, draws: Draws
) -> tuple[Tensor, Tensor]:
    """Draw pixels of regions `(B, H, W)`, uniformly and without repetition.

    Return points `(x, y)`, float `(B, max_points, 2)`, and whether each is real, `(B, max_points)`.
    An image whose region is too small gets fewer points than its count asks for. Which points are
    drawn is random, their order is not.
    """
    width = region.shape[2]
    # (B, H * W): pixels of the region up to each one
    up_to = region.flatten(1).cumsum(dim=1, dtype=torch.int32)
    total = up_to[:, -1].long()
    count = torch.minimum(counts, total)  # (B,)
    # Floyd's algorithm: step s draws among the first `total - count + s + 1` pixels, and takes the
    # last of them where the drawn one is taken already.
    steps = torch.arange(max_points, device=region.device)
    last = (total - count)[:, None] + steps  # (B, max_points)
    drawn = draws.below(last + 1)
    ranks = torch.full_like(drawn, -1)
    for step in range(max_points):
        taken = (ranks == drawn[:, step, None]).any(dim=1)
        ranks[:, step] = torch.where(taken, last[:, step], drawn[:, step])
    index = torch.searchsorted(up_to, (ranks + 1).int()).clamp(max=up_to.shape[1] - 1)
    real = steps < count[:, None]
    x = index % width
    y = torch.div(index, width, rounding_mode="floor")
    return torch.stack([x, y], dim=-1).float(), real


def random_clicks(
    positive_region: Tensor,
    negative_region: Tensor,
    draws: Draws,
    positive_range: tuple[int, int],
    negative_range: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """Draw a random number of positive and negative clicks from two regions `(B, H, W)`.

    Ranges are the fewest and most clicks, both included. Return points `(B, S, 2)` and labels `(B,
    S)`: 1 positive, 0 negative, -1 no click; `S` is the sum of the two greatest numbers.
    """
    points, labels = [], []
    regions = ((positive_region, positive_range, 1), (negative_region, negative_range, 0))
    for region, (fewest, most), label in regions:
        choices = torch.full((len(region),), most - fewest + 1, device=region.device)
        counts = fewest + draws.below(choices)
        drawn, real = random_points(region, counts, most, draws)
        points.append(drawn)
        labels.append(torch.where(real, label, -1))
    return torch.cat(points, dim=1), torch.cat(labels, dim=1)


def interior(region: Tensor, margin: int) -> Tensor:
    """Pixels of a region `(B, H, W)` that are farther than a margin (of a square) from its border.

    An annotator clicks well inside an error, not on the ragged line where the prediction is a
    pixel off. Where nothing of a region is that far inside, the whole region stays.
    """
    if margin == 0:
        return region
    inner = erode(region, margin)  # beyond the image is outside, as for simulated annotators
    thick = inner.flatten(1).any(dim=1)[:, None, None]
    return torch.where(thick, inner, region)


def error_regions(prediction: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """False negatives and false positives `(B, H, W)`; ignored pixels are in neither."""
    return (masks == 1) & ~prediction, (masks == 0) & prediction


def object_boxes(masks: Tensor) -> Tensor:
    """Tight half-open box around the object of each mask, float `(B, 4)`; NaN without one."""
    inside = masks == 1
    spans = []
    for line in (inside.any(dim=1), inside.any(dim=2)):  # columns (B, W), then rows (B, H)
        length = line.shape[1]
        first = line.int().argmax(dim=1)
        last = length - line.flip(1).int().argmax(dim=1)
        spans += [first, last]
    boxes = torch.stack([spans[0], spans[2], spans[1], spans[3]], dim=1).float()
    empty = ~inside.flatten(1).any(dim=1)
    return boxes.masked_fill(empty[:, None], torch.nan)


def jitter_boxes(boxes: Tensor, noise: float, size: tuple[int, int], draws: Draws) -> Tensor:
    """Move the corners of boxes `(B, 4)` as `jitter_box` does, for a whole batch.

    Boxes are whole-numbered, stay inside and at least one pixel wide; NaN rows stay NaN.
    """
    height, width = size
    sides = torch.stack([boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]], dim=1)
    most = (noise * sides).floor().repeat(1, 2)  # (B, 4)
    moved = boxes + (draws.uniform(4) * (2 * most + 1)).floor() - most
    x0 = moved[:, 0].clamp(0, width - 1)
    y0 = moved[:, 1].clamp(0, height - 1)
    x1 = torch.maximum(moved[:, 2].clamp(max=width), x0 + 1)
    y1 = torch.maximum(moved[:, 3].clamp(max=height), y0 + 1)
    return torch.stack([x0, y0, x1, y1], dim=1)


def drop_boxes(boxes: Tensor, probability: float, draws: Draws) -> Tensor:
    """Remove the box of each image with the given probability (its row becomes NaN)."""
    return boxes.masked_fill(draws.uniform(1) < probability, torch.nan)


def object_and_background(masks: Tensor) -> tuple[Tensor, Tensor]:
    """Object and background pixels of masks `(B, H, W)`; ignored pixels are in neither."""
    return masks == 1, masks == 0
