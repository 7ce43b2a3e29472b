"""Records of an evaluation: one per object and trial, one line per click.

`objects.csv` holds the lines, and every score follows from them.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
import numpy.typing as npt

from probseg.clicks.annotators import BoolMap
from probseg.errors import DataError
from probseg.evaluation.scores import SCORES
from probseg.geometry import Box
from probseg.texts import from_cell, open_text, write_rows
from probseg.types import Click, Sample

RUN = ("dataset", "object", "photo", "pixels", "trial")
CLICK = ("k", "x", "y", "sign")

COLUMNS = (*RUN, *CLICK, *SCORES, "seconds")
"""Columns of `objects.csv`; `sign` is 1 or -1. A missing value is an empty cell."""

PICTURE_CLICKS = (0, 1, 3, 5)
"""Numbers of clicks whose predictions a `Picture` keeps, besides the last one."""


class ClickRecord(NamedTuple):
    """One line of a run.

    Args:
        k: Number of corrective clicks given so far; 0 is before the first.
        x: Column of the k-th click in the whole image; None without a click.
        y: Row of the k-th click in the whole image; None without a click.
        positive: Sign of the k-th click; None without a click.
        scores: Those of `SCORES` by name; None where the answer has none.
        seconds: Time of the model's call; None without a call.
    """

    k: int
    x: int | None
    y: int | None
    positive: bool | None
    scores: Mapping[str, float | None]
    seconds: float | None

    @property
    def iou(self) -> float:
        """IoU over the whole image, in [0, 1]."""
        value = self.scores["iou"]
        assert value is not None, "every answer has an IoU"
        return value


class Frame(NamedTuple):
    """A stored prediction: bool, shape `(h, w)` of the crop, after `k` clicks."""

    k: int
    prediction: BoolMap
    iou: float


@dataclass(frozen=True)
class Picture:
    """The pictures of a run, for drawing; all coordinates are in pixels of the crop.

    Args:
        image: RGB, uint8, shape `(h, w, 3)`.
        mask: uint8, shape `(h, w)`: 1 object, 0 background, 255 ignored.
        box: The annotator's box, or None.
        clicks: The corrective clicks, in order.
        frames: Predictions by rising number of clicks; the last one is the final prediction.
    """

    image: npt.NDArray[np.uint8]
    mask: npt.NDArray[np.uint8]
    box: Box | None
    clicks: tuple[Click, ...]
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class ObjectRecord:
    """One run: one object, one trial.

    Args:
        dataset: Name of the data set.
        name: Name of the object within its data set.
        trial: Number of the run.
        steps: One per number of clicks, `0 ... max_clicks`. After the last click of a run that
            ended early (no error was left, or the target IoU was reached) they repeat its scores
            and have neither click nor time.
        photo: Name of the photograph, which several objects may share.
        pixels: Checksum of image, mask and what else the sample has, see `checksum`.
        picture: The data that draw the run, if requested.
    """

    dataset: str
    name: str
    trial: int
    steps: tuple[ClickRecord, ...]
    photo: str
    pixels: str = ""
    picture: Picture | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """Data set, object and trial."""
        return self.dataset, self.name, self.trial

    @property
    def clicks(self) -> int:
        """Number of corrective clicks."""
        return sum(step.x is not None for step in self.steps)


def checksum(sample: Sample) -> str:
    """Return twelve hexadecimal digits that depend on every pixel of a sample."""
    digest = hashlib.sha256()
    for pixels in (sample.image, sample.mask, sample.scribbles, sample.initial):
        if pixels is not None:
            digest.update(f"{pixels.shape}{pixels.dtype}".encode())
            digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()[:12]


def write_objects(file: TextIO, records: Iterable[ObjectRecord], *, header: bool = True) -> None:
    """Write records as lines of `objects.csv`; numbers lose no digit."""
    rows: list[Sequence[object]] = [COLUMNS] if header else []
    for record in records:
        run = (record.dataset, record.name, record.photo, record.pixels, record.trial)
        for step in record.steps:
            sign = None if step.positive is None else 1 if step.positive else -1
            scores = (step.scores.get(name) for name in SCORES)
            rows.append((*run, step.k, step.x, step.y, sign, *scores, step.seconds))
    write_rows(file, rows, "\n")


def read_objects(path: Path | str, *, unfinished: bool = False) -> list[ObjectRecord]:
    """Read an `objects.csv`; scores that an older one does not have are None.

    Args:
        path: The file.
        unfinished: Whether the writer may have been killed: a broken last line, and a run at the
            end that has fewer lines than the others, is then left out. So is a run that is alone:
            nothing tells whether it is whole.

    Raises:
        DataError: If it is another file or not UTF-8, or its runs have different numbers of clicks.
    """
    path = Path(path)
    if not unfinished:
        return [*each_object(path)]
    content = path.read_bytes()  # whole lines only: half a line could pass for a shorter number
    content = content[: content.rfind(b"\n") + 1]
    while content.count(b'"') % 2:  # inside a name of several lines
        content = content[: content.rfind(b"\n", 0, -1) + 1]
    if not content:
        return []
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected UTF-8, as `probseg test` writes it: {error}") from error
    records = [*_records(path, io.StringIO(text, newline=""))]
    complete = max((len(record.steps) for record in records[:-1]), default=None)
    return [record for record in records if len(record.steps) == complete]


def each_object(path: Path) -> Iterator[ObjectRecord]:
    """Read the runs of a finished `objects.csv` one after the other, as `read_objects` does."""
    with open_text(path) as file:
        first = None
        for record in _records(path, file):
            first = first or len(record.steps)
            if (lines := len(record.steps)) != first:
                raise DataError(
                    f"{path}: its runs have {min(first, lines)} to {max(first, lines)} lines; is "
                    "it complete?"
                )
            yield record


def _records(path: Path, file: TextIO) -> Iterator[ObjectRecord]:
    """Read runs, whose lines follow one another."""
    rows = csv.reader(file)
    header = next(rows, [])
    if not {*RUN, *CLICK, "iou", "seconds"} <= set(header) or header != [
        name for name in COLUMNS if name in header
    ]:
        raise DataError(f"{path}: expected the columns {', '.join(COLUMNS)}, got {header}")
    columns = [(name, header.index(name)) for name in SCORES if name in header]
    lacking = dict.fromkeys(SCORES)
    last = len(header) - 1

    def click(row: Sequence[str]) -> ClickRecord:
        k, x, y, sign = row[5:9]
        scores = {name: float(row[n]) if row[n] else None for name, n in columns}
        if scores["iou"] is None:
            raise ValueError("it has no IoU")
        return ClickRecord(
            int(k),
            int(x) if x else None,
            int(y) if y else None,
            int(sign) > 0 if sign else None,
            lacking | scores,
            float(row[last]) if row[last] else None,
        )

    try:
        for run, lines in groupby(filter(None, rows), key=lambda row: row[:5]):
            dataset, name, photo, pixels = map(from_cell, run[:4])
            steps = tuple(map(click, lines))
            yield ObjectRecord(dataset, name, int(run[4]), steps, photo, pixels)
    except (IndexError, ValueError, csv.Error) as error:
        if isinstance(error, UnicodeDecodeError):  # which `open_text` explains
            raise
        raise DataError(f"{path}: line {rows.line_num} cannot be read ({error})") from error


def unique(records: Sequence[ObjectRecord]) -> list[ObjectRecord]:
    """Return each run once, sorted by data set, object and trial; the first one counts."""
    runs = {record.key: record for record in reversed(records)}
    return [runs[key] for key in sorted(runs)]


def best_and_worst(records: Iterable[ObjectRecord], few: int = 4) -> set[tuple[str, str, int]]:
    """Return the keys of the worst and the best first trials of each data set, by mean IoU.

    Args:
        records: Runs, in any order.
        few: How many of the worst, and of the best.
    """
    by_dataset: dict[str, list[tuple[float, tuple[str, str, int]]]] = defaultdict(list)
    for record in records:
        if record.trial == 0:
            mean = sum(step.iou for step in record.steps) / len(record.steps)
            by_dataset[record.dataset].append((mean, record.key))
    return {
        key
        for ranked in map(sorted, by_dataset.values())
        for _, key in (*ranked[:few], *ranked[-few:])
    }
