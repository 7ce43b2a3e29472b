"""Training of interactive segmentation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor

from probseg.backbones import rgb_parameters
from probseg.clicks.curriculum import STAGES, Curriculum, Stage
from probseg.clicks.iterated import IteratedClicks
from probseg.clicks.rounds import drawn_rounds
from probseg.clicks.sampling import jitter_boxes, object_boxes
from probseg.data.datamodule import TrainBatch
from probseg.errors import UsageError
from probseg.losses import BinaryCrossEntropy, MaskLoss
from probseg.models.segmenter import Segmenter
from probseg.seeds import Draws
from probseg.tasks.base import NetworkTask
from probseg.tasks.schedule import PolynomialThenConstant
from probseg.types import Prompts


class InteractiveSegmentation(NetworkTask):
    """Trains a `Segmenter` with simulated clicks.

    Evaluation by clicks is the business of the callback `InteractiveEvaluation`, which runs on the
    validation and test batches of this module.

    Args:
        model: The network.
        loss: Loss between logits and mask; cross-entropy by default.
        optimizer: Makes the optimiser; RAdam with rate 1e-4 by default, as published.
        lr_scheduler: Makes the schedule, stepped every epoch.
        curriculum: How prompts are drawn: by a `Curriculum` of three tasks, the default, or by
            `IteratedClicks`.
        corner_noise: Greatest shift of the sides of the training boxes, as a fraction of the box.
        auxiliary_weight: Weight of the loss of auxiliary logits, for decoders that have some; 0.4
            as in Yuan et al. (2020).
        auxiliary_loss: Loss of auxiliary logits; None for ``loss``.
        backbone_rate: Learning rate of the backbone relative to that of all other parameters, to
            which the convolution for prompts at its stem belongs.

    Raises:
        UsageError: If the network is one for semantic segmentation.
        ValueError: If ``corner_noise``, ``auxiliary_weight`` or ``backbone_rate`` is out of range.
    """

    def __init__(
        self,
        model: Segmenter,
        loss: MaskLoss | None = None,
        optimizer: OptimizerCallable = lambda p: torch.optim.RAdam(p, lr=1e-4),
        lr_scheduler: LRSchedulerCallable = PolynomialThenConstant,
        curriculum: Curriculum | IteratedClicks | None = None,
        corner_noise: float = 0.1,
        auxiliary_weight: float = 0.4,
        auxiliary_loss: MaskLoss | None = None,
        backbone_rate: float = 1.0,
    ) -> None:
        if not isinstance(model, Segmenter):  # a name in a configuration may be that of another
            msg = (
                "model must be a Segmenter, for interactive segmentation, got a "
                f"{type(model).__name__}; choose another, see "
                'probseg.list_models(task="interactive")'
            )
            raise UsageError(msg)
        if not 0 <= corner_noise < 0.5:
            msg = f"corner_noise must be a fraction in [0, 0.5), got {corner_noise}"
            raise ValueError(msg)
        if not 0 <= auxiliary_weight < float("inf"):
            msg = f"auxiliary_weight must be finite and at least 0, got {auxiliary_weight}"
            raise ValueError(msg)
        if not 0 < backbone_rate < float("inf"):
            msg = f"backbone_rate must be finite and above 0, got {backbone_rate}"
            raise ValueError(msg)
        super().__init__(model)
        self.model: Segmenter
        self.save_hyperparameters()
        self.loss = loss if loss is not None else BinaryCrossEntropy()
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.curriculum: Curriculum | IteratedClicks = curriculum or Curriculum()
        self.corner_noise = corner_noise
        self.auxiliary_weight = auxiliary_weight
        self.auxiliary_loss = auxiliary_loss if auxiliary_loss is not None else self.loss
        self.backbone_rate = backbone_rate

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
        rounds = drawn_rounds(self.curriculum.rounds, self.batch_seed)
        prompts = self.draw_prompts(images, batch.masks, batch.seeds, self.stage, rounds)
        logits, auxiliary = self.model.all_logits(self.model.encode(images), prompts)
        loss = self.loss(logits, batch.masks)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(images))
        if auxiliary is not None:
            auxiliary_loss = self.auxiliary_loss(auxiliary, batch.masks)
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
            Boxes with noise on their corners, clicks, and the answer before the last click for
            networks that take a previous mask, as the curriculum has them.
        """
        size = (masks.shape[-2], masks.shape[-1])
        draws = Draws(seeds)
        boxes = jitter_boxes(object_boxes(masks), self.corner_noise, size, draws)
        encoded = cache(lambda: self.model.encode(images))  # some tasks ask nothing

        def answer(prompts: Prompts) -> Tensor:
            # A refinement learns nothing, and would take longer than all the rest of the step.
            return self.model.decode(encoded(), self._readable(prompts), refine=False)

        with self._as_at_test_time():
            prompts = self.curriculum.draw(masks, boxes, draws, stage, rounds, answer)
        return self._readable(prompts)

    def _readable(self, prompts: Prompts) -> Prompts:
        """Leave the previous mask out where the network takes none."""
        return prompts if self.model.previous_mask else prompts._replace(previous=None)

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
        optimizer = self._optimizer()
        scheduler = self.lr_scheduler(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler}}

    def _optimizer(self) -> torch.optim.Optimizer:
        """Make the optimiser, with a group of its own for a backbone of another rate."""
        if self.backbone_rate == 1:
            return self.optimizer(self.parameters())
        of_backbone = rgb_parameters(self.model.backbone)
        known = set(of_backbone)
        others = [parameter for parameter in self.parameters() if parameter not in known]
        optimizer = self.optimizer([{"params": others}, {"params": of_backbone}])
        optimizer.param_groups[1]["lr"] *= self.backbone_rate
        return optimizer

    def on_train_epoch_start(self) -> None:
        """Log which task of the curriculum begins."""
        self.log("train/stage", float(STAGES.index(self.stage)), sync_dist=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Note the curriculum's task."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["curriculum_stage"] = self.stage
