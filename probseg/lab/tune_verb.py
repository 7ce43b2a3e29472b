"""The verb tune."""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from probseg.attention import UPDATES
from probseg.cli.arguments import Parser, add_device, check_writable, count, new_file, positive
from probseg.data import EVALUATION_SETS, ImageMaskFolder, Selected
from probseg.data.base import InteractiveDataset
from probseg.data.datamodule import spread
from probseg.data.published import find_published
from probseg.errors import DataError, UsageError
from probseg.evaluation import get_protocol
from probseg.lab.tuning import Grid, Trial, settings_of, tune
from probseg.paths import write_text
from probseg.terminal import Terminal
from probseg.zoo import create_interactive
from probseg.zoo.lookup import describe

FILE = "adaptation.yaml"

EXAMPLES = """\
examples:
  probseg tune lite2_unet_prop --data my_folder
  probseg tune models/mine/ --data BSDS500 --split train --objects 100 --value-priors 1 10
  probseg test --config configs/experiment/grabcut.yaml --evaluation.adaptation FILE

The search takes (1 + settings of keys + settings of values) evaluations of all objects.
"""


def run(arguments: Sequence[str]) -> None:
    """Run `probseg tune`.

    Args:
        arguments: Command-line arguments after `tune`.

    Raises:
        DataError: If there are no objects.
        UsageError: If the data are a test set, the network cannot adapt, or the file cannot be
            written.
    """
    options = _parser().parse_args(list(arguments))
    grid = _grid(options)
    folder, _ = describe(options.model, pretrained=True)
    model = create_interactive(options.model, pretrained=True).to(options.device)
    assert folder is not None, "trained weights have a folder"
    output: Path = options.output or folder / FILE
    check_writable("--output", output)
    objects = _objects(options)
    if options.held_out is not None:
        objects = Selected(objects, held_out=options.held_out)
    kept = spread(objects, options.objects)
    samples = [kept[i] for i in range(len(kept))]  # type: ignore[arg-type]
    if not samples:
        msg = f"--data {options.data}: expected at least one object, got none"
        raise DataError(msg)
    protocol = get_protocol(options.protocol)
    if protocol.is_random:
        protocol = replace(protocol, trials=options.trials)
    console = Terminal(highlight=False)
    console.print(
        f"{options.model} on {len(samples)} objects of {objects.name}, protocol {protocol.name}: "
        "mean clicks to an IoU of 90 %, ± standard error, and the interval of the difference (95 % "
        "for all settings together)"
    )

    total = 1 + sum(map(len, settings_of(model, grid)))  # and the network as it was trained
    runs = len(samples) * protocol.trials
    console.print(
        f"{total} evaluations, each of {runs} runs of at most {protocol.max_clicks} clicks"
    )
    begin, done = time.monotonic(), itertools.count(1)

    def tell(trial: Trial) -> None:
        number = next(done)
        left = (time.monotonic() - begin) / number * (total - number)
        progress = f"[{number} of {total}, {_rough(left)} left]"
        console.print(f"  {_in_words(trial)} {progress}", soft_wrap=True, markup=False)

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
        f"Found by `probseg tune` for {options.model} on {len(samples)} objects of {objects.name} "
        f"(protocol {protocol.name}, seed {options.seed}).\n"
        f"As trained: {_in_words(tuning.trials[0])}\nBest: {_in_words(tuning.best)}"
    )
    write_text(output, tuning.as_yaml(comment))
    console.print(f"best: {_in_words(tuning.best)}\n  {output}", soft_wrap=True, markup=False)
    interval = tuning.best.difference
    if interval is None or not interval.high < 0:  # of a single photograph, it is NaN
        console.print(
            "No setting is shown to be better than the network as it was trained; "
            "more objects would tell."
        )


def _grid(options: argparse.Namespace) -> Grid:
    """Return the grid of settings.

    Raises:
        UsageError: If a setting is out of range.
    """
    grid = Grid(
        options.key_iterations,
        options.key_priors,
        options.value_iterations,
        options.value_priors,
        options.click_iterations,
        options.click_priors,
    )
    try:
        for kind in UPDATES:
            grid.of(kind)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return grid


def _in_words(trial: Trial) -> str:
    given = [f"{k} {v:g}" for k, v in asdict(trial.adaptation).items() if v is not None]
    text = f"{', '.join(given) or 'as trained'}: {trial.clicks:.2f} ± {trial.clicks_se:.2f}"
    if trial.difference is None:
        return text
    low, high = trial.difference
    return f"{text} ({low:+.2f} to {high:+.2f})" if math.isfinite(low) else text


def _rough(seconds: float) -> str:
    """Return a time in the unit that fits."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _objects(options: argparse.Namespace) -> InteractiveDataset:
    """Return the objects to tune on, which must not be from a test set.

    Raises:
        UsageError: If they are.
    """
    dataset, split, root = find_published(options.data), options.split, options.root
    if dataset is None and (dataset := find_published(Path(options.data).name)) is not None:
        root = Path(options.data)  # the folder of a known set is that set
    if dataset is None:
        if options.root is not None:
            msg = f"--root: {options.data} is a folder itself; leave it out"
            raise UsageError(msg)
        return ImageMaskFolder(options.data, split=split)
    open_splits = [
        known
        for known in filter(None, dataset.source.full)
        if known in ("train", "train_noval")
        or (dataset.name not in EVALUATION_SETS and known != "test")
    ]
    if split not in open_splits and (split in dataset.source.full or not open_splits):
        msg = (
            f"--data {dataset.name}{f' --split {split}' if split else ''}: results are reported on "
            "this set, so nothing may be chosen on it; take objects that no test has"
        )
        raise UsageError(msg)
    if split not in open_splits:
        msg = f"--split: expected one of {', '.join(open_splits)} of {dataset.name}, got {split}"
        raise UsageError(msg)
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
    add("model", metavar="MODEL", help="zoo model, or the path of a model folder (with a slash)")
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
        metavar="FILE",
        help=f"file for the settings (default: {FILE} in the model's folder)",
    )
    return parser
