"""Training of interactive segmentation."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Any, Literal, NamedTuple

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from probseg.attention import Adaptation, restored
from probseg.backbones import layer_numbers, recompute_activations, rgb_parameters
from probseg.clicks.curriculum import STAGES, Curriculum, IteratedClicks, Stage, corrective_clicks
from probseg.clicks.rounds import AskNetwork, draw_count, halve, look_again, with_clicks
from probseg.clicks.sampling import jitter_boxes, object_boxes
from probseg.data.datamodule import TrainBatch
from probseg.errors import UsageError, require
from probseg.losses import (
    BinaryCrossEntropy,
    MaskLoss,
    clicked_loss,
    iou_cross_entropy,
    taught_loss,
)
from probseg.models.network import Encoded, resize_maps, resize_prompts
from probseg.models.segmenter import Logits, Segmenter
from probseg.seeds import Draws, mix_seeds
from probseg.tasks.base import NetworkTask, PolynomialThenConstant, trial_optimizer
from probseg.types import IGNORE, Prompts


class StepResult(NamedTuple):
    """Result of a training step: the losses of a batch, and the last answers to its crops."""

    losses: dict[str, Tensor]  # by their names in the log, "loss" the mean over the answers
    total: Tensor
    answers: dict[str, Tensor | Prompts]  # "logits" and "prompts", for callbacks


class TrainedAnswer(NamedTuple):
    """An answer with a loss, its true masks, and its prompts.

    Masks are uint8, shape `(R, H, W)`; rows without a prompt are all ignored pixels.
    """

    logits: Logits
    masks: Tensor
    prompts: Prompts


class InteractiveSegmentation(NetworkTask):
    """Trains a `Segmenter` with simulated clicks.

    The callback `InteractiveEvaluation` evaluates by clicks, on the validation and test batches of
    this module.

    Args:
        model: The network.
        loss: Loss between logits and mask; cross-entropy by default.
        optimizer: Builds the optimiser; RAdam with rate 1e-4 by default, as published.
        lr_scheduler: Builds the schedule.
        curriculum: How prompts are drawn: by a `Curriculum` of three stages, the default, or by
            `IteratedClicks`.
        corner_noise: Greatest shift of the sides of the training boxes, as a fraction of the box.
        auxiliary_weight: Weight of the loss of auxiliary logits, for decoders that have some; 0.4
            as in Yuan et al. (2020).
        auxiliary_loss: Loss of auxiliary logits; None for `loss`.
        backbone_rate: Learning rate of the backbone relative to that of all other parameters, to
            which the convolution for prompts at its stem belongs.
        layer_decay: Learning rate of each block of a transformer relative to that of the block
            behind it, the last of which has `backbone_rate`: 0.65 to 0.9 keep what the first blocks
            have learnt (Bao et al. 2022, "BEiT").
        every_round: Whether the answer of every round of clicks is trained, in training mode, or
            that of the last one alone, as published. Where prompts enter at the head, all rounds
            share one pass through the backbone.
        trained_answers: With `every_round`, how many answers at the beginning and at the end of the
            rounds of a batch are trained. The answers between are those at test time, without
            gradients: late corrections are learnt at little more than their forward cost. None
            trains all answers.
        clicked_weight: Weight of `clicked_loss`, the cross-entropy of the clicked pixels.
        annotators: Simulated annotators that click on each object of a batch, with their own random
            numbers; they share what does not depend on prompts, too.
        frozen: Shell patterns of weights of the network that are not trained, such as
            `"backbone.network.conv_stem.*"`. A normalisation layer keeps its averages, too, if all
            its weights are frozen.
        fixed_statistics: Which normalisation layers keep their averages: those of the backbone
            (true), as is wise for a pretrained backbone and small batches, or `"all"`, of a network
            that is trained already.
        gradient_checkpointing: Whether the backbone computes activations again for the backward
            pass instead of keeping them, see `recompute_activations`.
        second_looks: With `every_round`, whether crops are clicked at half their size, and a window
            around the last click is then answered at the crop's own size, twice with a click
            between, as by the zoom `look`. Every second batch answers each round once more with
            the answer itself as the previous mask.
        drawn_iterations: Fewest and most EM iterations of each kind of update of `Adaptation`,
            such as `{"key": [0, 2], "value": [0, 5]}`; each batch draws its own, so that the
            trained network answers with any of these numbers. None keeps the network's own.
        teacher: A trained network, whose answers to the same prompts the network learns to give
            too; None for none.
        teacher_share: Share of `taught_loss` in the loss of each answer; the rest is `loss`.
        lr_interval: When the schedule takes a step: after each `"epoch"`, or after each `"step"` of
            the optimiser, as warm-ups and `OneCycleLR` count.
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
        every_round: bool = False,
        annotators: int = 1,
        frozen: Sequence[str] = (),
        fixed_statistics: bool | Literal["all"] = False,
        layer_decay: float = 1.0,
        gradient_checkpointing: bool = False,
        trained_answers: tuple[int, int] | None = None,
        clicked_weight: float = 0.0,
        second_looks: bool = False,
        drawn_iterations: dict[str, tuple[int, int]] | None = None,
        teacher: Segmenter | None = None,
        teacher_share: float = 0.5,
        lr_interval: Literal["epoch", "step"] = "epoch",
    ) -> None:
        if not isinstance(model, Segmenter):  # a name in a configuration may be that of another
            raise UsageError(
                "`model` must be a Segmenter, for interactive segmentation, got a "
                f"{type(model).__name__}; choose another, see "
                'probseg.list_models(task="interactive")'
            )
        require(0 <= corner_noise < 0.5, "corner_noise", "a fraction in [0, 0.5)", corner_noise)
        for name, weight in (
            ("auxiliary_weight", auxiliary_weight),
            ("clicked_weight", clicked_weight),
        ):
            require(0 <= weight < math.inf, name, "finite and at least 0", weight)
        require(0 < backbone_rate < math.inf, "backbone_rate", "finite, above 0", backbone_rate)
        require(0 < layer_decay <= 1, "layer_decay", "above 0 and at most 1", layer_decay)
        require(annotators >= 1, "annotators", "at least 1", annotators)
        require(
            trained_answers is None or (every_round and min(trained_answers) >= 1),
            "trained_answers",
            "two numbers of at least 1, with `every_round: true`",
            trained_answers,
        )
        require(
            not second_looks or (every_round and model.previous_mask),
            "second_looks",
            "false without `every_round: true` and a network with previous_mask=True",
            "true",
        )
        require(0 < teacher_share <= 1, "teacher_share", "a share in (0, 1]", teacher_share)
        taught = teacher is not None
        require(not (taught and second_looks), "second_looks", "false with a `teacher`", "true")
        super().__init__(model, optimizer, lr_scheduler)
        lr_scheduler(trial_optimizer(optimizer))
        self.model: Segmenter
        self.save_hyperparameters()
        self.loss = loss if loss is not None else BinaryCrossEntropy()
        self.curriculum: Curriculum | IteratedClicks = curriculum or Curriculum()
        self.corner_noise = corner_noise
        self.auxiliary_weight = auxiliary_weight
        self.auxiliary_loss = auxiliary_loss if auxiliary_loss is not None else self.loss
        self.backbone_rate = backbone_rate
        self.layer_decay = layer_decay
        self.every_round = every_round
        self.trained_answers = trained_answers
        self.clicked_weight = clicked_weight
        self.annotators = annotators
        self.second_looks = second_looks
        self.drawn_iterations = drawn_iterations or {}
        # Not a part of this module, whose checkpoints and weights would have it.
        self._teacher = () if teacher is None else (teacher.eval().requires_grad_(False),)
        self.teacher_share = teacher_share
        self.lr_interval = lr_interval
        with restored(model):  # refuses a network without such a mechanism
            for kind, (_, most) in self.drawn_iterations.items():
                model.adapt(Adaptation(**{f"{kind}_iterations": most}))
        self.fixed_statistics = fixed_statistics
        parameters = dict(model.named_parameters())
        for pattern in frozen:
            names = fnmatch.filter(parameters, pattern)
            require(names, "frozen", "patterns of the network's named_parameters", repr(pattern))
            for name in names:
                parameters[name].requires_grad_(False)
        if layer_decay < 1:
            layer_numbers(model.backbone)  # refuses others before a run writes anything
        if gradient_checkpointing:
            recompute_activations(model.backbone)

    def forward(self, image: Tensor, prompts: Prompts) -> Tensor:
        """Return the logits `(B, 1, H, W)` of images `(B, 3, H, W)` in [0, 1]."""
        logits: Tensor = self.model(image, prompts)
        return logits

    @property
    def stage(self) -> Stage:
        """Stage of the curriculum in the current epoch."""
        return self.curriculum.stage(self.current_epoch)

    def setup(self, stage: str) -> None:
        """Train all of the network, but keep averages that are fixed."""
        super().setup(stage)
        if stage != "fit":
            return
        part = self.model if self.fixed_statistics == "all" else self.model.backbone
        fixed = {*part.modules()} if self.fixed_statistics else set()
        for module in self.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                frozen = module.affine and not any(p.requires_grad for p in module.parameters())
                if frozen or module in fixed:
                    module.eval()

    def training_step(self, batch: TrainBatch, batch_idx: int) -> dict[str, Tensor | Prompts]:
        """Draw prompts for the crops, predict, and return the loss with logits and prompts.

        Logits and prompts are those of the first annotator of each crop in the last round.
        """
        learnt = self.learn(batch, None, epoch=self.current_epoch, batch_seed=self.batch_seed)
        for name, value in learnt.losses.items():
            shown = name == "loss"
            self.log(f"train/{name}", value, prog_bar=shown, batch_size=len(batch.images))
        return {"loss": learnt.total, **learnt.answers}

    def learn(
        self, batch: TrainBatch, encoded: Encoded | None, *, epoch: int, batch_seed: int
    ) -> StepResult:
        """Answer the clicks of all annotators, whose rows follow one another for each image.

        `encoded` is that of the batch's images, where these are what the network is shown; None
        encodes them.
        """
        crops = batch.images.float() / 255
        images, masks = halve(crops, batch.masks) if self.second_looks else (crops, batch.masks)
        masks = masks.repeat_interleave(self.annotators, dim=0)
        seeds = batch.seeds
        if self.annotators > 1:  # a seed for each of them
            limits = torch.full((len(seeds), self.annotators), 2**62, device=seeds.device)
            seeds = Draws(seeds).below(limits).flatten()
        with restored(self.model):
            for number, (kind, few_and_many) in enumerate(self.drawn_iterations.items()):
                drawn = draw_count(few_and_many, mix_seeds(batch_seed, number))
                self.model.adapt(Adaptation(**{f"{kind}_iterations": drawn}))
            if self.every_round:
                encoded = (encoded or self.model.encode(images)).repeat(self.annotators)
                answers = self.answer_rounds(encoded, masks, seeds, epoch, batch_seed)
            else:
                prompts = self.draw_prompts(images, masks, seeds, epoch, batch_seed)
                encoded = self.model.encode(images).repeat(self.annotators)
                answers = [TrainedAnswer(self.model.raw_logits(encoded, prompts), masks, prompts)]
            of_first_annotators = slice(None, None, self.annotators)
            logits = answers[-1].logits.main.detach()[of_first_annotators]
            prompts = answers[-1].prompts.at(of_first_annotators)
            if self.second_looks:
                answers = [*answers, *self._look_again(crops, batch, prompts, logits)]
        losses, total = self._losses(answers)
        for teacher in self._teacher:
            losses["taught_loss"] = taught = self._taught_loss(teacher, images, answers)
            total = total + self.teacher_share * (taught - losses["loss"])
        size = (crops.shape[-2], crops.shape[-1])
        network_size = (images.shape[-2], images.shape[-1])
        shown: dict[str, Tensor | Prompts] = {
            "logits": resize_maps(logits, size),
            "prompts": resize_prompts(prompts, network_size, size),
        }
        return StepResult(losses, total, shown)

    def answer_rounds(
        self, encoded: Encoded, masks: Tensor, seeds: Tensor, epoch: int, batch_seed: int
    ) -> list[TrainedAnswer]:
        """Answer all rounds of clicks, in training mode where the answer is trained.

        Masks are uint8, shape `(R, H, W)`: 1 object, 0 background, 255 ignored; seeds are those of
        the random numbers of each row, int64, shape `(R,)`. The number of rounds after the first
        answer depends on `batch_seed`. The last of the trained answers is that of the last round.
        """
        answers: list[TrainedAnswer] = []
        rounds = draw_count(self.curriculum.rounds, batch_seed)
        first, last = self.trained_answers or (rounds + 1, 0)
        asked = count()

        def ask(prompts: Prompts) -> Tensor:
            readable = self._for_network(prompts)
            if self.second_looks and batch_seed % 2:
                with self._as_at_test_time():
                    before = self.model.raw_logits(encoded, readable).main
                readable = readable._replace(previous=before.sigmoid())
            if first <= next(asked) <= rounds - last:
                with self._as_at_test_time():
                    return self.model.raw_logits(encoded, readable).main
            logits = self.model.raw_logits(encoded, readable)
            truth = masks.masked_fill(~prompts.has_prompt[:, None, None], IGNORE)
            answers.append(TrainedAnswer(logits, truth, readable))
            return logits.main.detach()

        ask(self._draw(masks, seeds, ask, epoch, batch_seed))
        return answers

    def draw_prompts(
        self, images: Tensor, masks: Tensor, seeds: Tensor, epoch: int, batch_seed: int
    ) -> Prompts:
        """Draw the prompts of a training batch, as the curriculum has them.

        These are boxes with noise on their corners, clicks, and the answer before the last click
        for networks that take a previous mask. Images are RGB in [0, 1], shape `(B, 3, H, W)`; see
        `answer_rounds` for the rest; each image has as many rows.
        """
        times = len(masks) // len(images)
        encoded = cache(lambda: self.model.encode(images).repeat(times))  # some ask nothing

        def ask(prompts: Prompts) -> Tensor:
            # A refinement learns nothing, and would take longer than all the rest of the step.
            return self.model.raw_logits(encoded(), self._for_network(prompts), refine=False).main

        with self._as_at_test_time():
            prompts = self._draw(masks, seeds, ask, epoch, batch_seed)
        return self._for_network(prompts)

    def _draw(
        self, masks: Tensor, seeds: Tensor, ask: AskNetwork, epoch: int, batch_seed: int
    ) -> Prompts:
        """Draw prompts as `draw_prompts` does, from the answers of a network."""
        size = (masks.shape[-2], masks.shape[-1])
        draws = Draws(seeds)
        boxes = jitter_boxes(object_boxes(masks), self.corner_noise, size, draws)
        return self.curriculum.draw(masks, boxes, draws, ask, epoch=epoch, batch_seed=batch_seed)

    def _for_network(self, prompts: Prompts) -> Prompts:
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

    def _look_again(
        self, crops: Tensor, batch: TrainBatch, prompts: Prompts, logits: Tensor
    ) -> Iterator[TrainedAnswer]:
        """Answer a window around the last click of each crop, before and after one more click."""
        look = look_again(crops, batch.masks, prompts, logits)
        encoded = self.model.encode(look.images)
        first = self.model.raw_logits(encoded, look.prompts)
        yield TrainedAnswer(first, look.masks, look.prompts)
        answer = first.main.detach()
        click = corrective_clicks(answer.squeeze(1) > 0, look.masks, Draws(batch.seeds + 1))
        prompts = with_clicks(look.prompts, *click, answer)
        yield TrainedAnswer(self.model.raw_logits(encoded, prompts), look.masks, prompts)

    def _losses(self, answers: Sequence[TrainedAnswer]) -> tuple[dict[str, Tensor], Tensor]:
        """Return the losses by their names in the log, and their weighted sum."""
        total = torch.stack([self.loss(logits.main, truth) for logits, truth, _ in answers]).mean()
        losses = {"loss": total}
        auxiliary = [
            self.auxiliary_loss(logits.auxiliary, truth)
            for logits, truth, _ in answers
            if logits.auxiliary is not None
        ]
        if auxiliary:
            losses["auxiliary_loss"] = torch.stack(auxiliary).mean()
            total = total + self.auxiliary_weight * losses["auxiliary_loss"]
        if self.clicked_weight > 0:
            clicked = [clicked_loss(logits.main, prompts) for logits, _, prompts in answers]
            losses["clicked_loss"] = torch.stack(clicked).mean()
            total = total + self.clicked_weight * losses["clicked_loss"]
        qualities = [
            iou_cross_entropy(logits.quality, logits.main, truth)
            for logits, truth, _ in answers
            if logits.quality is not None
        ]
        if qualities:
            quality_loss, error = map(torch.mean, map(torch.stack, zip(*qualities, strict=True)))
            losses |= {"quality_loss": quality_loss, "quality_error": error}
            total = total + quality_loss
        return losses, total

    def _taught_loss(
        self, teacher: Segmenter, images: Tensor, answers: Sequence[TrainedAnswer]
    ) -> Tensor:
        """Return the mean loss of answers to images for the teacher's answers to their prompts."""
        losses = []
        with torch.no_grad():
            encoded = teacher.to(images.device).encode(images).repeat(self.annotators)
        for logits, truth, prompts in answers:
            asked = prompts if teacher.previous_mask else prompts._replace(previous=None)
            with torch.no_grad():
                taught = teacher.raw_logits(encoded, asked).main.sigmoid()
            losses.append(taught_loss(logits.main, taught, truth))
        return torch.stack(losses).mean()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Make the optimiser, with a group of weights for each learning rate, and the schedule."""
        rates = self._rates()
        groups: dict[float, list[nn.Parameter]] = {1.0: []}
        for parameter in self.parameters():
            if parameter.requires_grad:
                groups.setdefault(rates.get(parameter, 1.0), []).append(parameter)
        if len(groups) == 1:
            optimizer = self.optimizer(groups[1.0])
        else:
            optimizer = self.optimizer([{"params": weights} for weights in groups.values()])
            for group, rate in zip(optimizer.param_groups, groups, strict=True):
                group["lr"] *= rate
        return self.with_schedule(optimizer, self.lr_scheduler(optimizer), self.lr_interval)

    def _rates(self) -> dict[nn.Parameter, float]:
        """Return the learning rates of the backbone's weights, relative to that of the others."""
        if self.backbone_rate == self.layer_decay == 1:
            return {}
        backbone = self.model.backbone
        layers = layer_numbers(backbone) if self.layer_decay < 1 else {}
        last = max(layers.values(), default=0)
        return {
            parameter: self.backbone_rate * self.layer_decay ** (last - layers.get(parameter, last))
            for parameter in rgb_parameters(backbone)
        }

    def on_train_epoch_start(self) -> None:
        """Log the current stage of the curriculum."""
        # A reduction over processes would hang: a progress bar asks for it in the first one alone.
        self.log("train/stage", float(STAGES.index(self.stage)), rank_zero_only=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the curriculum's stage."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["curriculum_stage"] = self.stage
