"""Evidence and entropy of the mixture of Gaussians in the networks of `paper_frozen.yaml`.

`python benchmarks/paper_beliefs.py` writes three files, means over the layers of probabilistic
attention:

- `paper_frozen_precisions.csv`: the first mask on crops of the photographs held out from training
  for precisions of the queries and of the keys' prior, from which the fitted settings are chosen;
- `paper_frozen_beliefs.csv.gz`: for each object, entropies of the posterior over the units and
  of the output, errors of the mask and calibration, with and without adaptation;
- `paper_frozen_evidence.csv.gz`: log evidence and simple baselines of whole photographs, of
  altered ones and of video frames from a car.

`paper.py` tests and draws them (`paper_beliefs_report.py`).
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from measure import RESULTS
from paper_beliefs_report import BELIEFS, EVIDENCE, MEASURES, PRECISIONS, SCORES, auroc
from paper_chain import computed, watched
from paper_evaluate import load
from paper_rows import PLANS, Objects, Plan, Training, read_plan
from paper_train import HELD_OUT, crops
from scipy.stats import rankdata
from torch import Tensor

from probseg.attention import Adaptation, ProbabilisticAttention2d, probabilistic_layers, restored
from probseg.clicks.iterated import IteratedClicks
from probseg.clicks.rounds import without_clicks
from probseg.clicks.sampling import object_boxes
from probseg.data import DATASETS, Selected
from probseg.errors import USER_ERRORS
from probseg.evaluation import Protocol
from probseg.evaluation.protocols import draw_crop
from probseg.metrics import iou
from probseg.metrics.masks import brier_score, expected_calibration_error
from probseg.models import Segmenter
from probseg.models.encoded import Encoded, as_given
from probseg.ops.axial import from_lines
from probseg.paths import replacing
from probseg.seeds import Draws
from probseg.semantic.camvid import CamVid
from probseg.types import IGNORE, Sample

Pixels = npt.NDArray[np.uint8]
Networks = Mapping[tuple[str, int], Segmenter]

AS_TRAINED = Adaptation()
NO_KA, NO_BP = Adaptation(key_iterations=0), Adaptation(value_iterations=0)
KA = Adaptation(key_iterations=1, key_prior=0.0)


@dataclass(frozen=True)
class Setting:
    """A trained network, what is switched in it, and when it is asked.

    Args:
        network: Of the plan's training.
        adaptation: What is switched after training.
        precision: Of the queries, in multiples of that in training.
        rounds: Clicks on the network's own errors after the box.
        working_size: Longest side in pixels; None for that of the training.
    """

    network: str
    adaptation: Adaptation = AS_TRAINED
    precision: float = 1.0
    rounds: int = 0
    working_size: int | None = None


CLICKS = 5
"""Rounds of clicks after which values have propagated; keys adapt before the first one."""

SETTINGS = {
    "prob": Setting("prob"),
    "prob_ka1": Setting("prob", KA),
    "prob_full": Setting("prob_full"),
    "prob_full_ka1": Setting("prob_full", KA),
    "trained_off": Setting("prob_ka", NO_KA),
    "trained_ka1": Setting("prob_ka"),
    "csa": Setting("csa"),
    "csa_ka1": Setting("csa", KA),
    "prob_fine": Setting("prob", working_size=320),
    "prob_fine_ka1": Setting("prob", KA, working_size=320),
    "csa_bp5_off": Setting("csa_bp5", NO_BP, rounds=CLICKS),
    "csa_bp5": Setting("csa_bp5", rounds=CLICKS),
    "both_off": Setting("both", NO_BP, rounds=CLICKS),
    "both_bp5": Setting("both", rounds=CLICKS),
}

FITTED = ("prob", "prob_full", "csa")
"""Networks whose precisions are fitted on held-out photographs."""

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Precisions of the queries in multiples of that in training."""

PRIORS = (0.0, 0.1, 1.0, 10.0)
"""Precisions of the keys' prior."""

NETWORKS = ("prob", "prob_full", "prob_ka", "csa")
"""Networks whose evidence of photographs is measured."""

PHOTOGRAPHS = 60
"""Number of photographs, and of video frames."""

REFERENCE = 100
"""Photographs held out from training that the distance of features is fitted on."""


def main(arguments: list[str] | None = None) -> int:
    """Measure what is asked for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, default=PLANS[1])
    parser.add_argument("--only", nargs="+", choices=["precisions", "masks", "photographs"])
    parser.add_argument("--batches", type=int, default=4, help="of crops; %(default)s")
    parser.add_argument("--most", type=int, help="objects and photographs of each set; all")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args(arguments)
    try:
        plan = read_plan(args.plan)
        if plan.training is None:
            parser.error(f"{args.plan} has no `training`")
        measured: dict[str, tuple[str, Sequence[str], Callable[[], Iterator[Sequence[Any]]]]] = {
            "precisions": (
                PRECISIONS,
                ("network", "precision", "prior", "miou"),
                lambda: _precisions(plan.training, args.batches),
            ),
            "masks": (
                BELIEFS,
                ("setting", "seed", "dataset", "object", "photo", *MEASURES),
                lambda: _masks(plan, args.results, args.most),
            ),
            "photographs": (
                EVIDENCE,
                ("network", "seed", "photo", "version", *SCORES),
                lambda: _photographs(plan, args.most or PHOTOGRAPHS),
            ),
        }
        for part in args.only or measured:
            name, header, lines = measured[part]
            with torch.inference_mode():
                _write(args.results / name.format(plan.name), header, lines())
    except USER_ERRORS as error:
        sys.stderr.write(f"paper_beliefs.py: error: {error}\n")
        return 2
    return 0


def _write(path: Path, header: Sequence[str], lines: Iterator[Sequence[Any]]) -> None:
    """Write a CSV file, compressed if it is named so; numbers have four digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for line in lines:
        writer.writerow([f"{of:.4g}" if isinstance(of, float) else of for of in line])
    content = text.getvalue().encode()
    with replacing(path) as draft:
        draft.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    print(f"wrote {path}", flush=True)


def _loaded(training: Training, names: Sequence[str]) -> Networks:
    return {
        (name, seed): load(str(training.place(name, seed)))[0]
        for name in names
        for seed in range(training.seeds)
    }


@contextmanager
def _switched(model: Segmenter, setting: Setting) -> Iterator[list[ProbabilisticAttention2d]]:
    """Set a network inside the block; yield the layers whose keys adapt."""
    layers = _layers(model)
    usual = model.working_size
    with restored(model):
        if setting.adaptation != AS_TRAINED:
            model.adapt(setting.adaptation)
        if setting.precision != 1:
            for layer in layers:
                alpha = setting.precision / math.sqrt(layer.head_channels)
                layer.settings = replace(layer.settings, query_precision=alpha)
        model.working_size = setting.working_size or usual
        try:
            yield layers
        finally:
            model.working_size = usual


def _layers(model: Segmenter) -> list[ProbabilisticAttention2d]:
    found: list[ProbabilisticAttention2d] = probabilistic_layers(model.fusion)
    return found or probabilistic_layers(model.head)


def _precisions(training: Training, batches: int) -> Iterator[Sequence[Any]]:
    """Yield the mean IoU of the first mask on held-out crops, over seeds, for each precision."""
    networks = _loaded(training, FITTED)
    grid = [
        Setting(name, adaptation, factor)
        for name in FITTED
        for factor in FACTORS
        for adaptation in (NO_KA, *(replace(KA, key_prior=prior) for prior in PRIORS))
    ]
    found: dict[Setting, list[float]] = {setting: [] for setting in grid}
    for batch in itertools.islice(crops(training, seed=0, held_out=True), batches):
        encoded = networks[FITTED[0], 0].encode(batch.images.float() / 255)
        prompts = without_clicks(object_boxes(batch.masks))
        for setting, seed in itertools.product(grid, range(training.seeds)):
            with _switched(networks[setting.network, seed], setting):
                masks = networks[setting.network, seed].decode(encoded, prompts)[:, 0] > 0
            pairs = zip(masks.numpy(), batch.masks.numpy(), strict=True)
            found[setting] += [iou(mask, truth) for mask, truth in pairs]
    for setting, ious in found.items():
        prior = setting.adaptation.key_prior
        shown = "off" if prior is None else f"{prior:g}"
        yield setting.network, f"{setting.precision:g}", shown, 100 * float(np.mean(ious))


def _fitted(path: Path) -> Mapping[str, Setting]:
    """Return the best precisions of each network on held-out crops, without and with adaptation."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = [*csv.DictReader(file)]
    settings = {}
    for name in FITTED:
        for suffix in ("off", "ka1"):
            mine = [of for of in lines if of["network"] == name]
            tried = [of for of in mine if (of["prior"] == "off") == (suffix == "off")]
            best = max(tried, key=lambda of: float(of["miou"]))
            adaptation = NO_KA
            if suffix == "ka1":
                adaptation = replace(KA, key_prior=float(best["prior"]))
            settings[f"{name}_fit_{suffix}"] = Setting(name, adaptation, float(best["precision"]))
    return settings


def _masks(plan: Plan, results: Path, most: int | None) -> Iterator[Sequence[Any]]:
    """Yield `MEASURES` of each setting, seed and object."""
    assert plan.training is not None, "checked by main"
    settings = {**SETTINGS, **_fitted(results / PRECISIONS.format(plan.name))}
    names = sorted({setting.network for setting in settings.values()})
    networks = _loaded(plan.training, names)
    for name, objects in plan.datasets.items():
        opened = replace(objects, most=most or objects.most).open()
        for number in range(len(opened)):
            sample = opened[number]
            image, mask, box = shown(sample, plan.protocol)
            encoded: dict[int | None, Encoded] = {}  # the trunk of all networks is the same
            for label, setting in settings.items():
                for seed in range(plan.training.seeds):
                    model = networks[setting.network, seed]
                    with _switched(model, setting) as layers:
                        size = model.working_size
                        if size not in encoded:
                            encoded[size] = model.encode(image)
                        measured = _of_mask(
                            model, layers, encoded[size], mask, box, setting.rounds, number
                        )
                    photo = sample.photo or sample.name
                    yield label, seed, name, sample.name, photo, *measured
        print(f"{name}: {len(opened)} objects", flush=True)


def shown(sample: Sample, protocol: Protocol) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the protocol shows of an object: crop, mask `(1, H, W)` and box `(1, 4)`."""
    drawn = draw_crop(sample, protocol)
    assert drawn.box is not None, "the protocol of the plan has boxes"
    x0, y0, x1, y1 = drawn.crop
    box = torch.tensor([drawn.box]) - torch.tensor([x0, y0, x0, y0])
    mask = torch.from_numpy(np.ascontiguousarray(sample.mask[y0:y1, x0:x1]))
    return _as_batch(sample.image[y0:y1, x0:x1]), mask[None], box.float()


def _as_batch(image: Pixels) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None].float() / 255


def _of_mask(
    model: Segmenter,
    layers: Sequence[ProbabilisticAttention2d],
    encoded: Encoded,
    mask: Tensor,
    box: Tensor,
    rounds: int,
    number: int,
) -> list[float]:
    """Return `MEASURES` after some clicks on the network's errors."""
    prompts = IteratedClicks(boxes=1.0, fewest_rounds=rounds, most_rounds=rounds).draw(
        mask,
        box,
        Draws(torch.tensor([number])),
        lambda given: model.decode(encoded, given._replace(previous=None)),
        epoch=0,
        batch_seed=0,
    )
    with watched(layers) as inputs:
        logits = model.decode(encoded, prompts._replace(previous=None))
    maps = torch.stack([_maps(*pair) for pair in zip(layers, inputs, strict=True)]).mean(dim=0)
    maps = F.interpolate(maps, encoded.image.shape[-2:], mode="bilinear")
    entropies, evidence = as_given(maps, encoded)[0].numpy()
    probability, truth = logits[0, 0].sigmoid().numpy(), mask[0].numpy()
    counted = truth != IGNORE
    outputs = _binary_entropy(probability)
    return [
        float(entropies[counted].mean()),
        float(outputs[counted].mean()),
        float(evidence[counted].mean()),
        iou(probability > 0.5, truth),
        float(expected_calibration_error(probability, truth) or 0),
        float(brier_score(probability, truth) or 0),
        *_error_aurocs(entropies, outputs, (probability > 0.5) != (truth == 1), counted),
    ]


def _maps(layer: ProbabilisticAttention2d, given: tuple[Any, ...]) -> Tensor:
    """Return a layer's relative entropy and log evidence, means over heads, `(B, 2, h, w)`."""
    found = computed(layer, given)
    entropy = torch.special.entr(found.posterior).sum(dim=-1) / math.log(found.posterior.shape[-1])
    lines = torch.stack([entropy, found.log_evidence], dim=-1)  # (B, G, N, 2)
    features = given[0][0] if isinstance(given[0], tuple) else given[0]
    return from_lines(lines, layer.axis, *features.shape[-2:]).mean(dim=1)


def _binary_entropy(probability: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the entropy of an output in bits."""
    p = np.clip(probability.astype(np.float64), 1e-12, 1 - 1e-12)
    return -(p * np.log2(p) + (1 - p) * np.log2(1 - p))


def _error_aurocs(
    entropies: npt.NDArray[np.float32],
    outputs: npt.NDArray[np.float64],
    wrong: npt.NDArray[np.bool_],
    counted: npt.NDArray[np.bool_],
) -> list[float]:
    """Return the areas under the curve of posterior, output and both, one pixel in four."""
    some = np.zeros_like(counted)
    some[::2, ::2] = True
    some &= counted
    posterior, output = rankdata(entropies[some]), rankdata(outputs[some])
    return [auroc(of, wrong[some]) for of in (posterior, output, posterior + output)]


def _photographs(plan: Plan, most: int) -> Iterator[Sequence[Any]]:
    """Yield `SCORES` of each network, seed, photograph and version of it."""
    assert plan.training is not None, "checked by main"
    networks = _loaded(plan.training, NETWORKS)
    first = networks[NETWORKS[0], 0]
    reference = _reference(first, plan.training.data)
    mean, spread = reference.mean(dim=0), reference.std(dim=0)
    for number, (photo, versions) in enumerate(_versions(plan.datasets["objects"], most)):
        for version, image in versions.items():
            pixels = _as_batch(image)
            height, width = pixels.shape[-2:]
            box = torch.tensor([[width / 4, height / 4, 3 * width / 4, 3 * height / 4]])
            encoded = first.encode(pixels)
            features = _features(first, encoded)
            norm = float(features.norm(dim=1).mean())
            distance = float(((features.mean(dim=(2, 3))[0] - mean) / spread).square().mean())
            for (name, seed), model in networks.items():
                layers = _layers(model)
                with watched(layers) as inputs:
                    probability = model.decode(encoded, without_clicks(box)).sigmoid()
                states = [computed(*pair) for pair in zip(layers, inputs, strict=True)]
                maps = [_maps(*pair) for pair in zip(layers, inputs, strict=True)]
                entropy, evidence = torch.stack(maps).mean(dim=(0, 1, 3, 4)).tolist()
                queries = np.mean([float(of.queries.square().sum(dim=-1).mean()) for of in states])
                surest = float(torch.maximum(probability, 1 - probability).mean())
                scores = [evidence, entropy, float(queries), surest, norm, distance]
                yield name, seed, photo, version, *scores
        if number % 20 == 19:
            print(f"{number + 1} photographs", flush=True)


def _features(model: Segmenter, encoded: Encoded) -> Tensor:
    """Return the features that the stage sees, `(B, C, h, w)`."""
    assert encoded.decoder_maps is not None, "prompts enter behind the trunk"
    return (encoded.decoder_maps.features, *encoded.decoder_maps.coarser)[model.fusion.level]


def _reference(model: Segmenter, data: Objects) -> Tensor:
    """Return the mean features of photographs held out from training, `(photographs, C)`."""
    objects = Selected(DATASETS[data.kind](**data.arguments), held_out=HELD_OUT)
    photos: dict[str, Tensor] = {}
    for number in range(len(objects)):
        sample = objects[number]
        photo = sample.photo or sample.name
        if photo not in photos and len(photos) < REFERENCE:
            encoded = model.encode(_as_batch(sample.image))
            photos[photo] = _features(model, encoded).mean(dim=(0, 2, 3))
    return torch.stack([*photos.values()])


def _versions(objects: Objects, most: int) -> Iterator[tuple[str, Mapping[str, Pixels]]]:
    """Yield photographs, each in all versions and with a video frame."""
    frames = [CamVid("trainval"), CamVid("test")]
    spread = [(of, n) for of in frames for n in range(len(of))]
    photos: dict[str, Pixels] = {}
    for sample in objects.open():
        photos.setdefault(sample.photo or sample.name, sample.image)
    for number, (photo, image) in enumerate([*photos.items()][:most]):
        random = np.random.default_rng(number)
        of, n = spread[number * len(spread) // most]
        versions = {name: change(image, random) for name, change in CHANGES.items()}
        yield photo, {"photograph": image, **versions, "driving": of[n].image}


def _noisy(image: Pixels, random: np.random.Generator) -> Pixels:
    noise = random.normal(0, 50, image.shape)
    return np.clip(image + noise, 0, 255).astype(np.uint8)


def _blurred(image: Pixels, random: np.random.Generator) -> Pixels:
    return np.asarray(cv2.GaussianBlur(image, None, 0.03 * max(image.shape)), dtype=np.uint8)


def _in_tiles(image: Pixels, random: np.random.Generator) -> Pixels:
    """Return the image with its 4 x 4 tiles in another order."""
    height, width = (4 * (side // 4) for side in image.shape[:2])
    tiles = image[:height, :width].reshape(4, height // 4, 4, width // 4, 3).swapaxes(1, 2)
    mixed = tiles.reshape(16, height // 4, width // 4, 3)[random.permutation(16)]
    return mixed.reshape(tiles.shape).swapaxes(1, 2).reshape(height, width, 3)


def _texture(image: Pixels, random: np.random.Generator) -> Pixels:
    """Return a square of a sixth of the shorter side, enlarged."""
    side = min(image.shape[:2]) // 6
    y, x = (int(random.integers(of - side)) for of in image.shape[:2])
    size = image.shape[1], image.shape[0]
    cut = cv2.resize(image[y : y + side, x : x + side], size, interpolation=cv2.INTER_CUBIC)
    return np.asarray(cut, dtype=np.uint8)


CHANGES: Mapping[str, Callable[[Pixels, np.random.Generator], Pixels]] = {
    "inverted": lambda image, _: 255 - image,
    "channels": lambda image, _: image[..., [1, 2, 0]],
    "noise": _noisy,
    "blurred": _blurred,
    "tiles": _in_tiles,
    "texture": _texture,
}
"""Changes of a photograph that take it out of the distribution."""


if __name__ == "__main__":
    sys.exit(main())
