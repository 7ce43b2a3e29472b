"""The verb predict: its options, which are checked before torch is imported."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from probseg.cli.arguments import Parser, add_device, check_writable, positive
from probseg.descriptions import RECOMMENDED
from probseg.errors import UsageError
from probseg.formats import COCO, FORMATS, MASKS
from probseg.formats.prompts import parse_step
from probseg.images import read_image
from probseg.types import Step

EXAMPLES = """\
examples:
  probseg predict photo.jpg --click 120,90 --click 300,40,- --output mask.png
  probseg predict photo.jpg --box 40,30,310,260 --format overlays --output overlay.png
  probseg predict photographs --prompts boxes.csv --output results
  probseg predict val2017 --prompts instances.json --format masks,coco --output results
  probseg predict street --model emanet_lite0 --output classes   # class maps: no prompts

After an interruption, the same command continues. docs/predict.md describes files of prompts.
"""


def run(arguments: Sequence[str]) -> None:
    """Run `probseg predict`.

    The status is 1 if photographs or objects of a folder have no mask, 143 after SIGTERM and 130
    after Ctrl-C.
    """
    options = _parser().parse_args(list(arguments))
    for wrong, fault in _faults(options):
        if wrong:
            raise UsageError(fault)
    check_writable("--output", options.output)
    pixels = None if options.images.is_dir() else read_image(options.images)
    from probseg.cli.predict_photographs import predict_folder, predict_photograph

    if pixels is None:
        predict_folder(options)
    else:
        predict_photograph(options, pixels)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="probseg predict",
        description="Write the masks of objects that clicks and boxes point at, in a photograph or "
        "in a folder of them; or the class of each pixel, with a model for semantic segmentation.",
        epilog=EXAMPLES,
    )
    add = parser.add_argument
    add("images", type=Path, metavar="PHOTO|FOLDER")
    add(
        "--click",
        type=_click,
        action="append",
        default=[],
        dest="clicks",
        metavar="X,Y[,-]",
        help="column and row of a pixel of the object, with ,- of the background; repeatable",
    )
    add(
        "--box",
        type=_box,
        action="append",
        default=[],
        dest="boxes",
        metavar="X0,Y0,X1,Y1",
        help="around the object, half-open",
    )
    add("--prompts", type=Path, metavar="FILE", help="boxes and clicks of a folder, .csv or .json")
    add(
        "--output",
        type=Path,
        required=True,
        metavar="PATH",
        help="file for the result of a photograph, or folder for the results of a folder",
    )
    add(
        "--format",
        type=_formats,
        default=[MASKS],
        dest="formats",
        metavar="LIST",
        help="masks (PNG), coco (JSON with run lengths), overlays (pictures); of a folder several, "
        "with commas between (default: masks)",
    )
    add(
        "--model",
        default=RECOMMENDED,
        help="model of the zoo, model folder, run or checkpoint (default: %(default)s)",
    )
    add_device(parser)
    folders = parser.add_argument_group("folders")
    add = folders.add_argument
    add(
        "--batch-size",
        type=positive,
        default=4,
        metavar="N",
        help="photographs, and objects, that are answered together; as many photographs are read "
        "ahead, and as many are being written: less takes less memory (default: %(default)s)",
    )
    add(
        "--workers",
        type=positive,
        default=1,
        metavar="N",
        help="threads that read photographs, and as many that write results (default: 1)",
    )
    add("--processes", type=positive, default=1, metavar="N", help="on this machine (default: 1)")
    add("--nodes", type=positive, default=1, metavar="N", help="machines (default: 1)")
    return parser


def _faults(options: argparse.Namespace) -> Iterator[tuple[bool, str]]:
    """Yield what is wrong with the options of a folder or a photograph, if it applies."""
    images, output, formats = options.images, options.output, options.formats
    yield not images.exists(), f"{images}: no such photograph or folder"
    if images.is_dir():
        prompted = bool(options.clicks or options.boxes)
        yield prompted, "--click and --box are for one photograph; give --prompts FILE for a folder"
        kind, colon, _ = options.device.partition(":")
        fault = f"--device {options.device}: names one device; give {kind} for several processes"
        yield bool(colon) and options.processes > 1, fault
        yield output.is_file(), f"--output {output}: must be a folder for a folder of photographs"
        return
    fault = "--box: an object has one box; for several objects, give a folder and --prompts FILE"
    yield len(options.boxes) > 1, fault
    fault = "--prompts is for a folder of photographs; give --click and --box for a single one"
    yield options.prompts is not None, fault
    fault = "--processes and --nodes are for a folder; leave them out for a photograph"
    yield options.processes * options.nodes > 1, fault
    yield len(formats) > 1, f"--format: a photograph has one output file, got {','.join(formats)}"
    suffix = ".json" if formats == [COCO] else ".png"
    fault = f"--output must be a file ending in {suffix} for --format {formats[0]}, got {output}"
    yield output.suffix.lower() != suffix or output.is_dir(), fault
    fault = f"--output {output}: is the photograph itself, which would be lost; name another file"
    yield output.exists() and output.samefile(images), fault


def _click(text: str) -> Step:
    try:
        x, y, sign = [*text.split(","), "+"][:3]
        if sign not in ("+", "-") or text.count(",") > 2:
            raise ValueError(sign)
        return parse_step({"type": "click", "x": float(x), "y": float(y), "positive": sign != "-"})
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be X,Y or X,Y,- in pixels, got {text!r}") from error


def _box(text: str) -> Step:
    try:
        return parse_step({"type": "box", "box": [float(number) for number in text.split(",")]})
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be X0,Y0,X1,Y1 in pixels, got {text!r}") from error


def _formats(text: str) -> list[str]:
    names = list(dict.fromkeys(text.split(",")))
    if not set(names) <= set(FORMATS):
        raise argparse.ArgumentTypeError(
            f"must be some of masks, coco and overlays, with commas between, got {text!r}"
        )
    return names
