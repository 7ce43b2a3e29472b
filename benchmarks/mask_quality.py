"""How well the predicted IoU of answers fits, and what it gains as the rule for the first window.

    python benchmarks/mask_quality.py RUN --objects 50

Objects of the validation sets of `--data` are clicked on under the protocol `probseg`. The first
window is chosen by the predicted IoU and by the IoU that follows from the probabilities. The two
are paired: they share their answers until they choose differently. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import yaml
from scipy.stats import spearmanr

from probseg.clicks.annotators import CLICK_RULES
from probseg.data import DATASETS, Selected
from probseg.data.datamodule import spread
from probseg.descriptions import build_described
from probseg.evaluation import get_protocol
from probseg.evaluation.protocols import trial_generator
from probseg.interact import InteractionLoop, begin
from probseg.interact.photograph import image_tensor
from probseg.interact.states import InteractionState
from probseg.interact.zoom import ZOOMS, cut_factor, expected_iou
from probseg.metrics import iou
from probseg.types import Click, Sample
from probseg.zoo import create_interactive

PROTOCOL = get_protocol("probseg")
ZOOM = ZOOMS["scales"]
FEWEST = 5
"""Clicks on every object; further ones until its IoU is 0.9."""
RULES = ("predicted", "expected")


class Answer(NamedTuple):
    """An answer.

    Args:
        k: Number of clicks before it.
        iou: With the truth.
        predicted: IoU that the network predicts.
        expected: IoU that follows from the probabilities.
        factor: Of both where the first window is chosen.
    """

    k: int
    iou: float
    predicted: float
    expected: float
    factor: float

    def value(self, rule: str) -> float:
        """Return what the first window is chosen by."""
        return self.factor * (self.expected if rule == "expected" else self.predicted)


def main() -> None:
    """Measure each validation set, and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a network with a MaskQuality: of the zoo, or a run")
    parser.add_argument("--data", type=Path, default=Path("configs/data/objects_all.yaml"))
    parser.add_argument("--objects", type=int, default=50, help="of each validation set")
    parser.add_argument("--clicks", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = create_interactive(args.model, pretrained=True).to(memory_format=torch.channels_last)
    loop = InteractionLoop(model, zoom=ZOOM, previous_mask=model.previous_mask)
    for described in yaml.safe_load(args.data.read_text())["init_args"]["val"]:
        dataset = build_described(described, {**DATASETS, "Selected": Selected}, "data set")
        chosen = spread(dataset, args.objects)
        measured = [measure(loop, chosen[n], args.clicks) for n in range(len(chosen))]
        print(f"{dataset.name}: {len(measured)} objects", flush=True)
        report_choice([firsts for firsts, _ in measured], [runs for _, runs in measured])
        report_fit([answer for _, runs in measured for answer in runs["expected"]])


def measure(
    loop: InteractionLoop, sample: Sample, most: int
) -> tuple[list[Answer], dict[str, list[Answer]]]:
    """Return the answers to the first click at each scale, and the runs by their rule."""
    state = begin(image_tensor(sample.image))
    click = next_click(state, sample)
    assert click is not None, "nothing is object yet"
    states: list[InteractionState] = []
    for scale in ZOOM.first:
        alone = replace(loop, zoom=replace(ZOOM, first=(scale,)))
        states += alone.step([state], [click])
    firsts = [answered(first, sample) for first in states]
    places = {rule: int(np.argmax([first.value(rule) for first in firsts])) for rule in RULES}
    runs = {n: list(clicked(loop, states[n], sample, most)) for n in {*places.values()}}
    return firsts, {rule: runs[place] for rule, place in places.items()}


def clicked(
    loop: InteractionLoop, state: InteractionState, sample: Sample, most: int
) -> Iterator[Answer]:
    """Yield the answers to one object from the first on."""
    while True:
        yield (answer := answered(state, sample))
        click = next_click(state, sample)
        if click is None or answer.k == most or (answer.k >= FEWEST and answer.iou >= 0.9):
            return
        (state,) = loop.step([state], [click])


def answered(state: InteractionState, sample: Sample) -> Answer:
    """Measure the answer of a state."""
    score, answer = iou(state.probability > PROTOCOL.threshold, sample.mask), state.answer
    assert answer.quality is not None, "give a network with a MaskQuality"
    numbers = answer.quality, expected_iou(answer), cut_factor(answer)
    return Answer(len(state.clicks), score, *numbers)


def next_click(state: InteractionState, sample: Sample) -> Click | None:
    """Return the annotator's click."""
    rule, k = CLICK_RULES[PROTOCOL.click_rule], len(state.clicks)
    generator = trial_generator(0, sample.dataset, sample.name, 0, "click", k)
    return rule(state.probability > PROTOCOL.threshold, sample.mask, state.clicks, generator)


def report_choice(firsts: list[list[Answer]], runs: list[dict[str, list[Answer]]]) -> None:
    """Print what each rule for the first window gives, and the paired differences."""
    first = {rule: np.array([100 * run[rule][0].iou for run in runs]) for rule in RULES}
    noc = {rule: np.array([clicks_to_90(run[rule]) for run in runs]) for rule in RULES}
    for rule in RULES:
        print(f"  by {rule}: mIoU@1 {first[rule].mean():.1f}, NoC@90 {noc[rule].mean():.2f}")
    whole = np.mean([100 * scales[0].iou for scales in firsts])
    best = np.mean([100 * max(answer.iou for answer in scales) for scales in firsts])
    print(f"  mIoU@1 of the whole photograph {whole:.1f}, of the best window {best:.1f}")
    print(f"  more mIoU@1: {paired(first['predicted'] - first['expected'])}")
    print(f"  clicks saved: {paired(noc['expected'] - noc['predicted'])}")


def report_fit(answers: list[Answer]) -> None:
    """Print how well both numbers fit, after different numbers of clicks."""
    for fewest, most in ((1, 1), (2, 3), (4, 20)):
        some = [answer for answer in answers if fewest <= answer.k <= most]
        truth = np.array([answer.iou for answer in some])
        for rule in RULES:
            value = np.array([getattr(answer, rule) for answer in some])
            error, rank = np.abs(value - truth).mean(), spearmanr(value, truth)[0]
            print(
                f"  from click {fewest} ({len(some)} answers), {rule}: error {error:.3f}, "
                f"mean {value.mean():.3f} for {truth.mean():.3f}, rank correlation {rank:.2f}"
            )


def clicks_to_90(run: list[Answer]) -> int:
    """Return the clicks to an IoU of 0.9, or the last one."""
    return next((answer.k for answer in run if answer.iou >= 0.9), run[-1].k)


def paired(differences: npt.NDArray[np.float64]) -> str:
    """Return mean and standard error."""
    return f"{differences.mean():.2f} +- {differences.std(ddof=1) / len(differences) ** 0.5:.2f}"


if __name__ == "__main__":
    main()
