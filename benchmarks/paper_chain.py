"""Where the way from an adaptation to the mask ends, in the networks of `paper_frozen.yaml`.

`python benchmarks/paper_chain.py` switches key adaptation or value propagation on in trained
networks, on crops of the photographs that were held out from training, and measures in turn: how
far keys or unit values move, how much the posterior over the units changes, how much the read-out,
how much the logits, how many pixels of the mask, and what the mask gains. It writes
`paper_frozen_chain.csv` with a line for each network and change, means over all seeds. The
clicks are those on the errors of the network without the change, which favours it: gains compare
with each other alone.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import RESULTS
from paper_claims import Floats, by_seeds
from paper_rows import PLANS, Training, read_plan
from paper_train import crops
from torch import Tensor

from probseg.attention import ProbabilisticAttention2d, probabilistic_layers, restored
from probseg.attention.probabilistic import LayerSettings
from probseg.clicks.iterated import IteratedClicks
from probseg.clicks.sampling import object_boxes
from probseg.errors import USER_ERRORS
from probseg.metrics import iou
from probseg.models import Segmenter
from probseg.ops.axial import to_lines
from probseg.ops.edges import SoftmaxEdges
from probseg.ops.mixture import log_constant, prior_scores, query_logits
from probseg.ops.probabilistic import as_fixed, infer
from probseg.ops.settings import (
    NO_KEY_ADAPTATION,
    NO_VALUE_PROPAGATION,
    KeyAdaptation,
    ValuePropagation,
)
from probseg.seeds import Draws
from probseg.zoo import create_interactive

Change = Callable[[LayerSettings], LayerSettings]

STEPS = ("keys", "values", "posterior", "read_out", "logits", "pixels", "gain")
"""What is measured of each crop: relative changes of keys and unit values, total variation of the
posterior, relative change of the read-out, all four means over layers; mean change of the logits,
per cent of the pixels that change sides, and gain of the mask in points of IoU."""


def _keys(iterations: int = 1, prior: float = 0.0) -> Change:
    return lambda of: replace(of, key_adaptation=KeyAdaptation(iterations, prior))


def _values(iterations: int = 5, prior: float = 0.1, **more: Any) -> Change:  # noqa: ANN401
    return lambda of: replace(of, value_propagation=ValuePropagation(iterations, prior), **more)


KEYS: Mapping[str, Change] = {
    "KA1, prior 0": _keys(),
    "KA1, prior 0.001": _keys(prior=0.001),
    "KA1, prior 1": _keys(prior=1.0),
    "KA1, prior 10": _keys(prior=10.0),
    "KA5, prior 0": _keys(5),
}
VALUES: Mapping[str, Change] = {
    "BP1, prior 0.1": _values(1),
    "BP5, prior 0.1": _values(),
    "BP5, prior 1": _values(prior=1.0),
    "BP5, literal prior": _values(log_prior="magnitude"),
    "BP5, value precision 1": _values(value_precision=1.0),
    "BP5, clicked pixels answer themselves": _values(clamp_fixed=True),
}
EXPERIMENTS = {
    "prob": KEYS,
    "prob_full": KEYS,
    "prob_axial": KEYS,
    "prob_finer": KEYS,
    "prob_ka": KEYS,
    "csa_bp1": VALUES,
    "csa_bp5": VALUES,
    "both": VALUES,
}
"""Changes that are tried in each network."""

CLICKS = 5
"""Rounds of clicks after the box in which values propagate; keys adapt before the first one."""


@dataclass(frozen=True)
class Layer:
    """What a layer computes; the lines of the map are the first dimension `B`.

    Args:
        queries: Shape `(B, G, N, D)`.
        keys: After adaptation, shape `(B, G, M, D)`.
        values: Of the units, after propagation, shape `(B, G, M, V)`.
        posterior: Over the units, shape `(B, G, N, M)`.
        read_out: Shape `(B, G, N, V)`.
        log_evidence: As in `ProbabilisticAttention`, shape `(B, G, N)`.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    posterior: Tensor
    read_out: Tensor
    log_evidence: Tensor


def main(arguments: list[str] | None = None) -> int:
    """Measure all experiments; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, default=PLANS[1])
    parser.add_argument("--batches", type=int, default=8, help="of crops; %(default)s")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args(arguments)
    try:
        plan = read_plan(args.plan)
        if plan.training is None:
            parser.error(f"{args.plan} has no `training`")
        lines = [*_measured(plan.training, args.batches)]
    except USER_ERRORS as error:
        sys.stderr.write(f"paper_chain.py: error: {error}\n")
        return 2
    path = args.results / f"{plan.name}_chain.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["network", "change", *STEPS, "low", "high", "p"])
        writer.writerows(lines)
    return 0


def _measured(training: Training, batches: int) -> Iterator[list[str]]:
    """Yield a line for each network and change: means over seeds, and the test of the gain."""
    for name, changes in EXPERIMENTS.items():
        networks = [
            create_interactive(str(training.place(name, seed)), pretrained=True)
            for seed in range(training.seeds)
        ]
        found = [_of_network(network, changes, training, batches) for network in networks]
        photos = np.unique(found[0][0], return_inverse=True)[1]
        table = np.stack([rows for _, rows in found])  # (seeds, crops, changes, steps)
        of_photos = np.stack([table[:, photos == n].mean(axis=1) for n in range(photos.max() + 1)])
        for number, change in enumerate(changes):
            gain = by_seeds(of_photos[:, :, number, -1].T)
            means = [f"{mean:.4g}" for mean in of_photos[:, :, number].mean(axis=(0, 1))]
            line = [name, change, *means, f"{gain.low:.3f}", f"{gain.high:.3f}", f"{gain.p:.2g}"]
            print(", ".join(line), flush=True)
            yield line


def _of_network(
    model: Segmenter, changes: Mapping[str, Change], training: Training, batches: int
) -> tuple[list[str], Floats]:
    """Return the photograph of each crop, and `STEPS`, shape `(crops, changes, steps)`."""
    layers = probabilistic_layers(model.fusion)
    if changes is VALUES:
        layers = [of for of in probabilistic_layers(model.head) if of.settings.can_propagate]
    off = {"key_adaptation": NO_KEY_ADAPTATION, "value_propagation": NO_VALUE_PROPAGATION}
    for layer in layers:
        layer.settings = replace(layer.settings, **off)
    rounds = CLICKS if changes is VALUES else 0
    photos: list[str] = []
    rows = []
    for batch in itertools.islice(crops(training, seed=0, held_out=True), batches):
        with torch.no_grad():
            encoded = model.encode(batch.images.float() / 255)
            prompts = IteratedClicks(boxes=1.0, fewest_rounds=rounds, most_rounds=rounds).draw(
                batch.masks,
                object_boxes(batch.masks),
                Draws(batch.seeds),
                lambda given, of=encoded: model.decode(of, given._replace(previous=None)),
                epoch=0,
                batch_seed=0,
            )
            answer = partial(model.decode, encoded, prompts._replace(previous=None))
            of_changes = [
                _compared(layers, change, answer, batch.masks) for change in changes.values()
            ]
        photos += [name.rpartition("#")[0] for name in batch.names]
        rows.append(np.stack(of_changes, axis=1))
    return photos, np.concatenate(rows)


def _compared(
    layers: Sequence[ProbabilisticAttention2d],
    change: Change,
    answer: Callable[[], Tensor],
    masks: Tensor,
) -> Floats:
    """Return `STEPS` of each crop for one change, shape `(crops, steps)`."""
    before = answer()
    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(restored(layer))
            layer.settings = change(layer.settings)
        with watched(layers) as inputs:
            after = answer()
        changed = [computed(*pair) for pair in zip(layers, inputs, strict=True)]
    plain = [computed(layer, given[:2]) for layer, given in zip(layers, inputs, strict=True)]
    pairs = zip(plain, changed, strict=True)
    steps = torch.stack([_changes(*pair, len(masks)) for pair in pairs]).mean(dim=0)
    logits = (after - before).abs().mean(dim=(1, 2, 3))
    pixels = 100 * ((after > 0) != (before > 0)).float().mean(dim=(1, 2, 3))
    gains = [
        100 * (iou(new[0] > 0, mask) - iou(old[0] > 0, mask))
        for new, old, mask in zip(after.numpy(), before.numpy(), masks.numpy(), strict=True)
    ]
    return np.column_stack([steps, logits, pixels, gains])


@contextlib.contextmanager
def watched(layers: Sequence[ProbabilisticAttention2d]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield a list to which each call of a layer inside the block adds its arguments."""
    inputs: list[tuple[Any, ...]] = []
    with contextlib.ExitStack() as stack:
        for layer in layers:
            hook = layer.register_forward_pre_hook(lambda _, given: inputs.append(given))
            stack.callback(hook.remove)
        yield inputs


def computed(layer: ProbabilisticAttention2d, given: tuple[Any, ...]) -> Layer:
    """Compute a layer step by step.

    Args:
        layer: A layer without span.
        given: Features; perhaps value features; perhaps fixed values, and where they are fixed.
    """
    features, value_features = given[0], given[1] if len(given) > 1 else None
    projected = layer.projected(features, value_features)
    queries, keys, values = (to_lines(maps, layer.axis) for maps in projected)
    fixed = None
    if len(given) > 2:
        known, where = (maps.unflatten(0, (-1, 1)) for maps in given[2:])
        mask = to_lines(where[:, :, None], layer.axis)[:, 0, :, 0]
        fixed = as_fixed(to_lines(known, layer.axis), mask, queries, values)
    inferred = infer(
        queries,
        keys,
        values,
        layer.inference(),
        fixed=fixed,
        position=layer.position_tables(*projected[0].shape[-2:]),
    )
    mixture = inferred.mixture
    joint = query_logits(mixture, queries)
    edges = SoftmaxEdges(joint.queries, joint.keys, joint.log_prior or None, joint.scale)
    posterior = edges.log_probability(slice(None)).exp()
    constant = log_constant(mixture, queries, inferred.observed)
    log_normaliser = prior_scores(mixture).logsumexp(-1, keepdim=True)
    log_evidence = inferred.log_evidence + constant - log_normaliser
    return Layer(queries, mixture.keys, mixture.values, posterior, inferred.values, log_evidence)


def _changes(before: Layer, after: Layer, crops: int) -> Tensor:
    """Return the first four of `STEPS` of each crop, shape `(crops, 4)`."""

    def relative(old: Tensor, new: Tensor) -> Tensor:
        norms = [of.reshape(crops, -1).norm(dim=1) for of in (new - old, old)]
        return norms[0] / norms[1]

    variation = (after.posterior - before.posterior).abs().sum(dim=-1) / 2
    steps = [
        relative(before.keys, after.keys),
        relative(before.values, after.values),
        variation.reshape(crops, -1).mean(dim=1),
        relative(before.read_out, after.read_out),
    ]
    return torch.stack(steps, dim=1)


if __name__ == "__main__":
    sys.exit(main())
