"""Curricula: three stages (Gabbur et al. 2021, C.2), or rounds of clicks (Sofiiuk et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from probseg.clicks.rounds import (
    AskNetwork,
    draw_count,
    visible_logits,
    with_clicks,
    without_clicks,
)
from probseg.clicks.sampling import (
    distance_to,
    drop_boxes,
    error_regions,
    interior,
    object_and_background,
    random_clicks,
    random_points,
)
from probseg.errors import check_least, require
from probseg.seeds import Draws
from probseg.types import Prompts

Stage = Literal["box", "random", "corrective"]
STAGES: tuple[Stage, ...] = ("box", "random", "corrective")


@dataclass(frozen=True)
class Curriculum:
    """When each of the three stages is trained.

    The first stage, "box", predicts a mask from the image and the box alone. The second, "random",
    adds clicks at random places of the object and the background. The third, "corrective", draws
    the clicks from the errors of the model's own prediction, and lasts to the end.

    Args:
        box_epochs: Length of the first stage in epochs.
        random_epochs: Length of the second stage in epochs.
        positive_clicks: Fewest and most positive clicks of an image in the later two stages.
        negative_clicks: Fewest and most negative clicks of an image in the later two stages.
        box_dropout: Probability that an image of the later two stages comes without its box, so
            that the model also learns to work from clicks alone; 0 as published.
        rounds: Fewest and most rounds of clicks in the third stage, drawn for each batch; a round
            corrects the prediction that was made with the clicks of the rounds before. 0 rounds is
            the box alone. One round as published.
        margin: Distance in pixels that corrective clicks keep from the border of an error region,
            where it is thick enough; 0 as published.
    """

    box_epochs: int = 20
    random_epochs: int = 20
    positive_clicks: tuple[int, int] = (1, 3)
    negative_clicks: tuple[int, int] = (0, 3)
    box_dropout: float = 0.0
    rounds: tuple[int, int] = (1, 1)
    margin: int = 0

    def __post_init__(self) -> None:
        for name in ("box_epochs", "random_epochs", "margin"):
            check_least(name, getattr(self, name), 0)
        for name in ("positive_clicks", "negative_clicks", "rounds"):
            fewest, most = getattr(self, name)
            expected = "(fewest, most) with 0 <= fewest <= most"
            require(0 <= fewest <= most, name, expected, (fewest, most))
        require(0 <= self.box_dropout <= 1, "box_dropout", "a probability", self.box_dropout)
        fits = self.box_dropout == 0 or self.positive_clicks[0] >= 1
        expected = "at least 1 with `box_dropout`, which leaves images without a box"
        require(fits, "positive_clicks", expected, self.positive_clicks)

    def stage(self, epoch: int) -> Stage:
        """Return the stage of an epoch, counted from 0."""
        if epoch < self.box_epochs:
            return "box"
        if epoch < self.box_epochs + self.random_epochs:
            return "random"
        return "corrective"

    def draw(
        self,
        masks: Tensor,
        boxes: Tensor,
        draws: Draws,
        ask: AskNetwork,
        *,
        epoch: int,
        batch_seed: int,
    ) -> Prompts:
        """Draw the prompts of a training batch.

        Args:
            masks: uint8, shape `(B, H, W)`: 1 object, 0 background, 255 ignored.
            boxes: Around the objects, shape `(B, 4)`; NaN rows where there is none.
            draws: Source of randomness on the device of `masks`.
            ask: Asks the network, in each round.
            epoch: Counted from 0; the stage depends on it.
            batch_seed: See `draw_count`; the number of rounds depends on it.

        Returns:
            Boxes and, after the first stage, clicks; with corrective clicks also the answer before
            the last of them, as the previous mask.
        """
        stage = self.stage(epoch)
        prompts = without_clicks(boxes)
        if stage == "box":
            return prompts
        counts = self.positive_clicks, self.negative_clicks
        prompts = prompts._replace(boxes=drop_boxes(boxes, self.box_dropout, draws))
        if stage == "random":
            clicks = random_clicks(*object_and_background(masks), draws, *counts)
            return with_clicks(prompts, *clicks)
        # The third stage: clicks on the errors of the answer to all clicks before.
        rounds = draw_count(self.rounds, batch_seed)
        for _ in range(rounds):
            logits = visible_logits(prompts, ask)
            wrong = error_regions(logits.squeeze(1) > 0, masks)
            missed, invented = (interior(region, self.margin) for region in wrong)
            prompts = with_clicks(prompts, *random_clicks(missed, invented, draws, *counts), logits)
        if rounds == 0:  # images without clicks need their boxes
            prompts = prompts._replace(boxes=boxes)
        return prompts


EROSION = 3
"""Pixels that random positive clicks keep from the object's border, where it is thick enough."""

NEAR, BAND = 0.5, 0.1
"""Share of the random negative clicks that are drawn from a band around the object, and the band's
width as a fraction of the square root of the object's area."""


@dataclass(frozen=True)
class IteratedClicks:
    """Training by iterated clicks, the same in all epochs.

    Each image gets random clicks, or its box instead; then each round adds a click, on the deepest
    error of the answer to all clicks before. The network gets that answer as an input if it takes a
    previous mask.

    The published training draws some negative clicks from other annotated objects of the image;
    here they are background like any other. It also clicks near the border of one object in ten,
    and measures the band and depths with other distances; see `corrective_clicks`.

    Args:
        most_clicks: Limit of random clicks of each sign. The number `n` of positive ones, from 1,
            and of negative ones, from 0, has a probability proportional to `decay**n`.
        decay: See `most_clicks`.
        most_rounds: Limit of rounds of corrective clicks. Their number, from `fewest_rounds`, is
            drawn for each batch.
        boxes: Share of the images that begin with their box and no clicks; 0 as published.
        fewest_rounds: Fewest rounds of corrective clicks; 0 as published.
        single: Share of the other images that begin as an evaluation does, with one click in the
            depth of the object; 0 as published.
    """

    most_clicks: int = 24
    decay: float = 0.8
    most_rounds: int = 3
    boxes: float = 0.0
    fewest_rounds: int = 0
    single: float = 0.0

    def __post_init__(self) -> None:
        checks = {
            "most_clicks": (self.most_clicks >= 1, "at least 1"),
            "decay": (0 < self.decay <= 1, "in (0, 1]"),
            "most_rounds": (self.most_rounds >= 0, "at least 0"),
            "boxes": (0 <= self.boxes <= 1, "a share"),
            "fewest_rounds": (
                0 <= self.fewest_rounds <= self.most_rounds,
                f"at least 0 and at most most_rounds = {self.most_rounds}",
            ),
            "single": (0 <= self.single <= 1, "a share"),
        }
        for name, (fine, expected) in checks.items():
            require(fine, name, expected, getattr(self, name))

    @property
    def rounds(self) -> tuple[int, int]:
        """Fewest and most rounds of corrective clicks."""
        return self.fewest_rounds, self.most_rounds

    def stage(self, epoch: int) -> Stage:
        """Return the stage of an epoch: clicks on errors, from the first epoch on."""
        return "corrective"

    def draw(
        self,
        masks: Tensor,
        boxes: Tensor,
        draws: Draws,
        ask: AskNetwork,
        *,
        epoch: int,
        batch_seed: int,
    ) -> Prompts:
        """Draw the prompts of a training batch, see `Curriculum.draw`; all epochs are alike."""
        prompts = without_clicks(drop_boxes(boxes, 1 - self.boxes, draws))
        unseen = prompts.boxes.isnan().any(dim=1, keepdim=True)
        points, labels = self._random_clicks(masks, draws)
        if self.single > 0:
            alone = draws.uniform(1) < self.single  # (B, 1)
            nothing = torch.zeros_like(masks, dtype=torch.bool)
            point, label = corrective_clicks(nothing, masks, draws)
            points = torch.cat([point, points], dim=1)
            labels = torch.cat([label.where(alone, -1), labels.where(~alone, -1)], dim=1)
        prompts = with_clicks(prompts, points, labels.where(unseen, -1))
        for _ in range(draw_count(self.rounds, batch_seed)):
            logits = visible_logits(prompts, ask)
            clicks = corrective_clicks(logits.squeeze(1) > 0, masks, draws)
            prompts = with_clicks(prompts, *clicks, logits)
        return prompts

    def _random_clicks(self, masks: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Draw points `(B, S, 2)` and labels `(B, S)` from object and background."""
        inside, outside = object_and_background(masks)
        positive = random_points(
            interior(inside, EROSION),
            1 + self._counts(self.most_clicks, draws),
            self.most_clicks,
            draws,
        )
        counts = self._counts(self.most_clicks + 1, draws)
        reach = (BAND * inside.flatten(1).sum(dim=1).sqrt()).ceil()
        band = outside & (distance_to(inside) <= reach[:, None, None])
        from_band = draws.uniform(self.most_clicks) < NEAR
        near = random_points(band, counts, self.most_clicks, draws)
        far = random_points(outside, counts, self.most_clicks, draws)
        points = torch.where(from_band[..., None], near[0], far[0])
        real = torch.where(from_band, near[1], far[1])
        return torch.cat([positive[0], points], dim=1), torch.cat(
            [torch.where(positive[1], 1, -1), torch.where(real, 0, -1)], dim=1
        )

    def _counts(self, choices: int, draws: Draws) -> Tensor:
        """Draw numbers from 0 to `choices - 1`, int64 `(B,)`, ever less probable."""
        weights = self.decay ** torch.arange(choices, device=draws.seeds.device)
        below = (weights.cumsum(dim=0) / weights.sum())[:-1]
        return (draws.uniform(1) >= below).sum(dim=1)


def corrective_clicks(prediction: Tensor, masks: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """Draw a click for each image, well inside its deeper error (Sofiiuk et al. 2021).

    The depth of a pixel is its distance to the nearest pixel without this error, also beyond the
    image's border. The sign with the greatest depth is clicked, the negative one in a tie, at a
    pixel of more than half of that depth. Distances are those of city blocks, which a device
    finds without a round trip; the published training uses approximate Euclidean ones. The two are
    equal in directions along the axes, and differ by a factor of up to 1.41 along diagonals.

    Return points `(B, 1, 2)` and labels `(B, 1)`: 1 positive, 0 negative, -1 where nothing is
    wrong.
    """
    # Distances to the outside, to which what is beyond the image's border belongs, (B, H, W).
    missed, invented = (
        distance_to(F.pad(~region, (1, 1, 1, 1), value=True))[:, 1:-1, 1:-1]
        for region in error_regions(prediction, masks)
    )
    deepest = [depth.flatten(1).amax(dim=1) for depth in (missed, invented)]
    positive = deepest[0] > deepest[1]
    depth = torch.where(positive[:, None, None], missed, invented)
    inner = 2 * depth > torch.maximum(*deepest)[:, None, None]
    points, real = random_points(inner, torch.ones_like(draws.seeds), 1, draws)
    return points, torch.where(real, positive[:, None].long(), -1)
