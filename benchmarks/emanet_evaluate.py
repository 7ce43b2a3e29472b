"""Counts the pixels that the networks of `emanet.yaml` find on the test frames of CamVid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from emanet_counts import Block, Key
from emanet_plan import Plan, Training
from emanet_train import initial_network, learnt

from probseg.errors import DataError
from probseg.semantic import CamVid, SemanticSegmenter
from probseg.semantic.confusion import Confusion
from probseg.semantic.dataset import SemanticSample
from probseg.semantic.network import enlarged

BLOCK = 10
"""About so many consecutive frames make a block."""


@torch.no_grad()
def evaluate(
    plan: Plan, training: Training, seeds: Sequence[int], names: Sequence[str]
) -> dict[Key, Block]:
    """Test the networks of one training.

    Args:
        plan: Says what the networks are.
        training: One of its trainings.
        seeds: Of the networks.
        names: Networks to test, in all rows that they have.

    Returns:
        Counts by training, row, seed and name of the block.

    Raises:
        DataError: If a network was not trained.
    """
    networks = {
        (name, seed): trained_network(plan, training, name, seed)
        for name in names
        for seed in seeds
    }
    first = next(iter(networks))
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
                own = row.iterations is None
                with nullcontext() if own else networks[key].iterations(row.iterations):
                    logits = networks[key].head(maps[trunks[key]])
                stride = networks[key].backbone.features.strides[-1]
                prediction = enlarged(logits, stride, image.shape[-2:]).argmax(dim=1)
                confusion.add(sample, prediction.squeeze(0))
        for (row, seed), confusion in counted.items():
            matrix = confusion.matrix()
            found = matrix.diagonal()
            union = matrix.sum(axis=0) + matrix.sum(axis=1) - found
            result = Block(confusion.photographs, found, union)
            results[training.name, row.name, seed, block] = result
        print(f"{training.name}: {block} is counted", flush=True)
    return results


def trained_network(plan: Plan, training: Training, name: str, seed: int) -> SemanticSegmenter:
    """Return a network with its trained weights, in evaluation mode.

    Raises:
        DataError: If it was not trained.
    """
    place = plan.place(training.name, name, seed)
    if not place.is_file():
        msg = f"{place}: no such file; run `emanet.py train --training {training.name}` first"
        raise DataError(msg)
    network = initial_network(plan, name, seed).eval()
    learnt(network, training).load_state_dict(torch.load(place, weights_only=True))
    return network


def blocks(frames: CamVid) -> Iterator[tuple[str, list[SemanticSample]]]:
    """Divide frames into blocks of consecutive frames of one drive, all of about one length.

    Yields:
        Name of the block, the drive and a number; and its frames.
    """
    drives: dict[str, list[int]] = {}
    for number, (photo, _) in enumerate(frames.pairs):
        drives.setdefault(photo.stem.split("_")[0], []).append(number)
    for drive, numbers in drives.items():
        parts = np.array_split(numbers, max(1, round(len(numbers) / BLOCK)))
        for number, part in enumerate(parts):
            yield f"{drive}/{number}", [frames[int(frame)] for frame in part]
