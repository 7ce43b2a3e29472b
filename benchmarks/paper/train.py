"""Trains the networks of a plan side by side, on the features of one frozen trunk or entirely."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader

from benchmarks.paper.plan import Training
from benchmarks.paper.results import write_csv
from probseg.attention import probabilistic_layers
from probseg.clicks.curriculum import IteratedClicks
from probseg.data import DATASETS, InteractiveDataModule, Selected, TrainBatch
from probseg.losses import NormalizedFocalLoss, SoftIoULoss, WeightedSum
from probseg.models import Segmenter, override, read_preset
from probseg.models.network import Encoded
from probseg.seeds import BATCH, mix_seeds
from probseg.tasks import InteractiveSegmentation
from probseg.zoo import warm_start
from probseg.zoo.index import WEIGHTS
from probseg.zoo.store import save

TRUNK = ("backbone.*", "decoder.*")
"""Weights that a frozen trunk keeps; its normalisation layers keep their averages in any case."""

HELD_OUT = 10  # one photograph in ten is not trained on
LOSS_EVERY = 25  # steps that each line of the log is a mean of

CURRICULUM = IteratedClicks(
    most_clicks=6, decay=0.7, boxes=0.7, single=0.5, fewest_rounds=0, most_rounds=2
)


def side_by_side(
    learners: Mapping[str, Any], batches: Iterable[Any], trunk: Callable[[Any], Any]
) -> list[dict[str, float]]:
    """Let all learn from the same batches in the same order; return their losses at each step.

    `trunk` returns the features of a batch that all share, or None. Learners have a method `step`
    of batch, number and features, which returns a loss.
    """
    history: list[dict[str, float]] = []
    began = time.perf_counter()
    for number, batch in enumerate(batches):
        with torch.no_grad():
            shared = trunk(batch)
        history.append({of: one.step(batch, number, shared) for of, one in learners.items()})
        if len(history) % LOSS_EVERY == 0:
            seconds = (time.perf_counter() - began) / len(history)
            means = {of: sum(step[of] for step in history[-LOSS_EVERY:]) for of in learners}
            told = " ".join(f"{name} {loss / LOSS_EVERY:.3f}" for name, loss in means.items())
            print(f"step {len(history)}, {seconds:.2f} s each: {told}", flush=True)
    return history


def train(training: Training, seed: int, names: Sequence[str]) -> None:
    """Train the networks that have no weights yet from one seed, and write their model folders."""
    missing = [name for name in names if not (training.place(name, seed) / WEIGHTS).is_file()]
    if not missing:
        return
    print(f"seed {seed}: {', '.join(missing)}", flush=True)
    networks, history = trained(training, seed, missing)
    for name, model in networks.items():
        place = training.place(name, seed)
        save(model, override(read_preset(training.of), training.networks[name]), place)
        losses = enumerate(f"{of[name]:.5f}" for of in history)
        write_csv(place / "losses.csv", [("step", "loss"), *losses])


def trained(
    training: Training, seed: int, names: Sequence[str]
) -> tuple[dict[str, Segmenter], list[dict[str, float]]]:
    """Train networks from one seed on the same crops; return them, and their losses at each step.

    Which others are trained has no effect on a network.
    """
    torch.manual_seed(seed)
    networks = initial_networks(training, seed)
    trunk = networks[names[0]]  # the same in all networks while it is frozen
    learners = {name: _Learner(networks[name], training, seed) for name in names}

    def shared(batch: TrainBatch) -> Encoded | None:
        return trunk.encode(batch.images.float() / 255) if training.start is None else None

    history = side_by_side(learners, crops(training, seed), shared)
    return {name: networks[name] for name in names}, history


def initial_networks(training: Training, seed: int) -> dict[str, Segmenter]:
    """Build all networks of a plan, or load those that it starts from.

    New weights of one name and shape have the values of the first network that has them, so that
    two networks differ by their mechanisms alone.
    """
    shared: dict[tuple[str, torch.Size], Tensor] = {}
    networks = {}
    for number, (name, changes) in enumerate(training.networks.items()):
        if training.start is not None:
            place = f"{training.start[name]}/seed{seed}"
            networks[name] = warm_start(training.of, place, changes=changes)
            continue
        torch.manual_seed(mix_seeds(seed, number))
        networks[name] = warm_start(training.of, training.trunk, training.fresh, dict(changes))
        for key, tensor in networks[name].state_dict().items():
            tensor.copy_(shared.setdefault((key, tensor.shape), tensor.clone()))
    for name, model in networks.items():
        for layer in probabilistic_layers(model.fusion):
            if name in training.normalised:
                for of in ("query", "key", "value"):
                    projection = getattr(layer, of)
                    norm = nn.BatchNorm2d(projection.out_channels)
                    setattr(layer, of, nn.Sequential(projection, norm))
            if name in training.tied:
                layer.key = layer.query
    return networks


class _Learner:
    def __init__(self, model: Segmenter, training: Training, seed: int) -> None:
        frozen = TRUNK if training.start is None else ()
        loss = WeightedSum([NormalizedFocalLoss(), SoftIoULoss()], [1.0, 0.5])
        self.task = InteractiveSegmentation(
            model, loss, curriculum=CURRICULUM, every_round=True, frozen=frozen
        )
        self.model, self.seed = model, seed
        self.learnt = [weight for weight in model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(self.learnt, lr=training.rate, weight_decay=0.01)
        self.schedule = OneCycleLR(self.optimizer, training.rate, training.steps, pct_start=0.15)
        model.train()
        for part in (model.backbone, model.decoder):
            part.eval()

    def step(self, batch: TrainBatch, number: int, shared: Encoded | None) -> float:
        encoded = shared or self.model.encode(batch.images.float() / 255)
        seed = mix_seeds(BATCH, self.seed, 0, number)
        answers = self.task.answer_rounds(
            encoded, batch.masks, batch.seeds, epoch=0, batch_seed=seed
        )
        losses = [self.task.loss(given.main, truth) for given, truth, _ in answers]
        loss = torch.stack(losses).mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.learnt, 1.0)
        self.optimizer.step()
        self.schedule.step()
        return loss.item()


def crops(training: Training, seed: int) -> DataLoader[TrainBatch]:
    """Return a batch of crops for each step, of the photographs that are not held out."""
    objects = DATASETS[training.data.kind](**training.data.arguments)
    data = InteractiveDataModule(
        train=Selected(objects, hold_out=HELD_OUT),
        batch_size=training.batch_size,
        crop_size=training.crop_size,
        scale=(0.6, 1.4),
        padding=(0.1, 1.0),
        num_workers=0,
        samples_per_epoch=training.steps * training.batch_size,
    )
    data.seed = seed
    return data.train_dataloader()
