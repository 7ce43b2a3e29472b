"""Trains the networks of `emanet.yaml` side by side on the same crops."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import cast

import torch
from emanet_plan import Plan, Training
from torch import Tensor, nn

from probseg.data.sampling import TrainingSampler
from probseg.paths import replacing
from probseg.seeds import BATCH, mixed
from probseg.semantic import CamVid, SemanticDataModule, SemanticSegmenter, semantic_variant
from probseg.semantic.datamodule import SemanticBatch
from probseg.semantic.network import enlarged
from probseg.semantic.task import pixel_cross_entropy
from probseg.tasks.schedule import PolynomialDecay

EVERY = 4
"""The loss is a mean over every fourth pixel of every fourth line."""

LOSS_EVERY = 15
"""Steps that each line of the log is a mean of."""


def train(plan: Plan, training: Training, seed: int, names: Sequence[str]) -> None:
    """Train networks from one seed, and write their weights.

    All of them see the same crops in the same order, with the same random numbers for dropout.

    Args:
        plan: Says what the networks are.
        training: One of its trainings.
        seed: Of initial weights, crops and dropout.
        names: Networks to train; which others are trained has no effect on them.
    """
    data = SemanticDataModule(train=CamVid("train"), num_workers=0, **training.data)
    data.seed = seed
    steps = training.epochs * len(data.train_dataloader())
    learners = {
        name: _Learner(initial_network(plan, name, seed), plan, training, steps) for name in names
    }
    trunk = learners[names[0]].model
    history: list[list[float]] = []
    began = time.process_time()
    for step, batch in enumerate(_batches(data, training.epochs)):
        images = batch.images.to(memory_format=torch.channels_last).float() / 255
        shared = None
        if training.frozen:
            with torch.no_grad():
                shared = trunk.features(images)
        losses = []
        for learner in learners.values():
            torch.manual_seed(mixed(BATCH, seed, step))  # of dropout
            losses.append(learner.step(images, batch.labels, shared))
        history.append(losses)
        if len(history) % LOSS_EVERY == 0:
            means = torch.tensor(history[-LOSS_EVERY:]).mean(dim=0).tolist()
            seconds = (time.process_time() - began) / len(history)
            report = " ".join(f"{of} {loss:.3f}" for of, loss in zip(names, means, strict=True))
            print(f"step {len(history)} of {steps}, {seconds:.2f} CPU s each: {report}", flush=True)
    for name, learner in learners.items():
        place = plan.place(training.name, name, seed)
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as draft:
            torch.save(learnt(learner.model, training).state_dict(), draft)


def initial_network(plan: Plan, name: str, seed: int) -> SemanticSegmenter:
    """Build a network: its weights are those of all networks of the seed that have them too.

    Every head begins with the weights of an `FCNHead`, so that equal seeds give equal weights.
    """
    network = plan.networks[name]
    torch.manual_seed(seed)
    head = {"num_classes": len(CamVid.classes), **network.get("head", {})}
    model = semantic_variant(network["of"], {"backbone": dict(plan.backbone), "head": head})
    if "last_norm" in network:
        nn.init.constant_(model.head.emau.leave[-1].weight, network["last_norm"])
    return model


def learnt(model: SemanticSegmenter, training: Training) -> nn.Module:
    """Return the part of a network that a training changes."""
    return model.head if training.frozen else model


class _Learner:
    """A network with its optimiser."""

    def __init__(
        self, model: SemanticSegmenter, plan: Plan, training: Training, steps: int
    ) -> None:
        self.model = model.train()
        if training.frozen:
            model.backbone.eval().requires_grad_(False)
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.SGD(weights, lr=plan.rate, momentum=0.9, weight_decay=5e-4)
        self.schedule = PolynomialDecay(self.optimizer, steps)

    def step(self, images: Tensor, labels: Tensor, shared: list[Tensor] | None) -> float:
        """Learn from a batch; return its loss.

        Args:
            images: The crops.
            labels: Their classes.
            shared: Features of the frozen trunk, if there is one.
        """
        logits = self.model.head(self.model.features(images) if shared is None else shared)
        labels = labels[:, ::EVERY, ::EVERY]
        stride = self.model.backbone.features.strides[-1]
        loss = pixel_cross_entropy(enlarged(logits, stride // EVERY, labels.shape[-2:]), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.item()


def _batches(data: SemanticDataModule, epochs: int) -> Iterator[SemanticBatch]:
    loader = data.train_dataloader()
    for epoch in range(epochs):
        cast(TrainingSampler, loader.sampler).set_epoch(epoch)
        yield from loader
