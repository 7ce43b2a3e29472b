"""The verb tune: selects the adaptation of a trained network (Gabbur et al., 2021, appendix C.4).

The paper searches the precision of the value prior among 0.1, 1, 10 and 100 by the mean number of
clicks to an IoU of 90 %, on objects held out of both training and test. Here keys come first, at
all their iterations and priors, and values after them, with the keys' best setting.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import yaml

from probseg.attention import UPDATES, Adaptation, restored
from probseg.cli.arguments import Parser, add_device, count, new_file, positive
from probseg.data import EVALUATION_SETS, ImageMaskFolder, Selected
from probseg.data.base import InteractiveDataset
from probseg.data.datamodule import spread
from probseg.data.published import find_published
from probseg.errors import DataError, UsageError
from probseg.evaluation import get_protocol
from probseg.evaluation.protocols import Protocol
from probseg.evaluation.simulation import run_objects
from probseg.evaluation.summary import scores_of
from probseg.metrics import Interval, clustered_bootstrap, noc, standard_error
from probseg.models import Segmenter
from probseg.paths import write_text
from probseg.terminal import Terminal
from probseg.texts import count as number_of
from probseg.types import Sample
from probseg.zoo import create_interactive

TARGET = 0.9  # IoU of the number of clicks (NoC) that is minimised

OBJECTS_AT_ONCE = 16

DRAWS = 20_000  # resamples for the bounds far out in the tails that many comparisons need

EXAMPLES = """\
examples:
  probseg tune lite2_unet_prop --data my_folder
  probseg tune models/mine/ --data BSDS500 --split train --objects 100 --value-priors 1 10
  probseg test --config configs/experiment/grabcut.yaml --evaluation.adaptation adaptation.yaml

The search takes (1 + settings of keys + settings of values) evaluations of all objects.
"""


@dataclass(frozen=True)
class Grid:
    """EM iterations, 0 always among them, and prior precisions that a search tries.

    Those of the keys, of the values that clicks propagate to, and of the classifier's weights.
    """

    key_iterations: Sequence[int] = (1, 2)
    key_priors: Sequence[float] = (0.0, 0.001, 0.01, 0.1, 1.0)
    value_iterations: Sequence[int] = (1, 5)
    value_priors: Sequence[float] = (0.1, 1.0, 10.0, 100.0)
    click_iterations: Sequence[int] = (3,)
    click_priors: Sequence[float] = (1.0, 3.0, 10.0, 30.0)

    def of(self, kind: str) -> list[Adaptation]:
        """Return all settings of a kind of update, a key of `UPDATES`."""
        iterations, prior = f"{kind}_iterations", f"{kind}_prior"
        numbers, priors = filter(None, getattr(self, iterations)), getattr(self, f"{prior}s")
        return [
            Adaptation(**{iterations: 0}),
            *(
                Adaptation(**{iterations: number, prior: precision})
                for number, precision in itertools.product(numbers, priors)
            ),
        ]


@dataclass(frozen=True)
class Trial:
    """One setting and its mean number of clicks to an IoU of 90 %; a failure is the last click.

    The difference is to the network as it was trained, by a bootstrap over photographs. With 95 %
    all settings' intervals hold at once (Bonferroni), so that choosing the best does not make it
    look better.
    """

    adaptation: Adaptation  # all None is the network as it was trained
    clicks: float
    clicks_se: float  # over objects
    difference: Interval | None  # None of the network as it was trained

    def __str__(self) -> str:
        """Describe the setting and its results in a line."""
        settings = {k: v for k, v in asdict(self.adaptation).items() if v is not None}
        words = ", ".join(f"{name} {value:g}" for name, value in settings.items()) or "as trained"
        text = f"{words}: {self.clicks:.2f}"
        if math.isfinite(self.clicks_se):  # which takes two objects
            text += f" ± {self.clicks_se:.2f}"
        if self.difference is None or not math.isfinite(self.difference.low):
            return text
        return f"{text} ({self.difference.low:+.2f} to {self.difference.high:+.2f})"


@dataclass(frozen=True)
class Tuning:
    """A search: all settings in their order, the network as it was trained first."""

    trials: tuple[Trial, ...]
    best: Trial  # with the fewest clicks; of equals, the first

    def as_yaml(self, comment: str) -> str:
        """Return the best setting, below a comment, as a file for `--evaluation.adaptation`."""
        lines = "".join(f"# {line}\n" for line in comment.splitlines())
        return lines + yaml.safe_dump(asdict(self.best.adaptation), sort_keys=False)


def settings_of(model: Segmenter, grid: Grid) -> list[list[Adaptation]]:
    """Return the settings to try of each kind of update that a network has, in order."""
    stages = []
    for settings in map(grid.of, UPDATES):
        with restored(model), suppress(ValueError):  # of a network without such layers
            model.adapt(settings[0])
            stages.append(settings)
    if not stages:
        raise UsageError(
            "`model` must have probabilistic attention, whose keys adapt or whose values "
            "propagate, or a classifier that adapts to clicks; this one has nothing to tune"
        )
    return stages


def tune(
    model: Segmenter,
    samples: Sequence[Sample],
    protocol: Protocol,
    grid: Grid,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    batch_size: int = 8,
    tell: Callable[[Trial], None] = lambda trial: None,
) -> Tuning:
    """Search the settings with the fewest clicks; the network's own settings stay.

    The samples should be in no test set, and best in no training set. All settings see the same
    boxes and random numbers. `tell` is called after each.
    """
    stages = settings_of(model, grid)
    level = 1 - 0.05 / sum(map(len, stages))

    def count_clicks(adaptation: Adaptation) -> tuple[npt.NDArray[np.float64], Sequence[str]]:
        """Return the mean number of clicks on each object, and its photograph."""
        records = []
        with restored(model):
            model.adapt(adaptation)
            for start in range(0, len(samples), OBJECTS_AT_ONCE):
                records += run_objects(
                    model,
                    samples[start : start + OBJECTS_AT_ONCE],
                    protocol=protocol,
                    seed=seed,
                    device=device,
                    batch_size=batch_size,
                )
        (scores,) = scores_of(records, protocol.first_result).values()
        return noc(scores.ious, TARGET).mean(axis=1), scores.photos

    trained, photos = count_clicks(Adaptation())
    best = Trial(Adaptation(), float(trained.mean()), float(standard_error(trained)), None)
    tell(best)
    trials = [best]
    for settings in stages:
        start = best.adaptation
        for setting in settings:
            changes = {key: value for key, value in asdict(setting).items() if value is not None}
            adaptation = replace(start, **changes)
            clicks, _ = count_clicks(adaptation)  # (objects,)
            bounds = clustered_bootstrap(clicks - trained, photos, draws=DRAWS, level=level)
            interval = Interval(float(bounds.low), float(bounds.high))
            error = float(standard_error(clicks))
            trial = Trial(adaptation, float(clicks.mean()), error, interval)
            trials.append(trial)
            tell(trial)
            best = trial if trial.clicks < best.clicks else best
    return Tuning(tuple(trials), best)


def run(arguments: Sequence[str]) -> None:
    """Run `probseg tune`."""
    options = _parser().parse_args(list(arguments))
    grid = Grid(**{field.name: getattr(options, field.name) for field in fields(Grid)})
    try:
        for kind in UPDATES:
            grid.of(kind)
    except ValueError as error:
        raise UsageError(str(error)) from error
    model = create_interactive(options.model, pretrained=True).to(options.device)
    total = 1 + sum(map(len, settings_of(model, grid)))  # and the network as it was trained
    objects = _objects(options)
    if options.held_out is not None:
        objects = Selected(objects, held_out=options.held_out)
    subset = spread(objects, options.objects)
    samples = [subset[i] for i in range(len(subset))]  # type: ignore[arg-type]
    if not samples:
        raise DataError(f"--data {options.data}: expected at least one object, got none")
    protocol = get_protocol(options.protocol)
    if protocol.is_random:
        protocol = replace(protocol, trials=options.trials)
    console = Terminal(highlight=False)
    on = f"{number_of(len(samples), 'object')} of {objects.name}"
    console.print(
        f"{options.model} on {on}, protocol {protocol.name}: "
        "mean clicks to an IoU of 90 %, ± standard error, and the interval of the difference (95 % "
        "for all settings together)"
    )

    runs = len(samples) * protocol.trials
    console.print(
        f"{number_of(total, 'evaluation')}, each of {number_of(runs, 'run')} of at most "
        f"{number_of(protocol.max_clicks, 'click')}"
    )
    begin, done = time.monotonic(), itertools.count(1)

    def tell(trial: Trial) -> None:
        number = next(done)
        left = (time.monotonic() - begin) / number * (total - number)
        rough = f"{left / 60:.0f} min" if left < 5400 else f"{left / 3600:.1f} h"
        progress = f"[{number} of {total}, {f'{left:.0f} s' if left < 90 else rough} left]"
        console.print(f"  {trial} {progress}", soft_wrap=True, markup=False)

    tuning = tune(
        model,
        samples,
        protocol,
        grid,
        seed=options.seed,
        device=options.device,
        batch_size=options.batch_size,
        tell=tell,
    )
    comment = (
        f"Found by `probseg tune` for {options.model} on {on} "
        f"(protocol {protocol.name}, seed {options.seed}).\n"
        f"As trained: {tuning.trials[0]}\nBest: {tuning.best}"
    )
    write_text(options.output, tuning.as_yaml(comment))
    console.print(f"best: {tuning.best}\n  {options.output}", soft_wrap=True, markup=False)
    interval = tuning.best.difference
    if interval is None or not interval.high < 0:  # of a single photograph, it is NaN
        console.print(
            "No setting is shown to be better than the network as it was trained; "
            "more objects would tell."
        )


def _objects(options: argparse.Namespace) -> InteractiveDataset:
    """Return the objects to tune on, which must not be from a test set."""
    dataset, split, root = find_published(options.data), options.split, options.root
    if dataset is None and (dataset := find_published(Path(options.data).name)) is not None:
        root = Path(options.data)  # the folder of a known set is that set
    if dataset is None:
        if options.root is not None:
            raise UsageError(f"--root: {options.data} is a folder itself; leave it out")
        return ImageMaskFolder(options.data, split=split)
    open_splits = [
        known
        for known in filter(None, dataset.source.full)
        if known in ("train", "train_noval")
        or (dataset.name not in EVALUATION_SETS and known != "test")
    ]
    if split not in open_splits and (split in dataset.source.full or not open_splits):
        raise UsageError(
            f"--data {dataset.name}{f' --split {split}' if split else ''}: results are reported on "
            "this set, so nothing may be chosen on it; take objects that no test has"
        )
    if split not in open_splits:
        raise UsageError(
            f"--split: expected one of {', '.join(open_splits)} of {dataset.name}, got {split}"
        )
    # Unlike `PublishedDataset.complete`, this leaves out the photographs of test sets.
    kind: type[Any] = dataset
    data: InteractiveDataset = kind(root=root, split=split)
    return data


def _parser() -> Parser:
    grid = Grid()
    parser = Parser(
        prog="probseg tune",
        description="Select the adaptation of a trained network at inference: iterations and prior "
        "precisions of keys, values and classifier, by the mean number of clicks to an "
        "IoU of 90 % on held-out objects.",
        epilog=EXAMPLES,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="zoo model, run, or model folder (with a slash)")
    add("--data", required=True, help="folder with images/ and masks/, or a data set by name")
    add("--split", help="split of the data set; of a folder: file with a list of image stems")
    add(
        "--held-out",
        type=positive,
        metavar="N",
        help="use only the photographs that `hold_out: N` excludes from training, one in N",
    )
    add("--root", type=Path, metavar="DIR", help="folder of the data set, if not the usual one")
    add(
        "--objects",
        type=positive,
        default=50,
        help="largest number of objects (default: %(default)s)",
    )
    add("--protocol", default="gabbur2021", help="how clicks are simulated (default: %(default)s)")
    add("--trials", type=positive, default=1, help="runs per object (default: %(default)s)")
    for part in ("key", "value", "click"):
        for name, kind, metavar, what in (
            (f"{part}_iterations", count, "N", "EM iterations"),
            (f"{part}_priors", float, "P", "prior precisions"),
        ):
            tried = getattr(grid, name)
            add(
                f"--{name.replace('_', '-')}",
                type=kind,
                nargs="+",
                default=tried,
                metavar=metavar,
                help=f"{what} of the {part}s to try (default: {' '.join(map(str, tried))})",
            )
    add(
        "--seed", type=int, default=0, help="seed of the simulated annotator (default: %(default)s)"
    )
    add_device(parser)
    add(
        "--batch-size",
        type=positive,
        default=8,
        help="images answered together (default: %(default)s)",
    )
    add(
        "--output",
        type=new_file,
        default="adaptation.yaml",
        metavar="FILE",
        help="file for the settings (default: %(default)s)",
    )
    return parser
