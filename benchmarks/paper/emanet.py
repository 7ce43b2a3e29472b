"""The ablations of EMANet (Li et al., 2019) on CamVid, with small networks.

The networks of a seed are trained side by side, their pixels are counted on the test frames, and
pages, tests and figures are made from the counts in `benchmarks/results`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor, nn

from benchmarks.paper.claims import Outcome, by_seeds, verdict
from benchmarks.paper.plan import PLANS, Claim, check_known
from benchmarks.paper.report import table
from benchmarks.paper.results import Floats, read_csv, write_csv
from benchmarks.paper.train import side_by_side
from probseg.data.sampling import TrainingSampler
from probseg.errors import DataError
from probseg.metrics import standard_error
from probseg.metrics.statistics import DECIMALS, holm
from probseg.paths import replacing, write_text
from probseg.reports.figures import LINES
from probseg.seeds import BATCH, mix_seeds
from probseg.semantic import CamVid, SemanticDataModule, SemanticSegmenter, semantic_variant
from probseg.semantic.datamodule import SemanticBatch
from probseg.semantic.dataset import SemanticSample
from probseg.semantic.network import enlarge
from probseg.semantic.scores import Confusion
from probseg.semantic.task import pixel_cross_entropy
from probseg.tasks.base import PolynomialDecay

PLAN = PLANS / "emanet.yaml"
COUNTS = "emanet_blocks.csv.gz"
HEADER = ["training", "row", "seed", "block", "frames"]
HEADER += [f"{part} {of}" for part in ("found", "union") for of in CamVid.classes]

EVERY = 4
"""The loss is a mean over every fourth pixel of every fourth line."""

BLOCK = 10
"""About so many consecutive frames make a block."""

REFERENCES = ("fcn", "ema")
"""Rows that all others are compared with."""

OWN_ITERATIONS = 3
"""EM iterations of a test where a row names no number."""

VALUES = ["difference", "low", "high", "detectable", "p"]

HOW_TO_READ = """\
Test frames of CamVid ({frames} in {blocks} blocks), mIoU in percent, means over {seeds} seeds. All
networks of a seed are trained on the same crops in the same order, with the same dropout, and begin
with the same weights in all parts that they share.

The trainings are short: the recipe `emanet_camvid_cpu` has 30 epochs of the whole network.

Blocks are stretches of about ten consecutive frames, a second apart, of one drive. The mIoU is
divided among the blocks by linearisation: the contribution of a block is the mIoU of all frames
plus the influence of the block's pixels on it. The tests take the differences of contributions,
with blocks and seeds as crossed random effects. p and 95 % intervals are thus about other stretches
of the same two drives and about other trainings; two drives permit no statement about other drives.
"Detectable" is the difference that such a test shows with a power of 80 %, before any correction.
The p-values of the claims are corrected after Holm over all claims of this page; the intervals are
not. A claim holds where the corrected p is at most 0.05 and the mean speaks for it, and is
contradicted where the mean speaks against it. "Not shown" does not mean that
there is no effect."""

Key = tuple[str, str, int, str]
"""Training, row, seed and block."""


class Block(NamedTuple):
    """Pixels of each class of a row in a block: predicted as it, and of it or predicted as it."""

    frames: int
    found: npt.NDArray[np.int64]
    union: npt.NDArray[np.int64]


Counts = Mapping[Key, Block]


class Row(NamedTuple):
    """A network that is tested with a number of EM iterations; None for its own."""

    network: str
    iterations: int | None = None

    @property
    def name(self) -> str:
        return self.network if self.iterations is None else f"{self.network}@{self.iterations}"


@dataclass(frozen=True)
class Training:
    """Networks that are trained side by side; a `frozen` trunk is one for all of them."""

    name: str
    about: str
    epochs: int
    frozen: bool
    data: Mapping[str, Any]
    networks: Sequence[str]
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]

    def chosen(self, names: Sequence[str] | None) -> list[str]:
        """Return the networks of these names, or all of them."""
        for name in names or ():
            check_known("network", name, self.networks)
        return [name for name in self.networks if names is None or name in names]


@dataclass(frozen=True)
class Plan:
    """All that `emanet.yaml` says, which explains it."""

    title: str
    folder: str
    seeds: int
    rate: float
    iterations: Sequence[int]
    backbone: Mapping[str, Any]
    networks: Mapping[str, Mapping[str, Any]]
    trainings: Mapping[str, Training]

    def place(self, training: Training, network: str, seed: int) -> Path:
        """Return the file of a network's weights."""
        return Path(self.folder) / training.name / network / f"seed{seed}.pt"


def read_plan(path: Path = PLAN) -> Plan:
    """Read a plan; unknown networks and rows are refused."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    trainings = {}
    for name, entry in content.pop("trainings").items():
        swept = entry.pop("swept", ())
        rows = [Row(network) for network in entry["networks"]]
        rows += [Row(network, n) for network in swept for n in content["iterations"]]
        claims = tuple(Claim(**claim) for claim in entry.pop("claims"))
        for network in entry["networks"]:
            check_known("network", network, content["networks"])
        for row in [row for claim in claims for row in (claim.better, claim.than)]:
            check_known("row", row, [row.name for row in rows])
        trainings[name] = Training(name, **entry, rows=tuple(rows), claims=claims)
    return Plan(trainings=trainings, **content)


def train(plan: Plan, training: Training, seed: int, names: Sequence[str]) -> None:
    """Train networks from one seed on the same crops, and write their weights."""
    data = SemanticDataModule(train=CamVid("train"), num_workers=0, **training.data)
    data.seed = seed
    loader = data.train_dataloader()
    steps = training.epochs * len(loader)
    networks = {name: initial_network(plan, name, seed) for name in names}
    trunk = networks[names[0]]

    def batches() -> Iterator[SemanticBatch]:
        for epoch in range(training.epochs):
            cast(TrainingSampler, loader.sampler).set_epoch(epoch)
            yield from loader

    def shared(batch: SemanticBatch) -> list[Tensor] | None:
        return trunk.features(_pixels(batch)) if training.frozen else None

    learners = {
        name: _Learner(model, plan.rate, training.frozen, steps, seed)
        for name, model in networks.items()
    }
    side_by_side(learners, batches(), shared)
    for name, model in networks.items():
        place = plan.place(training, name, seed)
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as draft:
            torch.save((model.head if training.frozen else model).state_dict(), draft)


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


def trained_network(plan: Plan, training: Training, name: str, seed: int) -> SemanticSegmenter:
    """Return a network with its trained weights, in evaluation mode."""
    place = plan.place(training, name, seed)
    if not place.is_file():
        raise DataError(
            f"{place}: no such file; run `train --plan emanet --training {training.name}` first"
        )
    network = initial_network(plan, name, seed).eval()
    learnt = network.head if training.frozen else network
    learnt.load_state_dict(torch.load(place, weights_only=True))
    return network


def _pixels(batch: SemanticBatch) -> Tensor:
    return batch.images.to(memory_format=torch.channels_last).float() / 255


class _Learner:
    def __init__(
        self, model: SemanticSegmenter, rate: float, frozen: bool, steps: int, seed: int
    ) -> None:
        self.model, self.seed = model.train(), seed
        if frozen:
            model.backbone.eval().requires_grad_(False)
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.SGD(weights, lr=rate, momentum=0.9, weight_decay=5e-4)
        self.schedule = PolynomialDecay(self.optimizer, steps)

    def step(self, batch: SemanticBatch, number: int, shared: list[Tensor] | None) -> float:
        torch.manual_seed(mix_seeds(BATCH, self.seed, number))  # of dropout
        maps = self.model.features(_pixels(batch)) if shared is None else shared
        labels = batch.labels[:, ::EVERY, ::EVERY]
        stride = self.model.backbone.features.strides[-1] // EVERY
        logits = enlarge(self.model.head(maps), stride, labels.shape[-2:])
        loss = pixel_cross_entropy(logits, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.item()


@torch.no_grad()
def evaluate(
    plan: Plan, training: Training, seeds: Sequence[int], names: Sequence[str]
) -> dict[Key, Block]:
    """Count pixels on the test frames, for all rows of some networks of a training."""
    keys = [(name, seed) for name in names for seed in seeds]
    networks = {key: trained_network(plan, training, *key) for key in keys}
    first = keys[0]
    trunks = {key: first if training.frozen else key for key in networks}
    rows = [(row, seed) for row in training.rows if row.network in names for seed in seeds]
    results = {}
    for block, samples in blocks(CamVid("test")):
        counted = {key: Confusion(len(CamVid.classes)) for key in rows}
        for sample in samples:
            image = torch.tensor(sample.image).permute(2, 0, 1).unsqueeze(0).float() / 255
            maps = {key: networks[key].features(image) for key in set(trunks.values())}
            for (row, seed), confusion in counted.items():
                key = row.network, seed
                model, own = networks[key], row.iterations is None
                with nullcontext() if own else model.iterations(row.iterations):
                    logits = model.head(maps[trunks[key]])
                stride = model.backbone.features.strides[-1]
                prediction = enlarge(logits, stride, image.shape[-2:]).argmax(dim=1)
                confusion.add(sample, prediction.squeeze(0))
        for (row, seed), confusion in counted.items():
            matrix = confusion.matrix()
            found = matrix.diagonal()
            union = matrix.sum(axis=0) + matrix.sum(axis=1) - found
            results[training.name, row.name, seed, block] = Block(len(samples), found, union)
        print(f"{training.name}: {block} is counted", flush=True)
    return results


def blocks(frames: CamVid) -> Iterator[tuple[str, list[SemanticSample]]]:
    """Divide frames into named blocks of consecutive frames of one drive, all about as long."""
    drives: dict[str, list[int]] = {}
    for number, (photo, _) in enumerate(frames.pairs):
        drives.setdefault(photo.stem.split("_")[0], []).append(number)
    for drive, numbers in drives.items():
        parts = np.array_split(numbers, max(1, round(len(numbers) / BLOCK)))
        for number, part in enumerate(parts):
            yield f"{drive}/{number}", [frames[int(frame)] for frame in part]


def write_counts(folder: Path, counts: Counts) -> None:
    lines = [[*key, of.frames, *of.found, *of.union] for key, of in sorted(counts.items())]
    write_csv(folder / COUNTS, [HEADER, *lines])


def read_counts(folder: Path) -> dict[Key, Block]:
    """Read the counts; there are none without the file."""
    counts = {}
    for training, row, seed, block, *numbers in read_csv(folder / COUNTS)[1:]:
        frames, *pixels = map(int, numbers)
        counts[training, row, int(seed), block] = Block(frames, *np.array(pixels).reshape(2, -1))
    return counts


def contributions(counts: Counts, training: str, row: str) -> Floats:
    """Divide the mIoU of each network among the blocks: percent, shape `(seeds, blocks)`.

    The mean over the blocks is the mIoU of all frames. A block's part is that mIoU plus the
    derivative by the block's weight, times the number of blocks (the infinitesimal jackknife).
    """
    mine = {key[2:]: block for key, block in counts.items() if key[:2] == (training, row)}
    seeds = sorted({seed for seed, _ in mine})
    names = sorted({name for _, name in mine})
    found = np.array([[mine[seed, name].found for name in names] for seed in seeds], float)
    union = np.array([[mine[seed, name].union for name in names] for seed in seeds], float)
    whole = union.sum(axis=1, keepdims=True)
    iou = found.sum(axis=1, keepdims=True) / whole
    influence = len(names) * (found - iou * union) / whole
    return np.asarray(100 * (iou + influence).mean(axis=2))


def compare(counts: Counts, training: str, better: str, than: str) -> tuple[float, Outcome]:
    """Return the difference of mIoU of two rows of a training, in points, and its test."""
    gains = contributions(counts, training, better) - contributions(counts, training, than)
    gains = np.round(gains, DECIMALS)
    return float(gains.mean()), by_seeds(gains)


def _cells(points: float, of: Outcome) -> list[str]:
    return [f"{points:+.2f} ({of.low:+.2f} to {of.high:+.2f})", f"{of.detectable:.2f}"]


def _values(points: float, of: Outcome) -> list[str]:
    """Return the values of `VALUES` with four digits."""
    return [f"{value:.4g}" for value in (points, of.low, of.high, of.detectable, of.p)]


def report(folder: Path, plan: Plan, counts: Counts) -> None:
    """Write `emanet.md`, `emanet_rows.csv`, `emanet_claims.csv` and `emanet.png`."""
    frames = {block: of.frames for (_, _, _, block), of in counts.items()}
    about = HOW_TO_READ.format(frames=sum(frames.values()), blocks=len(frames), seeds=plan.seeds)
    lines = [f"# {plan.title}", "", about, "", "![Ablations](emanet.png)", ""]
    header = ["row", "mIoU", *_compared_with("over `fcn`"), *_compared_with("over `ema`")]
    of_rows = [["training", "row", "miou", "standard_error", "than", *VALUES]]
    for training in plan.trainings.values():
        rows = []
        for row in training.rows:
            miou = contributions(counts, training.name, row.name).mean(axis=1)
            scores = [f"{miou.mean():.2f}", f"{standard_error(miou):.2f}"]
            cells = [f"{_label(plan, row)} (`{row.name}`)", " ± ".join(scores)]
            for than in REFERENCES:
                if row.name == than:
                    cells += ["", ""]
                    continue
                difference = compare(counts, training.name, row.name, than)
                cells += _cells(*difference)
                of_rows.append([training.name, row.name, *scores, than, *_values(*difference)])
            rows.append(cells)
        extent = f"{training.about} Epochs: {training.epochs}."
        lines += [f"## {training.name}", "", extent, "", *table(header, rows), ""]
    claims = [
        (training.name, claim, compare(counts, training.name, claim.better, claim.than))
        for training in plan.trainings.values()
        for claim in training.claims
    ]
    corrected = holm([outcome.p for *_, (_, outcome) in claims])
    of_claims = [["training", "claim", "better", "than", *VALUES, "corrected_p", "verdict"]]
    rows = []
    for (name, claim, difference), p in zip(claims, corrected, strict=True):
        found = verdict(p, difference[1].direction)
        words = [name, claim.text, claim.better, claim.than]
        of_claims.append([*words, *_values(*difference), f"{p:.4g}", found])
        text = f"{claim.text} (`{claim.better}` over `{claim.than}`)"
        rows.append([text, name, *_cells(*difference), f"{p:.2g}", found])
    header = ["claim", "training", *_compared_with("difference"), "p", "verdict"]
    lines += ["## Claims", "", *table(header, rows)]
    write_csv(folder / "emanet_rows.csv", of_rows)
    write_csv(folder / "emanet_claims.csv", of_claims)
    _draw(folder / "emanet.png", plan, counts)
    write_text(folder / "emanet.md", "\n".join(lines) + "\n")


def _label(plan: Plan, row: Row) -> str:
    label: str = plan.networks[row.network]["label"]
    return label if row.iterations is None else f"{label}; T = {row.iterations} in the test"


def _compared_with(reference: str) -> list[str]:
    return [f"{reference} (95 % interval)", "detectable"]


def _draw(path: Path, plan: Plan, counts: Counts) -> None:
    """Draw the differences to the network without an EMAU, and the scores by EM iterations."""
    canvas = Figure(figsize=(11, 5.5), dpi=120, layout="constrained")
    own = {
        name: [row for row in training.rows if row.iterations is None and row.network != "fcn"]
        for name, training in plan.trainings.items()
    }
    layout = [[name, "iterations"] for name in plan.trainings]
    panels = canvas.subplot_mosaic(layout, height_ratios=[1 + len(rows) for rows in own.values()])
    for training in plan.trainings.values():
        axes = panels[training.name]
        rows = own[training.name]
        for number, row in enumerate(rows):
            points, outcome = compare(counts, training.name, row.name, "fcn")
            axes.plot(outcome.interval, [number, number], color=LINES[0], lw=1.5)
            axes.plot(points, number, "o", color=LINES[0], ms=5)
        axes.set_yticks(range(len(rows)), [_label(plan, row) for row in rows], fontsize=8)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.axvline(0, color="grey", lw=0.8)
        axes.set_xlabel("mIoU less that without the EMAU, 95 % interval")
        axes.set_title(training.name, loc="left", fontsize=10)
        scores: dict[str, dict[int, float]] = {}
        for row in training.rows:
            miou = float(contributions(counts, training.name, row.name).mean())
            scores.setdefault(row.network, {})[row.iterations or OWN_ITERATIONS] = miou
        swept = [network for network in scores if len(scores[network]) > 1]
        for number, network in enumerate(swept):
            label = plan.networks[network]["label"]
            line = sorted(scores[network].items())
            panels["iterations"].plot(
                *zip(*line, strict=True), "o-", color=LINES[number], ms=4, label=label
            )
    panels["iterations"].set_xlabel("EM iterations in the test")
    panels["iterations"].set_ylabel("mIoU, frozen trunk")
    panels["iterations"].legend(frameon=False, fontsize=8)
    for axes in panels.values():
        axes.spines[["top", "right"]].set_visible(False)
    FigureCanvasAgg(canvas).print_png(path)
