"""Photographs that a training set and a test set share, by names and by content.

`compare` is the option `--against` of `probseg data check`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image
from rich import box
from rich.table import Column, Table

from probseg.cli.data_check import DataLocation
from probseg.data.base import PublishedDataset
from probseg.data.cache import in_threads
from probseg.data.layout import first_words
from probseg.errors import DatasetNotFoundError
from probseg.images import GREY_WEIGHTS, opened, rgb_pixels
from probseg.paths import Progress, silent
from probseg.picture_formats import IMAGE_SUFFIXES, refuse_only_unread
from probseg.terminal import bars, print_findings, print_line, write_findings
from probseg.texts import count

SIDE = 24  # height and width of the thumbnails

# thumbnails with a higher correlation are of one photograph: among the data sets of the field
# hardly any pair lies between 0.93 and 0.99
ALIKE = 0.97

# equal names in a folder of somebody's own count above this correlation: it may be a crop
SIMILAR = 0.5

BLOCK = 2048  # training thumbnails compared at once with all test thumbnails

# names that differ from the name of the same photograph in other data sets
MISTYPED = {"GrabCut": {"124080": "124084"}}

# names of the photographs of three collections, from which most data sets were made
PATTERNS = {"VOC": r"\d{4}_\d{6}", "COCO": r"\d{12}", "BSDS": r"\d{4,6}"}

Thumbnails = npt.NDArray[np.uint8]
_Rows = npt.NDArray[np.float32]


class Photos(NamedTuple):
    """The photographs of a data set, or of any other folder."""

    name: str
    paths: list[Path]
    dataset: type[PublishedDataset] | None = None


class Leak(NamedTuple):
    """A photograph that two data sets share, as a file in each."""

    train: str
    test: str
    found: str  # by "name", "content", "name, content", "content, mirrored" or all three
    correlation: float  # of the thumbnails, at most 1


def compare(train: DataLocation, test: DataLocation, json_file: Path | None) -> None:
    """Print the photographs that two data sets share; exit with status 1 if there are any."""
    ours, theirs = _photos(train), _photos(test)
    with bars() as progress:
        leaks = find_leaks(ours, theirs, progress)
    write_findings(json_file, {"shared": [leak._asdict() for leak in leaks]})
    if leaks:
        table = Table(
            Column(ours.name, overflow="fold"),
            Column(theirs.name, overflow="fold"),
            Column("found by"),
            Column("correlation", justify="right"),
            title="Photographs in both",
            box=box.SIMPLE,
        )
        print_findings(table, [(*leak[:3], f"{leak.correlation:.3f}") for leak in leaks])
    trained, tested = {leak.train for leak in leaks}, {leak.test for leak in leaks}
    print_line(
        f"{len(trained)} of {count(len(ours.paths), 'photograph')} of {ours.name} are among the "
        f"{len(theirs.paths)} of {theirs.name}, where they are {len(tested)}"
    )
    if leaks:
        raise SystemExit(1)


def _photos(place: DataLocation) -> Photos:
    if place.dataset is None:
        return photos_of_folder(place.root)
    return photos_of_dataset(place.dataset, place.root, place.split)


def photos_of_dataset(
    dataset: type[PublishedDataset], root: Path, split: str | None = None
) -> Photos:
    """List the photographs of a published data set in a folder, of all splits by default.

    LVIS keeps photographs of both of its splits in one folder, and all of them are listed for
    either split.
    """
    source = dataset.source
    inner = root / source.inner
    root = inner if inner.is_dir() else root
    photos: list[Path] = []
    for part in (split,) if split is not None else source.splits or ("",):
        paths = _pictures(root, source.photos.format(split=part))
        if source.listed is not None:
            listing = root / source.listed.format(split=part)
            stems = set(first_words(listing)) if listing.is_file() else set()
            paths = [path for path in paths if path.stem in stems]
        photos += paths
    if not photos:
        expected = f"photographs {source.photos.format(split=split or '*')}"
        if source.listed is not None:
            expected += f" and their list {source.listed.format(split=split or '<split>')}"
        raise DatasetNotFoundError(dataset.name, root, expected, source.hint(dataset.name))
    return Photos(dataset.name, sorted(set(photos)), dataset)


def photos_of_folder(root: Path) -> Photos:
    """List the photographs of a folder: those below its `images/`, or else all pictures in it."""
    place = root / "images" if (root / "images").is_dir() else root
    paths = _pictures(place, "**/*")
    if not paths:
        refuse_only_unread(place)
        raise DatasetNotFoundError(
            dataset="A photograph",
            root=root,
            expected="pictures, or a folder images/ with pictures",
            hint="Name the folder that has them.",
        )
    return Photos(str(root), paths)


def find_leaks(train: Photos, test: Photos, progress: Progress = silent) -> list[Leak]:
    """Find the photographs that are in two data sets.

    Names count where both data sets are made from one collection (BSDS, VOC, COCO) and keep its
    names; in folders of somebody's own they count if the thumbnails are similar as well. Contents
    are compared by the correlation of thumbnails of 24 x 24 pixels, also mirrored, so that copies
    of another size or compression are found. Crops are not, unless they kept the name. The pairs
    are in the order of the training photographs.
    """
    ours, theirs = (
        np.stack(list(in_threads(thumbnail, photos.paths, photos.name, progress)))
        for photos in (train, test)
    )
    owners: dict[tuple[str, str], list[int]] = defaultdict(list)
    for j, path in enumerate(test.paths):
        for key in _names(path, test.dataset):
            owners[key].append(j)
    namesakes = {
        (i, j)
        for i, path in enumerate(train.paths)
        for key in _names(path, train.dataset)
        for j in owners.get(key, ())
    }
    certain = train.dataset is not None and test.dataset is not None
    leaks = []
    for start in range(0, len(ours), BLOCK):
        block = ours[start : start + BLOCK]
        straight = correlations(block, theirs)  # (N, M)
        mirrored = correlations(block, theirs[:, :, ::-1])
        best = np.maximum(straight, mirrored)
        rows, columns = (best > ALIKE).nonzero()
        alike = {(int(i) + start, int(j)) for i, j in zip(rows, columns, strict=True)}
        named = {pair for pair in namesakes if start <= pair[0] < start + len(block)}
        for i, j in sorted(alike | named):
            correlation = min(1.0, float(best[i - start, j]))  # without rounding
            if (i, j) not in alike and not certain and correlation < SIMILAR:
                continue
            signs = ["name"] * ((i, j) in named) + ["content"] * ((i, j) in alike)
            if (i, j) in alike and straight[i - start, j] <= ALIKE:
                signs.append("mirrored")
            files = str(train.paths[i]), str(test.paths[j])
            leaks.append(Leak(*files, ", ".join(signs), correlation))
    return leaks


def thumbnail(path: Path) -> Thumbnails:
    """Read a photograph as a thumbnail `(24, 24, 3)`: means over the cells of a grid."""
    with opened(path, path) as picture:
        picture.draft("RGB", (4 * SIDE, 4 * SIDE))  # JPEG files: decoded coarsely, but quickly
        pixels = Image.fromarray(rgb_pixels(picture, str(path)))
    return np.asarray(pixels.resize((SIDE, SIDE), Image.Resampling.BOX))


def correlations(ours: Thumbnails, theirs: Thumbnails) -> _Rows:
    """Correlate all pairs of thumbnails `(N, 24, 24, 3)` and `(M, 24, 24, 3)`: `(N, M)`.

    Colours count, unless just one of two thumbnails is grey. A thumbnail of a single colour has the
    correlation 0 with all.
    """
    in_colour = _standard(ours) @ _standard(theirs).T
    weights = np.array(GREY_WEIGHTS, dtype=np.float32)
    in_grey = _standard(ours @ weights) @ _standard(theirs @ weights).T
    one_is_grey = _is_grey(ours)[:, None] != _is_grey(theirs)  # (N, M)
    result: _Rows = np.where(one_is_grey, in_grey, in_colour)
    return result


def _standard(thumbnails: npt.NDArray[np.generic]) -> _Rows:
    """Flatten each to a row of mean 0 and length 1, or of zeros if it is flat."""
    rows = thumbnails.reshape(len(thumbnails), -1).astype(np.float32)
    rows -= rows.mean(axis=1, keepdims=True)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    flat = length < 1e-3 * np.sqrt(rows.shape[1])  # rounding alone: grey values are whole numbers
    standard: _Rows = np.where(flat, 0, rows / np.where(flat, 1, length)).astype(np.float32)
    return standard


def _is_grey(thumbnails: Thumbnails) -> npt.NDArray[np.bool_]:
    spread = thumbnails.max(axis=3).astype(np.int16) - thumbnails.min(axis=3)
    grey: npt.NDArray[np.bool_] = spread.max(axis=(1, 2)) <= 2  # 2: rounding of JPEG
    return grey


def _pictures(root: Path, pattern: str) -> list[Path]:
    return sorted(
        path
        for path in root.glob(pattern)
        if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")
    )


def _names(path: Path, dataset: type[PublishedDataset] | None) -> set[tuple[str, str]]:
    """Return collection and name of a photograph; several where the collection is not known."""
    stem = path.stem
    if dataset is None:
        names = {("", stem)}
        for known, pattern in PATTERNS.items():
            if match := re.search(rf"(?<!\d){pattern}(?!\d)", stem):
                names.add((known, match[0]))
        return names
    collection = dataset.source.ids
    if collection is None:
        return set()
    stem = MISTYPED.get(dataset.name, {}).get(stem, stem)
    # Berkeley: 189011a; COCO_MVal: the class and its number come before the name.
    match = re.search(rf"(?<!\d){PATTERNS[collection]}(?=[a-z]?$|#)", stem)
    return {(collection, match[0])} if match else set()
