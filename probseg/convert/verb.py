"""The verb data convert."""

from __future__ import annotations

import argparse
import math
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from probseg.cli.arguments import check_writable
from probseg.convert import FOLDERS, READERS, WRITERS, Request, convert
from probseg.convert.parts import IMAGES, OBJECTS
from probseg.errors import UsageError
from probseg.paths import no_file, no_folder
from probseg.terminal import bars, console
from probseg.texts import count, one_line

if TYPE_CHECKING:
    from probseg.cli.arguments import Verbs


def add_verb(verbs: Verbs) -> None:
    """Add convert to the verbs of `probseg data`."""
    verb = verbs.add_parser(
        "convert",
        help="masks from one file format to another",
        description="Write the masks of A as B in another format, and print what it cannot hold. "
        f"Formats to read: {', '.join(READERS)}; to write: {', '.join(WRITERS)}.",
    )
    verb.add_argument("source", type=Path, metavar="A", help="a folder, or a JSON file")
    verb.add_argument("target", type=Path, metavar="B", help="a new folder, or a new JSON file")
    verb.add_argument(
        "--from", dest="reader", choices=READERS, metavar="FORMAT", required=True, help="of A"
    )
    verb.add_argument(
        "--to", dest="writer", choices=WRITERS, metavar="FORMAT", required=True, help="of B"
    )
    verb.add_argument(
        "--images",
        type=Path,
        metavar="DIR",
        help="photographs, to read png, index and yolo, which do not have their names and sizes",
    )
    verb.add_argument(
        "--tolerance",
        type=_tolerance,
        default=1.0,
        metavar="PIXELS",
        help="largest distance of simplified outlines (-polygons, yolo) from the exact ones; 0 "
        "keeps every pixel (default: %(default)s)",
    )
    verb.add_argument(
        "--storage",
        type=_storage,
        metavar="PATH",
        help="folder of the photographs inside the document root of Label Studio, to write "
        "label-studio; to read it, the folder that names leave out",
    )
    verb.add_argument(
        "--ids-of",
        type=Path,
        metavar="FILE",
        help="COCO file of the ground truth, whose ids of images and classes COCO files get",
    )
    verb.set_defaults(action=_convert)


def _convert(options: argparse.Namespace) -> None:
    source, target = options.source, options.target
    fault = (no_folder if options.reader in FOLDERS else no_file)(source)
    if fault is not None:
        raise UsageError(f"{source}: {fault}; --from says {options.reader}")
    check_writable("B", target)
    request = Request(options.images, options.tolerance, options.storage, options.ids_of)
    formats = options.reader, options.writer
    with bars() as progress:
        ledger = convert(
            source, target, formats, request, lambda done: progress("images", done, None)
        )
    objects, images = ledger.written[OBJECTS], ledger.written[IMAGES]
    written = f"{count(objects, 'object')} of {count(images, 'image')} written"
    lines = [f"{written} to {target} as {options.writer}"]
    lines += [f"lost: {line}" for line in ledger.lines()] or ["nothing is lost"]
    for line in lines:
        console().print(one_line(line), markup=False, soft_wrap=True, highlight=False)


def _storage(text: str) -> PurePosixPath:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or "\\" in text or not path.parts:
        raise argparse.ArgumentTypeError(
            f"must be a path inside the document root, with /, such as my_photographs, got {text!r}"
        )
    return path


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number of at least 0, got {text!r}")
    return value
