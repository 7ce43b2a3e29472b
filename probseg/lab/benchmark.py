"""Cost of a network: size, multiply-adds, and time and memory of clicks and of training.

`python -m probseg.lab.benchmark JSON` measures one network in a separate process, see
`measure_elsewhere`: neither buffers nor a high-water mark of memory are inherited from another.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

import probseg
from probseg.attention import Adaptation
from probseg.cli.arguments import DEVICES, Parser, count, device, new_file, positive
from probseg.errors import UnknownNameError, UsageError
from probseg.evaluation.versions import environment
from probseg.geometry import RECOMMENDED_ZOOM, shrink_to
from probseg.interact.predictor import Predictor
from probseg.lab.gauges import MULTIPLY_ADDS, count_multiply_adds, timed, timed_with_peak
from probseg.losses import BinaryCrossEntropy
from probseg.models import Segmenter, build, list_presets, task_of
from probseg.models.build import without_downloads
from probseg.paths import is_path, write_text
from probseg.terminal import Grid, console, print_table
from probseg.texts import tell
from probseg.types import Click, Prompts
from probseg.weight_files import read_safetensors
from probseg.zoo import list_models
from probseg.zoo.index import WEIGHTS
from probseg.zoo.lookup import find_description, find_run
from probseg.zoo.store import build_to_fit
from probseg.zoo.trained import description_for, read_trained

# meaning of each number of a `Record`
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

_TRAINING_STEPS = 5
_AUXILIARY_WEIGHT = 0.4


def _size(text: str) -> tuple[int, int]:
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) > 0 for side in sides):
        raise argparse.ArgumentTypeError(
            f"must be a side in pixels such as 512, or HxW such as 384x512, got {text!r}"
        )
    return int(sides[0]), int(sides[-1])


def _option(value: Any, help: str, **more: Any) -> Any:  # noqa: ANN401 (as argparse's)
    """Return a field of `Settings` that is an option of the verb, too."""
    return field(default=value, metadata={"help": help, **more})


_BY_DEFAULT = "(default: %(default)s)"


@dataclass(frozen=True)
class Settings:
    """Settings of the measurements, and options of `probseg bench model`.

    Those of the network are None where they are its own. "image" as `working_size`: every network
    works at the image's size, so that their costs compare. "own": each reduces the image, as in
    use.
    """

    size: tuple[int, int] = _option(
        (512, 512), "side of the image in pixels, or HxW (default: 512)", type=_size
    )
    device: str = _option(
        "cpu",
        f"{DEVICES} (default: the accelerator of this machine, or cpu)",
        type=device,
        default=None,
    )
    threads: int | None = _option(
        None, "CPU threads (default: PyTorch's choice)", type=positive, metavar="N"
    )
    repeats: int = _option(20, f"images clicked on {_BY_DEFAULT}", type=positive)
    warmup: int = _option(3, f"warm-up images {_BY_DEFAULT}", type=count)
    train: bool = _option(True, "do not measure training", action="store_false")
    train_size: int = _option(
        256, f"side of the training images in pixels {_BY_DEFAULT}", type=positive
    )
    train_batch: int = _option(8, f"training images in a step {_BY_DEFAULT}", type=positive)
    precision: Literal["32", "bf16"] = _option("32", "bf16: autocast", choices=["32", "bf16"])
    compile: bool = _option(False, "compile the parts of the network", action="store_true")
    prompts: Literal["stem", "head"] | None = _option(
        None, "where prompts enter (default: the model's choice)", choices=["stem", "head"]
    )
    key_iterations: int | None = _option(
        None, "EM iterations of the keys (default: the model's)", type=count, metavar="N"
    )
    value_iterations: int | None = _option(
        None, "EM iterations of values (default: the model's)", type=count, metavar="N"
    )
    working_size: Literal["image", "own"] = _option(
        "image",
        f"all models work at the size of the image, or each at its own {_BY_DEFAULT}",
        choices=["image", "own"],
    )

    def autocast(self) -> torch.autocast:
        """Return the context that the network computes in."""
        kind = torch.device(self.device).type
        return torch.autocast(kind, torch.bfloat16, enabled=self.precision == "bf16")


@dataclass
class Record:
    """Measurements of a network; None if not measured, see `CONVENTIONS`."""

    model: str
    prompts: str | None = None
    working_size: int | None = None  # longest side in pixels; None is that of the image
    trained: bool | None = None  # whether it has the zoo's weights
    parameters_m: float | None = None
    first_multiply_adds_g: float | None = None  # thousand millions
    next_multiply_adds_g: float | None = None
    first_ms: float | None = None
    first_ms_p95: float | None = None
    next_ms: float | None = None
    next_ms_p95: float | None = None
    zoomed_ms: float | None = None  # None where the zoom never moved
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
    """Measure a network in this process; a failure is the `error` of the record."""
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
    if settings.compile:  # in place; between the parts are lists of clicks, of changing lengths
        for part in (model.backbone, model.decoder, model.fusion, model.head):
            if part is not None:
                part.compile()
    clicks = _Clicks(model, settings, zoom=RECOMMENDED_ZOOM)
    for _ in range(settings.warmup):
        list(clicks.session())
    times = defaultdict(list)
    for _ in range(settings.repeats):
        for kind, seconds in clicks.session():
            times[kind].append(1000 * seconds)
    if not times["next"]:  # the zoom follows an untrained network everywhere
        clicks = _Clicks(model, settings)
        for _ in range(settings.repeats):
            times["next"] += [1000 * s for kind, s in clicks.session() if kind == "next"]
    for kind, milliseconds in times.items():
        setattr(record, f"{kind}_ms", float(np.median(milliseconds)))
        if kind in ("first", "next"):
            setattr(record, f"{kind}_ms_p95", float(np.percentile(milliseconds, 95)))
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
    weights: dict[str, Tensor] | None = None
    if (run := find_run(name)) is not None:
        trained = read_trained(run)
        description, weights = trained.description, trained.weights
    else:
        folder, description = find_description(name, pretrained="." in name or is_path(name))
        weights = None if folder is None else read_safetensors(folder / WEIGHTS)
    arguments = dict(description["init_args"])
    if settings.prompts not in (None, arguments.get("prompts", "stem")):
        arguments["prompts"] = settings.prompts
        arguments.pop("fusion", None)
        weights = None  # which would not fit
    network = without_downloads({**description, "init_args": arguments})
    model = (
        build(network, Segmenter)
        if name in list_presets()
        else build_to_fit(network, weights, name, Segmenter).train()
    )
    model.adapt(Adaptation(settings.key_iterations, value_iterations=settings.value_iterations))
    if settings.working_size == "image":
        model.working_size = None
    return model, weights is not None


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
        """Click, take a click back; yield "first", "next", "zoomed" or "undo", and seconds."""
        device = self._settings.device
        yield "first", timed(self.first, device)
        for click in self._later:
            view = self._predictor.view
            with self._settings.autocast():
                seconds = timed(partial(self._predictor.predict, [click]), device)
            yield "next" if self._predictor.view == view else "zoomed", seconds
        yield "undo", timed(self._predictor.undo, device)


def _train(model: Segmenter, settings: Settings) -> float:
    """Return the training images per second, of squares that each have two clicks and a box."""
    model.train()
    batch, side = settings.train_batch, settings.train_size
    images = torch.rand(batch, 3, side, side)
    masks = torch.zeros(batch, side, side, dtype=torch.uint8)
    masks[:, : side // 2, : side // 2] = 1
    points = torch.rand(batch, 2, 2) * (side - 1)
    labels = torch.tensor([[1, 0]]).expand(batch, 2)
    boxes = torch.tensor([[0.0, 0.0, side // 2, side // 2]]).expand(batch, 4)
    tensors = (images, masks, points, labels, boxes)
    images, masks, *parts = (tensor.to(settings.device) for tensor in tensors)
    prompts = Prompts(*parts)
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


EXAMPLES = """\
examples:
  probseg bench model resnet18_csa fast_resnet18_csa
  probseg bench model lite2_unet_prop.objects lite0_unet_prop.objects --working-size own
  probseg bench model "micro_*" --size 256 --device cpu --threads 2 --json micro.json
  probseg bench model resnet18_csa --prompts head --key-iterations 0 --no-train
"""
NOTES = "what the numbers mean:\n" + "\n".join(
    f"  {name}: {meaning}" for name, meaning in CONVENTIONS.items()
)


def run(arguments: Sequence[str]) -> None:
    """Run `probseg bench`; exit with status 1 if a model could not be measured."""
    parser = Parser(
        prog="probseg bench",
        description="Measure the cost of models, each in a separate process.",
        epilog=EXAMPLES,
    )
    verbs = parser.add_subparsers(required=True, metavar="model")
    verb = verbs.add_parser(
        "model",
        help="parameters, multiply-adds, milliseconds of a click, memory and training throughput",
        description="Measure parameters, multiply-adds, milliseconds of the first and of a later "
        "click, memory and training throughput of models.",
        epilog=f"{EXAMPLES}\n{NOTES}\n",
    )
    add = verb.add_argument
    add("name", nargs="+", help="preset, architecture.tag of the zoo, run, folder/, or a pattern")
    for option in fields(Settings):
        flag = "no-train" if option.name == "train" else option.name.replace("_", "-")
        add(f"--{flag}", dest=option.name, **{"default": option.default, **option.metadata})
    add("--json", type=new_file, metavar="FILE", help="write the numbers to a file")
    options = parser.parse_args(list(arguments))
    json_file: Path | None = options.json
    names: list[str] = []
    for name in options.name:
        if any(sign in name for sign in "*?["):
            matching = list_models(name, pretrained="." in name, task="interactive")
            if not matching:
                raise UnknownNameError(kind="model", name=name, known=list_presets())
            names += matching
            continue
        description = description_for(name, pretrained="." in name or is_path(name))
        if task_of(description) != "interactive":
            raise UsageError(
                f"`name` must be a model for clicks, got {name!r}, which is for semantic "
                "segmentation"
            )
        names.append(name)
    names = list(dict.fromkeys(names))
    if options.device is None:
        has_accelerator = torch.accelerator.is_available()
        options.device = str(torch.accelerator.current_accelerator()) if has_accelerator else "cpu"
    settings = Settings(**{each.name: getattr(options, each.name) for each in fields(Settings)})
    records: list[Record] = []
    for number, name in enumerate(names, start=1):
        tell(f"measuring {name} ({number} of {len(names)})\n", sys.stderr)
        records.append(measure_elsewhere(name, settings))
        if json_file is not None:  # after each, so that a long run leaves something if it is ended
            machine = environment(settings.device)
            result = {
                "conventions": CONVENTIONS,
                "environment": {**machine, "threads": settings.threads or machine["threads"]},
                "options": asdict(settings),
                "records": [asdict(record) for record in records],
            }
            write_text(json_file, json.dumps(result, indent=2) + "\n")
    _print_table(records, settings)
    failed = [record for record in records if record.error is not None]
    for record in failed:
        console().print(f"{record.model} failed: {record.error}", style="red", markup=False)
    if failed:
        raise SystemExit(1)


def _print_table(records: Sequence[Record], settings: Settings) -> None:
    height, width = settings.size
    title = f"Clicks on an image of {height} x {width} pixels (H x W), {settings.device}"
    if settings.train:
        title += f"; training with {settings.train_batch} x {settings.train_size} pixels"
    header = [
        "model",
        "prompts",
        "works at\npixels",
        "parameters\nM",
        "first click\nMACs, G",
        "next click\nMACs, G",
        "first click\nms",
        "next click\nms",
        "zoomed\nms",
        "undo\nms",
        "peak\nMiB",
        "training\nimages/s",
    ]
    rows = []
    for record in records:
        works_at = shrink_to(settings.size, record.working_size)
        rows.append(
            [
                record.model,
                record.prompts or "failed",
                f"{works_at[0]}x{works_at[1]}" if record.prompts else "",
                _number(record.parameters_m, 3),
                _number(record.first_multiply_adds_g, 3),
                _number(record.next_multiply_adds_g, 3),
                f"{_number(record.first_ms, 1)} ({_number(record.first_ms_p95, 1)})",
                f"{_number(record.next_ms, 1)} ({_number(record.next_ms_p95, 1)})",
                _number(record.zoomed_ms, 1),
                _number(record.undo_ms, 1),
                _number(record.peak_mib, 1),
                _number(record.train_images_per_second, 1),
            ]
        )
    caption = f"MACs: {CONVENTIONS['multiply_adds']}. ms: median (p95)."
    print_table(console(), title, Grid(header, rows), caption)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    options = request["settings"]
    options["size"] = tuple(options["size"])
    print(json.dumps(asdict(measure(request["name"], Settings(**options)))))
