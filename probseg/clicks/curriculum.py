"""The curriculum of three stages (the tasks of Gabbur et al. 2021, C.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from probseg.clicks.rounds import (
    AskNetwork,
    draw_count,
    visible_logits,
    with_clicks,
    without_clicks,
)
from probseg.clicks.sampling import (
    drop_boxes,
    error_regions,
    interior,
    object_and_background,
    random_clicks,
)
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

    Raises:
        ValueError: If a number is out of range.
    """

    box_epochs: int = 20
    random_epochs: int = 20
    positive_clicks: tuple[int, int] = (1, 3)
    negative_clicks: tuple[int, int] = (0, 3)
    box_dropout: float = 0.0
    rounds: tuple[int, int] = (1, 1)
    margin: int = 0

    def __post_init__(self) -> None:
        for name in ("box_epochs", "random_epochs"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"`{name}` must be a number of epochs >= 0, got {getattr(self, name)}"
                )
        for name in ("positive_clicks", "negative_clicks", "rounds"):
            fewest, most = getattr(self, name)
            if not 0 <= fewest <= most:
                raise ValueError(
                    f"`{name}` must be (fewest, most) with 0 <= fewest <= most, got {fewest, most}"
                )
        if not 0 <= self.box_dropout <= 1:
            raise ValueError(f"`box_dropout` must be a probability, got {self.box_dropout}")
        if self.box_dropout > 0 and self.positive_clicks[0] < 1:
            raise ValueError(
                "`positive_clicks` must be at least 1 with `box_dropout`, which leaves images "
                f"without a box, got {self.positive_clicks}"
            )
        if self.margin < 0:
            raise ValueError(f"`margin` must be a number of pixels >= 0, got {self.margin}")

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
