"""Trains the networks of a plan side by side, on the features of one frozen trunk or entirely."""

from __future__ import annotations

import csv
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from paper_rows import Training
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader

from probseg.attention import probabilistic_layers
from probseg.clicks.iterated import IteratedClicks
from probseg.data import DATASETS, InteractiveDataModule, Selected, TrainBatch
from probseg.losses import NormalizedFocalLoss, SoftIoULoss, WeightedSum
from probseg.models import Segmenter, override, read_preset
from probseg.models.encoded import Encoded
from probseg.seeds import BATCH, mixed
from probseg.tasks import InteractiveSegmentation
from probseg.zoo import warm_start
from probseg.zoo.index import WEIGHTS
from probseg.zoo.store import save

TRUNK = ("backbone.*", "decoder.*")
"""Weights that a frozen trunk keeps; its normalisation layers keep their averages in any case."""

HELD_OUT = 10
"""One photograph in so many is held out from training."""

LOSS_EVERY = 25
"""Steps that each line of the losses is a mean of."""

CURRICULUM = IteratedClicks(
    most_clicks=6, decay=0.7, boxes=0.7, single=0.5, fewest_rounds=0, most_rounds=2
)


def train(training: Training, seed: int, names: Sequence[str]) -> None:
    """Train networks from one seed, and write their model folders; see `trained`."""
    networks, history = trained(training, seed, names)
    for name, model in networks.items():
        save(model, described(training, name), training.place(name, seed))
        _write_losses(training.place(name, seed) / "losses.csv", [of[name] for of in history])


def trained(
    training: Training, seed: int, names: Sequence[str]
) -> tuple[dict[str, Segmenter], list[dict[str, float]]]:
    """Train networks from one seed.

    All of them see the same crops in the same order, with the same random numbers for clicks.

    Args:
        training: Settings of the plan.
        seed: Of initial weights, crops and clicks.
        names: Networks of the plan to train; which others are trained has no effect on them.

    Returns:
        The networks by name, and their losses at each step.
    """
    torch.manual_seed(seed)
    networks = initial_networks(training, seed)
    trunk = networks[names[0]]  # the same in all networks while it is frozen
    learners = {name: _Learner(networks[name], training) for name in names}
    history: list[dict[str, float]] = []
    began = time.perf_counter()
    for step, batch in enumerate(crops(training, seed)):
        batch_seed = mixed(BATCH, seed, 0, step)
        images = batch.images.float() / 255
        with torch.no_grad():
            shared = trunk.encode(images) if training.start is None else None
        losses = {
            name: learner.step(
                shared or networks[name].encode(images), batch.masks, batch.seeds, batch_seed
            )
            for name, learner in learners.items()
        }
        history.append(losses)
        if len(history) % LOSS_EVERY == 0:
            seconds = (time.perf_counter() - began) / len(history)
            means = _means(history[-LOSS_EVERY:])
            told = " ".join(f"{name} {loss:.3f}" for name, loss in means.items())
            print(f"step {len(history)}, {seconds:.2f} s each: {told}", flush=True)
    return {name: networks[name] for name in names}, history


def train_missing(
    training: Training, places: Collection[str], seeds: Sequence[int] | None = None
) -> None:
    """Train networks that have no weights yet.

    Args:
        training: Settings of the plan.
        places: Model folders of the networks to train.
        seeds: Seeds to train; None for all.
    """
    for seed in range(training.seeds) if seeds is None else seeds:
        missing = [
            name
            for name in training.networks
            if str(training.place(name, seed)) in places
            and not (training.place(name, seed) / WEIGHTS).is_file()
        ]
        if missing:
            print(f"seed {seed}: {', '.join(missing)}", flush=True)
            train(training, seed, missing)


def described(training: Training, name: str) -> dict[str, object]:
    """Return the description of a network of the plan."""
    return override(read_preset(training.of), training.networks[name])


def initial_networks(training: Training, seed: int) -> dict[str, Segmenter]:
    """Build all networks of a plan, or load those that it starts from.

    New weights of one name and shape have the values of the first network that has them, so that
    two networks differ by their mechanisms alone.
    """
    if training.start is not None:
        started = {
            name: warm_start(training.of, str(training.started(name, seed)), changes=changes)
            for name, changes in training.networks.items()
        }
        _change_projections(started, training)
        return started
    shared: dict[tuple[str, torch.Size], Tensor] = {}
    networks = {}
    for number, (name, changes) in enumerate(training.networks.items()):
        torch.manual_seed(mixed(seed, number))
        model = warm_start(training.of, training.trunk, training.fresh, dict(changes))
        for key, tensor in model.state_dict().items():
            tensor.copy_(shared.setdefault((key, tensor.shape), tensor.clone()))
        networks[name] = model
    _change_projections(networks, training)
    return networks


def _change_projections(networks: Mapping[str, Segmenter], training: Training) -> None:
    """Normalise the projections of the stage, and make keys the queries, where the plan says so."""
    for name, model in networks.items():
        for layer in probabilistic_layers(model.fusion):
            if name in training.normalised:
                for of in ("query", "key", "value"):
                    projection = getattr(layer, of)
                    norm = nn.BatchNorm2d(projection.out_channels)
                    setattr(layer, of, nn.Sequential(projection, norm))
            if name in training.tied:
                layer.key = layer.query


class _Learner:
    """A network with its optimiser."""

    def __init__(self, model: Segmenter, training: Training) -> None:
        frozen = TRUNK if training.start is None else ()
        loss = WeightedSum([NormalizedFocalLoss(), SoftIoULoss()], [1.0, 0.5])
        self.task = InteractiveSegmentation(
            model, loss, curriculum=CURRICULUM, every_round=True, frozen=frozen
        )
        self.learnt = [weight for weight in model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(self.learnt, lr=training.rate, weight_decay=0.01)
        self.schedule = OneCycleLR(self.optimizer, training.rate, training.steps, pct_start=0.15)
        model.train()
        for part in (model.backbone, model.decoder):
            part.eval()

    def step(self, encoded: Encoded, masks: Tensor, seeds: Tensor, batch_seed: int) -> float:
        """Learn from a batch; return its loss."""
        answers = self.task.answers(encoded, masks, seeds, epoch=0, batch_seed=batch_seed)
        loss = torch.stack(
            [self.task.loss(given.main, truth) for given, truth, _ in answers]
        ).mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.learnt, 1.0)
        self.optimizer.step()
        self.schedule.step()
        return loss.item()


def crops(training: Training, seed: int, held_out: bool = False) -> DataLoader[TrainBatch]:
    """Return the crops of a training: a batch for each step.

    Args:
        training: Settings of the plan.
        seed: Of their order, augmentation and clicks.
        held_out: Whether they are of the photographs, one in ten, that no network is trained on.
    """
    objects = DATASETS[training.data.kind](**training.data.arguments)
    data = InteractiveDataModule(
        train=Selected(objects, **{"held_out" if held_out else "hold_out": HELD_OUT}),
        batch_size=training.batch_size,
        crop_size=training.crop_size,
        scale=(0.6, 1.4),
        padding=(0.1, 1.0),
        num_workers=0,
        samples_per_epoch=training.steps * training.batch_size,
    )
    data.seed = seed
    return data.train_dataloader()


def _means(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(of[name] for of in history) / len(history) for name in history[0]}


def _write_losses(path: Path, losses: Sequence[float]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", "loss"])
        writer.writerows((step, f"{loss:.5f}") for step, loss in enumerate(losses))
