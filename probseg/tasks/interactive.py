"""Training of interactive segmentation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor

from probseg.clicks.curriculum import STAGES, Curriculum, Stage
from probseg.clicks.sampling import (
    drop_boxes,
    error_regions,
    interior,
    jitter_boxes,
    object_and_background,
    object_boxes,
    random_clicks,
)
from probseg.data.datamodule import TrainBatch
from probseg.losses import BinaryCrossEntropy, MaskLoss
from probseg.models.segmenter import Segmenter
from probseg.seeds import Draws
from probseg.tasks.base import NetworkTask
from probseg.tasks.schedule import PolynomialThenConstant
from probseg.types import Prompts


class InteractiveSegmentation(NetworkTask):
    """Trains a `Segmenter` with a curriculum of simulated clicks.

    Evaluation by clicks is the business of the callback `InteractiveEvaluation`, which runs on the
    validation and test batches of this module.

    Args:
        model: The network.
        loss: Loss between logits and mask; cross-entropy by default.
        optimizer: Makes the optimiser; RAdam with rate 1e-4 by default, as published.
        lr_scheduler: Makes the schedule, stepped every epoch.
        curriculum: When the tasks are trained and how clicks are drawn.
        corner_noise: Greatest shift of the sides of the training boxes, as a fraction of the box.
        auxiliary_weight: Weight of the loss of auxiliary logits, for decoders that have some; 0.4
            as in Yuan et al. (2020).

    Raises:
        ValueError: If ``corner_noise`` or ``auxiliary_weight`` is out of range.
    """

    def __init__(
        self,
        model: Segmenter,
        loss: MaskLoss | None = None,
        optimizer: OptimizerCallable = lambda p: torch.optim.RAdam(p, lr=1e-4),
        lr_scheduler: LRSchedulerCallable = PolynomialThenConstant,
        curriculum: Curriculum | None = None,
        corner_noise: float = 0.1,
        auxiliary_weight: float = 0.4,
    ) -> None:
        if not 0 <= corner_noise < 0.5:
            msg = f"corner_noise must be a fraction in [0, 0.5), got {corner_noise}"
            raise ValueError(msg)
        if not 0 <= auxiliary_weight < float("inf"):
            msg = f"auxiliary_weight must be finite and at least 0, got {auxiliary_weight}"
            raise ValueError(msg)
        super().__init__(model)
        self.model: Segmenter
        self.save_hyperparameters()
        self.loss = loss if loss is not None else BinaryCrossEntropy()
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.curriculum = curriculum if curriculum is not None else Curriculum()
        self.corner_noise = corner_noise
        self.auxiliary_weight = auxiliary_weight

    def forward(self, image: Tensor, prompts: Prompts) -> Tensor:
        """Return the logits ``(B, 1, H, W)`` of images ``(B, 3, H, W)`` in [0, 1]."""
        logits: Tensor = self.model(image, prompts)
        return logits

    @property
    def stage(self) -> Stage:
        """Task of the curriculum in the present epoch."""
        return self.curriculum.stage(self.current_epoch)

    def training_step(self, batch: TrainBatch, batch_idx: int) -> dict[str, Tensor | Prompts]:
        """Draw prompts for the crops, predict, and return the loss with what led to it."""
        images = batch.images.float() / 255
        rounds = self.curriculum.drawn_rounds(self.batch_seed)
        prompts = self.draw_prompts(images, batch.masks, batch.seeds, self.stage, rounds)
        logits, auxiliary = self.model.all_logits(self.model.encode(images), prompts)
        loss = self.loss(logits, batch.masks)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(images))
        if auxiliary is not None:
            auxiliary_loss = self.loss(auxiliary, batch.masks)
            self.log("train/auxiliary_loss", auxiliary_loss, batch_size=len(images))
            loss = loss + self.auxiliary_weight * auxiliary_loss
        return {"loss": loss, "logits": logits.detach(), "prompts": prompts}

    def draw_prompts(
        self, images: Tensor, masks: Tensor, seeds: Tensor, stage: Stage, rounds: int
    ) -> Prompts:
        """Draw the prompts of a training batch.

        Args:
            images: RGB in [0, 1], shape ``(B, 3, H, W)``.
            masks: uint8, shape ``(B, H, W)``: 1 object, 0 background, 255 ignored.
            seeds: Of the random numbers of each image, int64, shape ``(B,)``.
            stage: Task of the curriculum.
            rounds: Rounds of clicks in the last task.

        Returns:
            Boxes with noise on their corners and, after the first stage, clicks.
        """
        batch, height, width = masks.shape
        draws = Draws(seeds)
        boxes = jitter_boxes(object_boxes(masks), self.corner_noise, (height, width), draws)
        prompts = Prompts(
            points=images.new_zeros(batch, 0, 2),
            labels=torch.zeros(batch, 0, dtype=torch.long, device=images.device),
            boxes=boxes,
        )
        if stage == "box":
            return prompts
        prompts = prompts._replace(boxes=drop_boxes(boxes, self.curriculum.box_dropout, draws))
        if stage == "random":
            return self._add_clicks(prompts, *object_and_background(masks), draws)
        with self._as_at_test_time():
            encoded = self.model.encode(images)
            for _ in range(rounds):
                logits = self.model.decode(encoded, prompts)  # (B, 1, H, W)
                wrong = error_regions(_predicted(logits, prompts), masks)
                missed, invented = (interior(w, self.curriculum.margin) for w in wrong)
                prompts = self._add_clicks(prompts, missed, invented, draws)
        if rounds == 0:  # without a box and without clicks there would be nothing to go by
            prompts = prompts._replace(boxes=boxes)
        return prompts

    def _add_clicks(
        self, prompts: Prompts, positive: Tensor, negative: Tensor, draws: Draws
    ) -> Prompts:
        """Append clicks drawn from two regions ``(B, H, W)``."""
        wanted = self.curriculum.positive_clicks, self.curriculum.negative_clicks
        points, labels = random_clicks(positive, negative, draws, *wanted)
        return prompts._replace(
            points=torch.cat([prompts.points, points.to(prompts.points.dtype)], dim=1),
            labels=torch.cat([prompts.labels, labels], dim=1),
        )

    @contextmanager
    def _as_at_test_time(self) -> Iterator[None]:
        """Predict in evaluation mode and without gradients inside the block."""
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module in training:  # and not the ones that somebody has frozen
                module.training = True
            # Weights cast to half precision here carry no gradient and must not be used again.
            torch.clear_autocast_cache()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Make the optimiser and the schedule."""
        optimizer = self.optimizer(self.parameters())
        scheduler = self.lr_scheduler(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler}}

    def on_train_epoch_start(self) -> None:
        """Log which task of the curriculum begins."""
        self.log("train/stage", float(STAGES.index(self.stage)))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Note the curriculum's task."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["curriculum_stage"] = self.stage


def _predicted(logits: Tensor, prompts: Prompts) -> Tensor:
    """Return the predicted pixels ``(B, H, W)``; nothing where there is no prompt yet."""
    prompted = (prompts.labels >= 0).any(dim=1) | ~prompts.boxes.isnan().any(dim=1)
    return (logits.squeeze(1) > 0) & prompted[:, None, None]
