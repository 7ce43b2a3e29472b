"""Annotation files in COCO format, read once and stored as a few flat arrays."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import ijson
import numpy as np
import numpy.typing as npt
from pycocotools import mask as coco_mask

from probseg.data.cache import cached
from probseg.data.layout import leads_outside
from probseg.errors import DataError
from probseg.formats.coco import is_crowd, score_of, size_of, whole
from probseg.formats.polygons import coco_runs, from_coco, signed_area
from probseg.formats.regions import FARTHEST, Region
from probseg.formats.run_lengths import check_runs, draw_runs, parse_runs, region_of, stated_size
from probseg.texts import ShallowJSON, open_as_utf8


def entries(path: Path, of: str) -> Iterator[Any]:
    """Yield the entries of a list in a file."""
    with open_as_utf8(path) as file:
        yield from ijson.items(ShallowJSON(file), f"{of}.item".lstrip("."), use_float=True)


Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]


class AnnotationIndex(NamedTuple):
    """The annotations that have an outline, and all images; N, M, C of objects, images, categories.

    Lists of lists lie end to end, and an array of starts says where each begins, and the last ends.
    Texts are in UTF-8.
    """

    ids: Longs  # (N,)
    image_ids: Longs  # (N,), image of each object, as the file has it
    owners: Ints  # (N,), its place in the list of images, -1 if it is not there
    kinds: Ints  # (N,), place of its category in the list of categories, or -1
    areas: Floats  # (N,), pixels
    crowds: npt.NDArray[np.bool_]  # (N,)
    scores: Floats  # (N,), of predictions; NaN where there is none
    # x, y, x, y, ... of all polygons, in 32 bits if they have two decimals at most, see `exact`
    coordinates: npt.NDArray[np.float32] | Floats
    polygons: Longs  # starts of the polygons in `coordinates`
    objects: Longs  # (N + 1,), starts of the objects in `polygons`
    run_objects: Longs  # (R,), the objects that have run lengths and no polygon
    run_sizes: Longs  # (R, 2), heights and widths of their masks
    run_starts: Longs  # (R + 1,), starts of their compressed run lengths
    run_text: Bytes
    image_sizes: Longs  # (M, 2), heights and widths
    image_starts: Longs  # (M + 1,), starts of the images' paths
    image_text: Bytes
    category_starts: Longs  # (C + 1,), starts of the categories' names
    category_text: Bytes
    left_counts: Longs  # (L,), numbers of things that the index does not keep
    left_starts: Longs  # (L + 1,), starts of their descriptions
    left_text: Bytes

    def file(self, image: int) -> str:
        """Return the path of an image inside the folder of the images."""
        return _unpacked(self.image_starts, self.image_text, image)

    def categories(self) -> list[str]:
        """List the names of the categories."""
        count = len(self.category_starts) - 1
        return [_unpacked(self.category_starts, self.category_text, i) for i in range(count)]

    def left_out(self) -> dict[str, int]:
        """Return how many things of the file the index does not keep, by what they are."""
        counts = self.left_counts.tolist()
        return {
            _unpacked(self.left_starts, self.left_text, i): counts[i] for i in range(len(counts))
        }

    def mask(self, index: int, size: tuple[int, int]) -> Bytes:
        """Draw an object of an image of `size`: uint8, shape `(H, W)`, 1 on the object."""
        if polygons := self._outlines(index):
            return draw_runs(coco_runs(polygons, size), size)
        return draw_runs(self._runs(index, size), size)

    def region(self, index: int, size: tuple[int, int]) -> Region:
        """Draw an object as `mask` does, but in its box."""
        if polygons := self._outlines(index):
            return from_coco(polygons, size)
        return region_of(self._runs(index, size), size)

    def _outlines(self, index: int) -> list[Floats]:
        """Return the polygons of an object; none if it has run lengths."""
        corners = self.polygons[self.objects[index] : self.objects[index + 1] + 1]
        return [exact(self.coordinates[start:end]) for start, end in pairwise(corners)]

    def _runs(self, index: int, size: tuple[int, int]) -> Longs:
        """Return the run lengths of an object without polygons."""
        place = int(np.searchsorted(self.run_objects, index))
        height, width = self.run_sizes[place].tolist()
        if (height, width) != size:
            raise ValueError(
                f"its run lengths are for {width} x {height} pixels, its image has "
                f"{size[1]} x {size[0]}"
            )
        start, end = self.run_starts[place : place + 2]
        return parse_runs(self.run_text[start:end].tobytes())


def exact(coordinates: npt.NDArray[np.float32] | Floats) -> Floats:
    """Restore the two decimals of coordinates stored in 32 bits.

    Without that, pixels on the edge of a polygon would come out otherwise.
    """
    numbers = coordinates.astype(np.float64)
    return numbers.round(2) if coordinates.dtype == np.float32 else numbers


def _unpacked(starts: Longs, text: Bytes, index: int) -> str:
    return text[starts[index] : starts[index + 1]].tobytes().decode()


Entry = Mapping[str, Any]
Place = Callable[[Entry], str | None]

PENDING = 1 << 20  # coordinates that are looked at together

NO_OUTLINE = "without an outline"
TOO_SHORT = "whose outlines have fewer than three corners"  # annotations that are left out

KEYS = {
    "annotations": {
        "id", "image_id", "category_id", "segmentation", "area", "bbox", "iscrowd", "score",
    },
    "images": {"id", "file_name", "height", "width"},
    "categories": {"id", "name"},
}  # fmt: skip
"""Keys of the entries of a file whose meaning is kept."""


def read_index(kind: str, path: Path, place: Place) -> AnnotationIndex:
    """Read the annotations of a file, or their stored index.

    Annotations whose outline encloses nothing are left out, and counted as everything is that the
    index does not keep; see `AnnotationIndex.left_out`. Where `area` is missing or zero,
    that of the outline is computed. `place` returns the path of an entry of `images` inside the
    folder of the images, or None to leave it out.
    """

    def build() -> Mapping[str, npt.NDArray[Any]]:
        reader = _Reader(place)
        try:
            for key in reader.actions:
                for entry in entries(path, key):
                    reader.add(key, entry)
            return reader.index()._asdict()
        except DataError:  # which names the file
            raise
        except (ValueError, ijson.JSONError) as error:
            raise DataError(
                f"{path}: cannot be read as annotations of {kind} ({error}); download or export "
                "the file again"
            ) from error

    options = {"kind": kind, "columns": " ".join(AnnotationIndex._fields)}
    return AnnotationIndex(**cached("annotations", [path], options, build, path.parent))


class _Reader:
    """Keeps what is needed of each entry in flat arrays: all entries would not fit into memory."""

    def __init__(self, place: Place) -> None:
        self.actions: dict[str, Callable[[Any], None]] = {
            "annotations": self.annotation,
            "images": self.image,
            "categories": self.category,
        }
        self.place = place
        # Fields of the index, ids of images and categories, and the paths or names of both.
        self.columns = defaultdict[str, "array[int]"](lambda: array("q"))
        self.columns |= {"polygons": array("q", [0]), "objects": array("q", [0])}
        self.areas, self.scores = array("d"), array("d")
        self.coordinates = _Coordinates()
        self.texts: dict[str, list[bytes]] = {"run": [], "image": [], "category": []}
        self.left: Counter[str] = Counter()

    def add(self, key: str, entry: Any) -> None:  # noqa: ANN401, anything that JSON has
        """Take an entry of one of the lists of the file."""
        try:
            self.actions[key](entry)
            for other in entry.keys() - KEYS[key]:
                if entry[other] not in (None, "", [], {}):
                    self.left[f"values of {other!r} of {key}"] += 1
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            fault = f"cannot be used, {error}"
            fault = f"has no {error}" if isinstance(error, KeyError) else fault
            shown = repr(entry) if len(repr(entry)) <= 100 else f"{entry!r:.100}..."
            raise ValueError(f"an entry of {key!r} {fault}: {shown}") from error

    def annotation(self, entry: Entry) -> None:
        """Take an annotation, unless its outline encloses nothing."""
        outline = entry.get("segmentation")
        if not outline:
            self.left[NO_OUTLINE] += 1
            return
        area = float(entry.get("area") or 0)
        if not 0 <= area < math.inf:
            raise ValueError(f"its area must be finite and at least 0, got {area}")
        if isinstance(outline, dict):
            counted = self._runs(outline)
            area = area or counted
        else:
            if not isinstance(outline, list) or not all(
                isinstance(polygon, list) and isinstance(next(iter(polygon), 0), int | float)
                for polygon in outline
            ):
                raise ValueError(
                    "its segmentation must be lists `[x, y, x, y, ...]` in a list, or run lengths"
                )
            # pycocotools takes four numbers for a box.
            polygons = [polygon for polygon in outline if len(polygon) >= 6]
            if not polygons:
                self.left[TOO_SHORT] += 1
                return
            if short := len(outline) - len(polygons):
                self.left["outlines of fewer than three corners"] += short
            if odd := sum(len(polygon) % 2 for polygon in polygons):
                self.left["halves of corners at the ends of outlines"] += odd
                polygons = [polygon[: len(polygon) // 2 * 2] for polygon in polygons]
            if not all(min(xs) >= -FARTHEST and max(xs) <= FARTHEST for xs in polygons):
                raise ValueError(f"a coordinate is not a number from {-FARTHEST} to {FARTHEST}")
            area = area or sum(
                abs(signed_area(np.array(polygon, dtype=np.float64).reshape(-1, 2)))
                for polygon in polygons
            )
            for polygon in polygons:
                self.coordinates.extend(polygon)
                self.columns["polygons"].append(len(self.coordinates))
        score = score_of(entry)
        has_kind = entry.get("category_id") is not None
        row = {
            "objects": len(self.columns["polygons"]) - 1,
            "ids": whole(entry, "id"),
            "image_ids": whole(entry, "image_id"),
            "kinds": whole(entry, "category_id") if has_kind else -1,
            "crowds": is_crowd(entry),
        }
        for name, number in row.items():
            self.columns[name].append(number)
        self.areas.append(area)
        self.scores.append(math.nan if score is None else score)

    def _runs(self, outline: Entry) -> int:
        """Take run lengths and return the number of pixels."""
        height, width = stated_size(outline)
        counts = outline["counts"]
        if isinstance(counts, list):
            runs = np.array(counts, dtype=np.int64)
            if not np.array_equal(runs, counts):
                raise ValueError("its run lengths must be whole numbers")
            plain = {"size": [height, width], "counts": runs.tolist()}
            text = coco_mask.frPyObjects(plain, height, width)["counts"]
        else:
            text = counts.encode("ascii")
            runs = parse_runs(text)
        check_runs(runs, (height, width))
        self.columns["run_objects"].append(len(self.columns["objects"]) - 1)
        self.columns["run_sizes"].extend((height, width))
        self.texts["run"].append(text)
        return int(runs[1::2].sum())

    def image(self, entry: Entry) -> None:
        """Take an image."""
        file = self.place(entry)
        if file is None:
            return
        if leads_outside(file):
            raise ValueError("its path must lead to a file inside the folder of the images")
        self.columns["images"].append(whole(entry, "id"))
        self.columns["image_sizes"].extend(size_of(entry))
        self.texts["image"].append(file.encode())

    def category(self, entry: Entry) -> None:
        """Take a category."""
        self.columns["categories"].append(whole(entry, "id"))
        self.texts["category"].append(entry["name"].encode())

    def index(self) -> AnnotationIndex:
        """Return everything that was taken."""
        names = (*AnnotationIndex._fields, "images", "categories")
        columns = {name: np.asarray(self.columns[name]) for name in names}
        ids = {"annotations": columns["ids"]}
        ids |= {key: columns.pop(key) for key in ("images", "categories")}
        for key, numbers in ids.items():
            unique, counts = np.unique(numbers, return_counts=True)
            if (counts > 1).any():
                raise ValueError(
                    f"the id {unique[counts > 1][0]} is there more than once in {key!r}"
                )
        texts = {**self.texts, "left": [reason.encode() for reason in self.left]}
        for name, parts in texts.items():  # end to end
            lengths = np.fromiter((len(part) for part in parts), np.int64, len(parts))
            columns[f"{name}_starts"] = np.append(0, np.cumsum(lengths))
            columns[f"{name}_text"] = np.frombuffer(b"".join(parts), np.uint8)
        columns |= {
            "owners": _found(columns["image_ids"], ids["images"]),
            "kinds": _found(columns["kinds"], ids["categories"]),
            "areas": np.asarray(self.areas),
            "crowds": columns["crowds"].astype(bool),
            "scores": np.asarray(self.scores),
            "coordinates": self.coordinates.finished(),
            "run_sizes": columns["run_sizes"].reshape(-1, 2),
            "image_sizes": columns["image_sizes"].reshape(-1, 2),
            "left_counts": np.array(list(self.left.values()), dtype=np.int64),
        }
        return AnnotationIndex(**columns)


class _Coordinates:
    """Numbers in 32 bits, as long as that and two decimals give back each of them."""

    def __init__(self) -> None:
        self.kept = array("f")
        self.pending = array("d")

    def __len__(self) -> int:
        return len(self.kept) + len(self.pending)

    def extend(self, numbers: Iterable[float]) -> None:
        self.pending.extend(numbers)
        if len(self.pending) >= PENDING:
            self._keep()

    def _keep(self) -> None:
        numbers = np.asarray(self.pending)
        short = numbers.astype(np.float32)
        if self.kept.typecode == "f" and not np.array_equal(exact(short), numbers):
            self.kept = array("d", exact(np.asarray(self.kept)))
        self.kept.frombytes((short if self.kept.typecode == "f" else numbers).tobytes())
        self.pending = array("d")

    def finished(self) -> npt.NDArray[np.float32] | Floats:
        self._keep()
        return np.asarray(self.kept)


def _found(numbers: Longs, places: Longs) -> Ints:
    """Return the positions of numbers in a list, -1 where it lacks them."""
    if len(places) == 0:
        return np.full(len(numbers), -1, dtype=np.int32)
    order = np.argsort(places)
    nearest = np.searchsorted(places, numbers, sorter=order)
    positions = order[np.minimum(nearest, len(places) - 1)]
    return np.where(places[positions] == numbers, positions, -1).astype(np.int32)
