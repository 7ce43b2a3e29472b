"""An evaluation and a training step of probseg, against loops as RITM's authors describe theirs.

`python benchmarks/ritm_loop.py` gives the same random network to both, on photographs of GrabCut,
in turns on one thread, and prints a row for each.

- evaluation: with zoom-in and flip averaging, as protocol `ritm_zoom`. The loop has one object at a
  time: a click on the deepest error by OpenCV's distance transform, the window resized, the network
  on it and its mirror image from the pixels on. `same_clicks` is the share of equal clicks.
- training step: crops, random clicks, rounds of clicks on errors in evaluation mode, a step by the
  normalised focal loss. The loop finds the clicks of a round by OpenCV, one crop after the other.

The loops are written for this comparison, after Sofiiuk, Petrov and Konushin 2021, "Reviving
Iterative Training with Mask Guidance for Interactive Segmentation", sections 3 and 4. `ratio` is
the loop's processor time by that of probseg: the median of turns.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from measure import provenance
from torch import Tensor

import probseg
from probseg.clicks import IteratedClicks
from probseg.data import GrabCut
from probseg.data.datamodule import TrainBatch
from probseg.evaluation import get_protocol, run_objects
from probseg.interact.probability import ProbabilityMap
from probseg.interact.session import prepared
from probseg.interact.zoom import ZOOMS, next_window, scaled_size
from probseg.losses import BinaryCrossEntropy, NormalizedFocalLoss
from probseg.models import Segmenter
from probseg.tasks import InteractiveSegmentation
from probseg.types import Click, Prompts, Sample

AUXILIARY = 0.4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="ritm_hrnet18s_ocr")
    parser.add_argument("--objects", type=int, default=4, help="of each turn")
    parser.add_argument("--clicks", type=int, default=5)
    parser.add_argument("--crops", type=int, default=4, help="of a training batch")
    parser.add_argument("--rounds", type=int, default=2, help="of clicks on errors")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = probseg.create_model(options.model).eval()
    samples = list(GrabCut())[: options.objects * options.turns]
    for what in (evaluations, training_steps):
        row = what(network, samples, options)
        print(
            {"what": what.__name__, "model": options.model, **row, **provenance("cpu")}, flush=True
        )


def in_turns(
    ours: Callable[[int], object], loop: Callable[[int], object], turns: int
) -> dict[str, float]:
    """Return the seconds of processor time of a turn, and their ratio: medians."""
    seconds = np.zeros((turns, 2))
    for turn in range(turns):
        for n, call in enumerate((ours, loop)):
            began = time.process_time()
            call(turn)
            seconds[turn, n] = time.process_time() - began
    ratios = np.round(np.sort(seconds[:, 1] / seconds[:, 0]), 2)
    medians = np.round(np.median(seconds, axis=0), 2)
    return {
        "seconds": medians[0],
        "seconds_of_loop": medians[1],
        "ratio": float(np.median(ratios)),
        "ratio_low": ratios[0],
        "ratio_high": ratios[-1],
    }


def evaluations(
    network: Segmenter, samples: Sequence[Sample], options: argparse.Namespace
) -> dict[str, object]:
    """Compare evaluations."""
    protocol = replace(get_protocol("ritm_zoom"), max_clicks=options.clicks)
    fast = prepared(copy.deepcopy(network), "cpu")
    found: dict[str, list[Click]] = {"ours": [], "loop": []}

    def block(turn: int) -> Sequence[Sample]:
        return samples[turn * options.objects : (turn + 1) * options.objects]

    def ours(turn: int) -> None:
        for record in run_objects(fast, block(turn), protocol):
            found["ours"] += [Click(s.x, s.y, s.positive) for s in record.steps if s.x is not None]

    def loop(turn: int) -> None:
        for sample in block(turn):
            found["loop"] += clicked(network, sample, options.clicks, protocol.threshold)

    row = in_turns(ours, loop, options.turns)
    same = np.mean([a == b for a, b in zip(found["ours"], found["loop"], strict=True)])
    return {**row, "same_clicks": round(float(same), 2), "clicks": len(found["loop"])}


@torch.inference_mode()
def clicked(network: Segmenter, sample: Sample, clicks: int, threshold: float) -> list[Click]:
    """Evaluate one object; return its clicks."""
    image = torch.from_numpy(sample.image).permute(2, 0, 1)[None].float() / 255
    probability = np.zeros(sample.mask.shape, np.float32)
    given: list[Click] = []
    window = None
    for _ in range(clicks):
        given.append(on_deepest_error(probability > threshold, sample.mask, given))
        window = next_window(ZOOMS["ritm"], window, ProbabilityMap.of(probability), given)
        x0, y0, x1, y1 = window or (0, 0, *sample.mask.shape[::-1])
        size = (y1 - y0, x1 - x0)
        target = size if window is None else scaled_size(size, ZOOMS["ritm"].target)
        maps = [image, torch.from_numpy(probability)[None, None]]
        maps = [F.interpolate(m[..., y0:y1, x0:x1], target, mode="bilinear") for m in maps]
        scale = torch.tensor([target[1] / size[1], target[0] / size[0]])
        points = torch.tensor([[click.x - x0, click.y - y0] for click in given])
        points = (points + 0.5) * scale - 0.5
        mirrored = torch.stack([target[1] - 1 - points[:, 0], points[:, 1]], dim=-1)
        prompts = Prompts(
            torch.stack([points, mirrored]),
            torch.tensor([[int(click.positive) for click in given]] * 2),
            torch.full((2, 4), torch.nan),
            torch.cat([maps[1], maps[1].flip(3)]),
        )
        logits = network(torch.cat([maps[0], maps[0].flip(3)]), prompts)
        answer = (logits[:1] + logits[1:].flip(3)) / 2
        answer = F.interpolate(answer, size, mode="bilinear").sigmoid()
        probability = np.zeros(sample.mask.shape, np.float32)
        probability[y0:y1, x0:x1] = answer[0, 0].numpy()
    return given


def on_deepest_error(mask: np.ndarray, truth: np.ndarray, given: Sequence[Click] = ()) -> Click:
    """Click the pixel with the largest distance to the outside of an error."""
    depths = []
    for error in (~mask & (truth == 1), mask & (truth == 0)):
        depth = cv2.distanceTransform(np.pad(np.uint8(error), 1), cv2.DIST_L2, 0)[1:-1, 1:-1]
        for click in given:
            depth[int(click.y), int(click.x)] = 0
        depths.append(depth)
    missed, invented = depths
    positive = bool(missed.max() > invented.max())
    depth = missed if positive else invented
    y, x = np.unravel_index(int(depth.argmax()), depth.shape)
    return Click(int(x), int(y), positive)


def training_steps(
    network: Segmenter, samples: Sequence[Sample], options: argparse.Namespace
) -> dict[str, object]:
    """Compare training steps on crops of 320 x 480 pixels."""
    size = (480, 320)
    images = np.stack([cv2.resize(sample.image, size) for sample in samples[: options.crops]])
    masks = np.stack(
        [
            cv2.resize(s.mask, size, interpolation=cv2.INTER_NEAREST)
            for s in samples[: options.crops]
        ]
    )
    rgb, truth = torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(masks)
    batch = TrainBatch(rgb, truth, torch.arange(options.crops), [""] * options.crops, [])
    task = InteractiveSegmentation(
        copy.deepcopy(network).train(),
        loss=NormalizedFocalLoss(alpha=0.5, gamma=2.0),
        auxiliary_loss=BinaryCrossEntropy(),
        auxiliary_weight=AUXILIARY,
        curriculum=IteratedClicks(fewest_rounds=options.rounds, most_rounds=options.rounds),
    )
    learning = copy.deepcopy(network).train()
    optimizers = [torch.optim.Adam(one.parameters(), lr=5e-4) for one in (task.model, learning)]

    def ours(turn: int) -> None:
        loss = task.training_step(batch, turn)["loss"]
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()

    def loop(turn: int) -> None:
        random = np.random.default_rng(turn)
        loss = looped_loss(learning, rgb.float() / 255, truth, options.rounds, random)
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()

    warnings.filterwarnings("ignore", message=".*self.log.*")  # there is no trainer to log to
    return {**in_turns(ours, loop, options.turns), "crops": options.crops, "rounds": options.rounds}


def looped_loss(
    network: Segmenter, images: Tensor, truth: Tensor, rounds: int, random: np.random.Generator
) -> Tensor:
    """Return the loss after random clicks and some rounds of clicks on errors."""
    masks = truth.numpy()
    points, labels = random_clicks(masks, random)
    previous = torch.zeros(len(images), 1, *masks.shape[1:])
    boxes = torch.full((len(images), 4), torch.nan)
    for _ in range(rounds):
        network.eval()
        with torch.no_grad():
            previous = network(images, Prompts(points, labels, boxes, previous)).sigmoid()
        network.train()
        errors = [
            on_deepest_error(own > 0.5, mask)
            for own, mask in zip(previous[:, 0].numpy(), masks, strict=True)
        ]
        points = torch.cat([points, torch.tensor([[[c.x, c.y]] for c in errors]).float()], dim=1)
        labels = torch.cat([labels, torch.tensor([[int(c.positive)] for c in errors])], dim=1)
    logits = network.raw_logits(network.encode(images), Prompts(points, labels, boxes, previous))
    loss = NormalizedFocalLoss(alpha=0.5, gamma=2.0)(logits.main, truth)
    return loss + AUXILIARY * BinaryCrossEntropy()(logits.auxiliary, truth)


def random_clicks(masks: np.ndarray, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Draw two clicks on each object and two beside it."""
    points = []
    for mask in masks:
        for wanted in (1, 1, 0, 0):
            ys, xs = np.nonzero(mask == wanted)
            n = random.integers(len(ys))
            points.append((float(xs[n]), float(ys[n])))
    return torch.tensor(points).view(len(masks), 4, 2), torch.tensor([[1, 1, 0, 0]] * len(masks))


if __name__ == "__main__":
    main()
