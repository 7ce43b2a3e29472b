"""Cost of a network: size, multiply-adds, and time and memory of clicks and of training.

`python -m probseg.lab.benchmark JSON` measures one network in a separate process, see
`measure_elsewhere`: neither buffers nor a high-water mark of memory are inherited from another.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

import probseg
from probseg.attention import Adaptation
from probseg.interact.predictor import Predictor
from probseg.interact.zoom import RECOMMENDED_ZOOM
from probseg.lab.gauges import MULTIPLY_ADDS, count_multiply_adds, timed, timed_with_peak
from probseg.losses import BinaryCrossEntropy
from probseg.models import Segmenter, build, list_presets
from probseg.models.build import without_downloads
from probseg.paths import is_path
from probseg.types import Click, Prompts
from probseg.weight_files import read_safetensors
from probseg.zoo.index import WEIGHTS
from probseg.zoo.lookup import describe
from probseg.zoo.store import build_to_fit

CONVENTIONS = {
    "multiply_adds": MULTIPLY_ADDS,
    "first_click": "from set_image to the first mask, with the encoding of the image",
    "next_click": "one more click on what the model has seen",
    "zoomed_click": "one more click for which the zoom moves to another part of the image",
    "undo": "taking one click back",
    "milliseconds": "median and 95th percentile (p95) of the repeats after the warm-up",
    "peak": "MiB of a first click at most, beyond what was held before",
    "training": (
        "images per second of forward pass, loss, backward pass and optimiser step on random "
        "data; median"
    ),
}
"""Meaning of each number of a `Record`."""

_TRAINING_STEPS = 5
_AUXILIARY_WEIGHT = 0.4


@dataclass(frozen=True)
class Settings:
    """Settings of the measurements.

    Args:
        size: `(H, W)` of the image in pixels.
        device: "cpu", "cuda", "cuda:N" or "mps".
        threads: Number of CPU threads; None is PyTorch's choice.
        repeats: Number of images clicked on for the times.
        warmup: Number of images before them.
        train: Whether training is measured.
        train_size: Side of the training images in pixels.
        train_batch: Number of training images in a step.
        precision: "32", or "bf16" for autocast.
        compile: Whether the network's parts are compiled.
        prompts: Where prompts enter, see `Segmenter`; None leaves that to the model.
        key_iterations: See `Segmenter.adapt`.
        value_iterations: See `Segmenter.adapt`.
        working_size: "image": every network works at the image's size, so that their costs compare.
            "own": each reduces the image to its own `working_size`, as in use.
    """

    size: tuple[int, int] = (512, 512)
    device: str = "cpu"
    threads: int | None = None
    repeats: int = 20
    warmup: int = 3
    train: bool = True
    train_size: int = 256
    train_batch: int = 8
    precision: Literal["32", "bf16"] = "32"
    compile: bool = False
    prompts: Literal["stem", "head"] | None = None
    key_iterations: int | None = None
    value_iterations: int | None = None
    working_size: Literal["image", "own"] = "image"

    def autocast(self) -> torch.autocast:
        """Return the context that the network computes in."""
        kind = torch.device(self.device).type
        return torch.autocast(kind, torch.bfloat16, enabled=self.precision == "bf16")


@dataclass
class Record:
    """Measurements of a network; None if not measured, see `CONVENTIONS`.

    Args:
        model: Its name.
        prompts: Where its prompts enter.
        working_size: Longest side in pixels that it works at; None is that of the image.
        trained: Whether it has the zoo's weights.
        parameters_m: Number of parameters in millions.
        first_multiply_adds_g: Multiply-adds of the first click in thousand millions.
        next_multiply_adds_g: Multiply-adds of another click in thousand millions.
        first_ms: Median time of the first click in milliseconds.
        first_ms_p95: Its 95th percentile.
        next_ms: Median time of another click in milliseconds.
        next_ms_p95: Its 95th percentile.
        zoomed_ms: Median time of a click that the zoom moves for; None where it never did.
        undo_ms: Median time of taking a click back.
        peak_mib: Memory of the first click at most, in MiB.
        train_images_per_second: Throughput of training.
        error: Why something is missing.
    """

    model: str
    prompts: str | None = None
    working_size: int | None = None
    trained: bool | None = None
    parameters_m: float | None = None
    first_multiply_adds_g: float | None = None
    next_multiply_adds_g: float | None = None
    first_ms: float | None = None
    first_ms_p95: float | None = None
    next_ms: float | None = None
    next_ms_p95: float | None = None
    zoomed_ms: float | None = None
    undo_ms: float | None = None
    peak_mib: float | None = None
    train_images_per_second: float | None = None
    error: str | None = None


def measure_elsewhere(name: str, settings: Settings) -> Record:
    """Measure a network in a fresh process; a failure there is the `error` of the record."""
    package = str(Path(probseg.__file__).parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    request = json.dumps({"name": name, "settings": asdict(settings)})
    done = subprocess.run(
        # -P: files in the working directory must not take the place of modules.
        [sys.executable, "-P", "-m", "probseg.lab.benchmark", request],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    if done.returncode < 0:
        reason = f"the process was ended by signal {-done.returncode}; was memory short?"
        return Record(name, error=reason)
    if done.returncode > 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return Record(name, error=lines[-1])
    return Record(**json.loads(done.stdout.splitlines()[-1]))


def measure(name: str, settings: Settings) -> Record:
    """Measure a network in this process; a failure is the `error` of the record.

    Args:
        name: Preset, zoo model `architecture.tag`, or path of a model folder.
        settings: See `Settings`.
    """
    record = Record(name)
    try:
        _fill(record, settings)
    except Exception as error:  # other networks are to be measured whatever this one raises
        record.error = f"{type(error).__name__}: {error}"
    return record


def _fill(record: Record, settings: Settings) -> None:
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    index = torch.device(settings.device).index
    if index is not None:
        torch.accelerator.set_device_index(index)
    torch.manual_seed(0)
    model, record.trained = _create(record.model, settings)
    record.prompts, record.working_size = model.prompts_enter, model.working_size
    record.parameters_m = sum(p.numel() for p in model.parameters()) / 1e6
    model.to(settings.device)
    clicks = _Clicks(model, settings)
    record.first_multiply_adds_g = count_multiply_adds(clicks.first) / 1e9
    record.next_multiply_adds_g = count_multiply_adds(clicks.another) / 1e9
    if settings.compile:
        _compile(model)
    _time_clicks(record, model, settings)
    # A new one holds nothing of the last image, which would else be freed within the measurement.
    clicks = _Clicks(model, settings)
    record.peak_mib = timed_with_peak(clicks.first, settings.device)[1]
    del clicks
    if settings.train:
        try:
            record.train_images_per_second = _train(model, settings)
        except Exception as error:  # clicks may fit where training does not
            record.error = f"in training: {type(error).__name__}: {error}"


def _create(name: str, settings: Settings) -> tuple[Segmenter, bool]:
    """Return the network, created without any download, and whether it is trained."""
    folder, description = describe(name, pretrained="." in name or is_path(name))
    arguments = dict(description["init_args"])
    if settings.prompts not in (None, arguments.get("prompts", "stem")):
        arguments["prompts"] = settings.prompts
        arguments.pop("fusion", None)
        folder = None  # its weights would not fit
    network = without_downloads({**description, "init_args": arguments})
    weights = None if folder is None else read_safetensors(folder / WEIGHTS)
    model = (
        build(network, Segmenter)
        if name in list_presets()
        else build_to_fit(network, weights, name, Segmenter).train()
    )
    model.adapt(
        Adaptation(
            key_iterations=settings.key_iterations, value_iterations=settings.value_iterations
        )
    )
    if settings.working_size == "image":
        model.working_size = None
    return model, folder is not None


def _compile(model: Segmenter) -> None:
    """Compile the parts in place; between them are lists of clicks, whose lengths change."""
    for part in (model.backbone, model.decoder, model.fusion, model.head):
        if part is not None:
            part.compile()


class _Clicks:
    """An annotator who clicks on a bright disc on a noise background, and undoes the last click."""

    def __init__(self, model: Segmenter, settings: Settings, zoom: str | None = None) -> None:
        height, width = settings.size
        y, x = np.ogrid[:height, :width]
        side = min(height, width)
        disc = (y - height / 2) ** 2 + (x - width / 2) ** 2 < (side / 5) ** 2
        noise = np.random.default_rng(0).integers(0, 128, (height, width, 3), np.uint8)
        self._image = noise + 127 * disc[..., None].astype(np.uint8)
        middle, reach = (width // 2, height // 2), side // 6
        self._on = Click(*middle)
        self._off = Click(width // 4, height // 4, False)
        self._later = [
            self._off,
            Click(middle[0] + reach, middle[1]),
            Click(middle[0] - reach, middle[1]),
            Click(middle[0], middle[1] + 2 * reach - 1, False),
        ]
        self._predictor = Predictor(model, settings.device, zoom)
        self._settings = settings

    def first(self) -> None:
        """Open the image and click."""
        with self._settings.autocast():
            self._predictor.set_image(self._image)
            self._predictor.predict([self._on])

    def another(self) -> None:
        """Click once more."""
        with self._settings.autocast():
            self._predictor.predict([self._off])

    def session(self) -> Iterator[tuple[str, float]]:
        """Click several times and take a click back.

        Yields:
            "first", "next", "zoomed" or "undo", and seconds.
        """
        device = self._settings.device
        yield "first", timed(self.first, device)
        for click in self._later:
            seen = self._predictor.view
            with self._settings.autocast():
                seconds = timed(partial(self._predictor.predict, [click]), device)
            yield "next" if self._predictor.view == seen else "zoomed", seconds
        yield "undo", timed(self._predictor.undo, device)


def _time_clicks(record: Record, model: Segmenter, settings: Settings) -> None:
    clicks = _Clicks(model, settings, zoom=RECOMMENDED_ZOOM)
    for _ in range(settings.warmup):
        list(clicks.session())
    found = defaultdict(list)
    for _ in range(settings.repeats):
        for kind, seconds in clicks.session():
            found[kind].append(1000 * seconds)
    if not found["next"]:  # the zoom follows an untrained network everywhere
        clicks = _Clicks(model, settings)
        for _ in range(settings.repeats):
            found["next"] += [1000 * s for kind, s in clicks.session() if kind == "next"]
    for kind, times in found.items():
        setattr(record, f"{kind}_ms", float(np.median(times)))
        if kind in ("first", "next"):
            setattr(record, f"{kind}_ms_p95", float(np.percentile(times, 95)))


def _train(model: Segmenter, settings: Settings) -> float:
    """Return the training images per second."""
    model.train()
    images, masks, prompts = _training_batch(settings)
    optimizer = torch.optim.RAdam(model.parameters(), lr=1e-4)
    loss_of = BinaryCrossEntropy()

    def step() -> None:
        with settings.autocast():
            logits, auxiliary, _ = model.raw_logits(model.encode(images), prompts)
            loss = loss_of(logits, masks)
            if auxiliary is not None:
                loss = loss + _AUXILIARY_WEIGHT * loss_of(auxiliary, masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in range(max(1, min(settings.warmup, _TRAINING_STEPS))):
        step()
    steps = min(settings.repeats, _TRAINING_STEPS)
    seconds = float(np.median([timed(step, settings.device) for _ in range(steps)]))
    return settings.train_batch / seconds


def _training_batch(settings: Settings) -> tuple[Tensor, Tensor, Prompts]:
    """Draw images with square objects, each with two clicks and a box."""
    batch, side = settings.train_batch, settings.train_size
    images = torch.rand(batch, 3, side, side)
    masks = torch.zeros(batch, side, side, dtype=torch.uint8)
    masks[:, : side // 2, : side // 2] = 1
    points = torch.rand(batch, 2, 2) * (side - 1)
    labels = torch.tensor([[1, 0]]).expand(batch, 2)
    boxes = torch.tensor([[0.0, 0.0, side // 2, side // 2]]).expand(batch, 4)
    prompts = Prompts(*(tensor.to(settings.device) for tensor in (points, labels, boxes)))
    return images.to(settings.device), masks.to(settings.device), prompts


def _main(request: str) -> None:
    given = json.loads(request)
    settings = Settings(**{**given["settings"], "size": tuple(given["settings"]["size"])})
    print(json.dumps(asdict(measure(given["name"], settings))))


if __name__ == "__main__":
    _main(sys.argv[1])
