"""The verb tune."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from probseg.cli.arguments import Parser
from probseg.data import EVALUATION_SETS, ImageMaskFolder
from probseg.data.base import InteractiveDataset
from probseg.data.sources import find_source
from probseg.errors import DataError, UsageError
from probseg.interact import get_protocol
from probseg.interact.tuning import Grid, Trial, tune
from probseg.types import Sample
from probseg.zoo import create_model
from probseg.zoo.create import describe

FILE = "adaptation.yaml"

EXAMPLES = """\
examples:
  probseg tune resnet16_csa --data my_folder
  probseg tune models/mine/ --data BSDS500 --split train --objects 100 --value-priors 1 10
  probseg test --config configs/experiment/grabcut.yaml --evaluation.adaptation FILE

The search takes (1 + settings of keys + settings of values) evaluations of all objects.
"""


def run(arguments: Sequence[str]) -> None:
    """Run ``probseg tune``.

    Args:
        arguments: What follows ``tune`` on the command line.

    Raises:
        DataError: If there are no objects.
        UsageError: If the data are a test set, the network cannot adapt, or the file cannot be
            written.
    """
    options = _parser().parse_args(list(arguments))
    folder, _ = describe(options.model, pretrained=True)
    output: Path = options.output or (folder or Path()) / FILE
    if not output.parent.is_dir():
        msg = f"--output {output}: its folder does not exist; make it first"
        raise UsageError(msg)
    objects = _objects(options)
    samples = _spread(objects, options.objects)
    if not samples:
        msg = f"--data {options.data}: expected at least one object, got none"
        raise DataError(msg)
    protocol = get_protocol(options.protocol)
    if protocol.is_random:
        protocol = replace(protocol, trials=options.trials)
    model = create_model(options.model, pretrained=True).to(options.device)
    console = Console(highlight=False)
    console.print(
        f"{options.model} on {len(samples)} objects of {objects.name}, protocol {protocol.name}: "
        "mean clicks to an IoU of 90 %, and the interval of 95 % of the difference"
    )

    def tell(trial: Trial) -> None:
        console.print(f"  {_in_words(trial)}")

    try:
        tuning = tune(
            model,
            samples,
            protocol,
            Grid(
                options.key_iterations,
                options.key_priors,
                options.value_iterations,
                options.value_priors,
            ),
            seed=options.seed,
            device=options.device,
            batch_size=options.batch_size,
            tell=tell,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    comment = (
        f"Found by `probseg tune` for {options.model} on {len(samples)} objects of {objects.name} "
        f"(protocol {protocol.name}, seed {options.seed}).\n"
        f"As trained: {_in_words(tuning.trials[0])}\nBest: {_in_words(tuning.best)}"
    )
    try:
        output.write_text(tuning.as_yaml(comment), encoding="utf-8")
    except OSError as error:
        msg = f"--output {output}: cannot be written ({error}); choose another file"
        raise UsageError(msg) from error
    console.print(f"best: {_in_words(tuning.best)}\n  {output}", soft_wrap=True)
    interval = tuning.best.difference
    if interval is None or interval.high >= 0:
        console.print(
            "No setting is shown to be better than the network as it was trained; "
            "more objects would tell."
        )


def _in_words(trial: Trial) -> str:
    given = [f"{k} {v:g}" for k, v in asdict(trial.adaptation).items() if v is not None]
    text = f"{', '.join(given) or 'as trained'}: {trial.clicks:.2f} ± {trial.clicks_se:.2f}"
    if trial.difference is None:
        return text
    return f"{text} ({trial.difference.low:+.2f} to {trial.difference.high:+.2f})"


def _objects(options: argparse.Namespace) -> InteractiveDataset:
    """Return the objects to tune on, which must not be those of a test.

    Raises:
        UsageError: If they are.
    """
    source = find_source(options.data)
    if source is None:
        return ImageMaskFolder(options.data)
    split = options.split
    if source.splits and split is None:
        msg = f"--split: expected one of {', '.join(source.splits)} of {source.name}"
        raise UsageError(msg)
    has_training = source.name in ("PascalVOC", "SBD") and str(split).startswith("train")
    if (source.name in EVALUATION_SETS and not has_training) or split == "test":
        msg = (
            f"--data {source.name}{f' --split {split}' if split else ''}: results are reported on "
            "this set, so nothing may be chosen on it; take objects that no test has"
        )
        raise UsageError(msg)
    return source.build(source.folder(options.root), split)


def _spread(objects: InteractiveDataset, most: int) -> list[Sample]:
    """Read at most so many objects, evenly spread."""
    count = min(len(objects), most)
    return [objects[i * len(objects) // count] for i in range(count)]


def _parser() -> Parser:
    grid = Grid()
    parser = Parser(
        prog="probseg tune",
        description="Choose how a trained network adapts at inference: iterations and prior "
        "precisions of key adaptation and value propagation, by the mean number of clicks to an "
        "IoU of 90 % on held-out objects.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="zoo model, or the path of a model folder (with a slash)")
    add("--data", required=True, help="folder with images/ and masks/, or a data set by name")
    add("--split", help="split of a data set that has some")
    add("--root", type=Path, metavar="DIR", help="folder of the data set, if not in its place")
    add("--objects", type=_positive, default=50, help="most objects; %(default)s")
    add("--protocol", default="gabbur2021", help="how clicks are simulated; %(default)s")
    add("--trials", type=_positive, default=1, help="runs per object; %(default)s")
    add("--key-iterations", type=int, nargs="+", default=grid.key_iterations, metavar="N")
    add("--key-priors", type=float, nargs="+", default=grid.key_priors, metavar="P")
    add("--value-iterations", type=int, nargs="+", default=grid.value_iterations, metavar="N")
    add("--value-priors", type=float, nargs="+", default=grid.value_priors, metavar="P")
    add("--seed", type=int, default=0, help="of the simulated annotator; %(default)s")
    add("--device", default="cpu", help="where to compute; %(default)s")
    add("--batch-size", type=_positive, default=8, help="most images at once; %(default)s")
    add("--output", type=Path, metavar="FILE", help=f"default: {FILE} in the model's folder")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        msg = f"expected at least 1, got {text}"
        raise argparse.ArgumentTypeError(msg)
    return number
