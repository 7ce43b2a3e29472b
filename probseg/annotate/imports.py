"""`annotations.json`, of this page or of others, and annotations of other programs."""

from __future__ import annotations

import base64
import json
import os
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, takewhile
from pathlib import Path, PurePosixPath, PureWindowsPath
from tempfile import TemporaryDirectory
from typing import Any

import ijson
import numpy as np
import numpy.typing as npt

from probseg.annotate.database import MOST_LABELS, is_label
from probseg.annotate.photographs import Photograph
from probseg.annotate.steps import RequestError, check_place, check_stored
from probseg.annotate.store import NO_LABEL, Past, Store, StoredObject
from probseg.data.layout import leads_outside
from probseg.data.sets.annotations import entries
from probseg.errors import DataError, UsageError
from probseg.formats import coco, run_lengths
from probseg.formats.coco import score_of, size_of, text, whole
from probseg.formats.mask_names import MaskNames
from probseg.formats.polygons import from_coco
from probseg.formats.regions import FARTHEST
from probseg.formats.run_lengths import decode, stated_size
from probseg.paths import remove
from probseg.picture_formats import LOSSLESS_SUFFIXES
from probseg.texts import count

ANNOTATIONS = "annotations.json"

PIECE = 200
"""Objects that are read for `annotations.json` before other requests have a turn."""

LONGEST_NAME = 1000
"""Maximum characters of the name of a photograph."""

UPLOADED = re.compile(r"^[0-9a-f]{8}-")
"""Prefix of Label Studio for the names of uploaded files."""

MOST_BYTES = 1 << 30
"""Limit of files that come from the page."""

PARTS = (".txt", *LOSSLESS_SUFFIXES)
"""Suffixes of files of formats that are a folder."""


class Upload:
    """Files of a browser, which come in pieces, one after the other; a new upload ends the last.

    Callers of `add` hold the lock until they have read the files.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._room = TemporaryDirectory(prefix="probseg-", ignore_cleanup_errors=True)
        self._number: object = None
        self._next = 0  # number of the piece that is expected
        self.files: dict[str, int] = {}  # bytes by name

    def named(self, text: str) -> str:
        """Return a text with the names of the files in place of their paths."""
        place = self._room.name
        text = re.sub(r"; `probseg data check [^`]+` lists all problems", "", text)
        return text.replace(f"{place}{os.sep}", "").replace(place, "the files")

    def add(self, piece: Mapping[str, Any]) -> Path | None:
        """Take `upload` and `piece` (numbers), `name`, `content` in base64, and `last`.

        Returns all files with the last piece: the file, or a folder of several ones. A piece that
        is sent again, as its answer was lost, is known.
        """
        place = Path(self._room.name)
        try:
            name, content = piece["name"], base64.b64decode(piece["content"], validate=True)
            if not isinstance(name, str) or leads_outside(name) or len(Path(name).parts) > 1:
                raise ValueError(name)
        except (KeyError, TypeError, ValueError) as error:
            raise RequestError(
                "expected {'upload': number, 'piece': number, 'name': of a file, "
                "'content': base64, 'last': bool}"
            ) from error
        upload, number = piece.get("upload"), piece.get("piece")
        if upload != self._number and number == 0:
            for path in place.iterdir():
                remove(path)  # also the cache of what was read
            self._number, self._next, self.files = upload, 0, {}
        if upload != self._number or not isinstance(number, int) or number > self._next:
            raise RequestError(f"{name}: another import has begun meanwhile; send the files again")
        if number == self._next:
            if sum(self.files.values()) + len(content) > MOST_BYTES:
                raise RequestError(
                    f"{name}: files of more than {MOST_BYTES >> 20} MB are opened with --import"
                )
            size = self.files.get(name, 0)
            with (place / name).open("ab") as file:
                file.truncate(size)  # without the half of a piece, as of a full disk
                file.write(content)
            self.files[name] = size + len(content)
            self._next += 1
        alone = len(self.files) == 1 and Path(name).suffix.lower() not in PARTS
        whole = place / name if alone else place
        return whole if piece.get("last") is True else None

    def sort(self, photographs: Iterable[str]) -> None:
        """Put loose masks and texts into the folders of their photographs, where a ZIP has them."""
        place, folders = Path(self._room.name), defaultdict[str, set[PurePosixPath]](set)
        for name in map(PurePosixPath, photographs):
            folders[name.stem].add(name.parent)
        names = MaskNames(folders)
        for path in map(place.joinpath, self.files):
            owner = names.owner(path.stem) if path.suffix.lower() in PARTS else None
            if owner is None or not path.exists():
                continue
            first, *others = sorted(folders[owner])
            if others:
                raise RequestError(
                    f"{path.name}: several photographs are called {owner}; bring a ZIP of the "
                    "masks or texts with their folders"
                )
            (place / first).mkdir(parents=True, exist_ok=True)
            path.rename(place / first / path.name)

    def close(self) -> None:
        """Remove the files."""
        self._room.cleanup()


@dataclass(frozen=True)
class Brought:
    """An object of the file."""

    segmentation: Any  # as the file has it
    size: tuple[int, int]
    label: str | None
    past: Past
    file: str = ANNOTATIONS  # its name

    def mask(self, size: tuple[int, int] | None) -> npt.NDArray[np.bool_]:
        """Draw the object in a photograph of `(H, W)`, None if that is gone."""
        own = stated_size(self.segmentation) if isinstance(self.segmentation, dict) else self.size
        if own != (size or self.size):
            raise DataError(
                f"{self.file}: an object is for {own[1]} x {own[0]} pixels; the file is another"
            )
        try:
            if isinstance(self.segmentation, dict):
                return decode(self.segmentation)
            outlines = [np.array(points, dtype=np.float64) for points in self.segmentation]
            if not all((abs(points) <= FARTHEST).all() for points in outlines):
                raise ValueError(f"a coordinate is above {FARTHEST}")
            return from_coco(outlines, own).mask()
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{self.file}: an object cannot be drawn ({error})") from error


def finder(names: Iterable[str]) -> Callable[[str], str | None]:
    """Return a function that finds the photograph that a path in a file of others means.

    Where several photographs have the name, it is the one of the whole path, or the one that shares
    most folders, from the last one on; None without one.
    """
    known: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for name in names:
        *folders, last = PurePosixPath(name).parts
        known[last].append((*folders, last))

    def shared(mine: tuple[str, ...], theirs: tuple[str, ...]) -> int:
        pairs = zip(reversed(mine), reversed(theirs), strict=False)
        return len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])

    def find(file: str) -> str | None:
        *folders, last = PureWindowsPath(file).parts or ("",)  # which knows / as well as \\
        if last not in known:
            last = UPLOADED.sub("", last)
        parts, several = (*folders, last), known.get(last, [])
        best = max((shared(own, parts) for own in several), default=0)
        near = [own for own in several if shared(own, parts) == best]
        near = [parts] if parts in near else near
        return "/".join(near[0]) if len(near) == 1 else None

    return find


def read_annotations(
    path: Path, photographs: Sequence[Photograph]
) -> tuple[list[str], dict[str, list[Brought]], dict[str, int], dict[str, int]]:
    """Read classes, the objects of each photograph, and the numbers of photographs and classes.

    The file is refused if it is none of COCO, or of other photographs alone: it would be replaced.
    """
    brought: dict[str, list[Brought]] = defaultdict(list)
    find = finder(photo.name for photo in photographs)
    folders = {PurePosixPath(photo.name).parent for photo in photographs}

    def gone(file: str) -> str:
        name = PurePosixPath(PureWindowsPath(file).as_posix())
        return (name if name.parent in folders else PurePosixPath(name.name)).as_posix()

    try:
        images = {
            whole(one, "id"): (find(file) or gone(file)[:LONGEST_NAME], one)
            for one in entries(path, "images")
            for file in [text(one, "file_name")]
        }
        kinds = {whole(one, "id"): one["name"] for one in entries(path, "categories")}
        for one in entries(path, "annotations"):
            name, image = images[whole(one, "image_id")]
            label = kinds.get(one.get("category_id"))
            known = isinstance(label, str) and is_label(label) and label != NO_LABEL
            size = size_of(image)
            if one.get("segmentation"):
                label = label if known else None
                brought[name].append(Brought(one["segmentation"], size, label, _past(one, size)))
        listed = {photo.name for photo in photographs}
        if images and not listed & {name for name, _ in images.values()}:
            raise ValueError("it has none of the photographs of this folder")
    except (DataError, ValueError, KeyError, TypeError, AttributeError, ijson.JSONError) as error:
        raise UsageError(
            f"{path}: cannot be read as annotations of these photographs ({error!r:.300}), and "
            "would be replaced; rename it, or choose another --out"
        ) from error
    classes = {n: name for n, name in kinds.items() if isinstance(name, str) and is_label(name)}
    numbers, categories = (
        {name: number for number, name in names.items() if 0 < number <= 1 << 53}
        for names in ({number: name for number, (name, _) in images.items()}, classes)
    )
    names = [name for name in classes.values() if name != NO_LABEL][:MOST_LABELS]
    return names, dict(brought), numbers, categories


def read_import(
    path: Path,
    objects: Iterable[tuple[str, Any]],
    photographs: Sequence[Photograph],
    lost: Counter[str],
    listed: Mapping[str, None],
) -> tuple[list[str], dict[str, list[Brought]]]:
    """Read classes and objects of other programs.

    `objects` are paths of photographs and labelled regions; those that are not brought are counted
    in `lost`. Classes have the order of `listed`, the names that the source lists, which is
    complete once the objects are read.
    """
    find = finder(photo.name for photo in photographs if photo.size is not None)
    brought: dict[str, list[Brought]] = defaultdict(list)
    classes: dict[str, None] = {}
    for file, item in objects:
        name = find(file)
        if name is None:
            lost["of other photographs"] += 1
        elif item.region.area:
            label = item.label if item.label != NO_LABEL and is_label(item.label) else None
            score = item.score if item.score is not None and 0 <= item.score <= 1 else None
            rle, size = run_lengths.encode(item.region), item.region.size
            past = Past(quality=score)
            brought[name].append(Brought(rle, size, label, past, path.name))
            classes |= {} if label is None else {label: None}
    if not brought:
        hint = "; names of files must be the same" if lost["of other photographs"] else ""
        raise DataError(
            f"{path}: has no object for this folder ({counted(lost) or 'it is empty'}){hint}"
        )
    known = [name for name in listed if name != NO_LABEL and is_label(name)]
    names = [*dict.fromkeys([*known, *classes])]
    if len(names) > MOST_LABELS:
        names = [name for name in names if name in classes]
    return names[:MOST_LABELS], dict(brought)


def counted(lost: Mapping[str, int]) -> str:
    """Say how many objects are left out, by the reason."""
    return ", ".join(f"{count(number, 'object')} {why}" for why, number in lost.items() if number)


def _past(entry: dict[str, Any], size: tuple[int, int]) -> Past:
    """Return how a mask came about, without what this page cannot have written."""
    steps, seconds, model = (entry.get(key) for key in ("prompts", "seconds", "model"))
    try:
        steps = steps if isinstance(steps, list) else []
        for step in steps:
            check_stored(json.dumps(step))
            check_place(step, size)
        score = score_of(entry)
    except (ValueError, TypeError):
        steps, score = [], None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= 1e9:
        seconds = 0.0
    return Past(
        steps,
        float(seconds),
        model[:LONGEST_NAME] if isinstance(model, str) else None,
        score if score is not None and 0 <= score <= 1 else None,
    )


def write_annotations(
    path: Path,
    photographs: Sequence[Photograph],
    store: Store,
    lock: threading.RLock,
    numbers: Mapping[str, int],
    categories: dict[str, int],
) -> None:
    """Write all finished objects as COCO JSON with run lengths.

    `numbers` are the ids of the photographs by name, `categories` those of the classes. Besides
    COCO's own keys, annotations have
    `prompts` (the clicks, boxes and strokes that the mask is the answer to, in order; see
    `probseg.annotate.steps`), `seconds`, `model` and `score` (`Mask.quality`; not of read masks).
    Objects without a label are of the category `object`. Photographs that were rejected are
    left out. The lock is taken for a piece at a time, and not while anything is written.
    """
    with lock:
        rejected, known = store.rejected(), store.names()
        annotated = store.with_objects()
    sizes = {p.name: p.size for p in photographs if p.size and p.name not in rejected}
    images = [
        {"id": numbers[name], "file_name": name, "height": height, "width": width}
        for name, (height, width) in sizes.items()
    ]
    kinds: list[coco.Entry] = []  # known when all annotations are
    drawn = [name for name in known if name in sizes and name in annotated]

    def annotations() -> Iterator[dict[str, Any]]:
        totals = accumulate(annotated[name] for name in drawn)
        pairs = zip(drawn, totals, strict=True)
        for _, group in groupby(pairs, key=lambda pair: pair[1] // PIECE):
            with lock:
                piece = [(name, store.objects(name)) for name, _ in group]
            for name, objects in piece:
                for stored in objects:
                    if stored.counts is not None:
                        yield entry(name, stored)
        kinds.extend(coco.categories(categories))

    def entry(name: str, stored: StoredObject) -> dict[str, Any]:
        lengths = {"size": list(sizes[name]), "counts": stored.counts}
        return {
            "id": stored.id,
            "image_id": numbers[name],
            "category_id": coco.number(categories, stored.label or NO_LABEL),
            "segmentation": lengths,
            **coco.measures(lengths),
            "prompts": stored.steps[: stored.kept],
            "seconds": round(stored.seconds, 1),
            "model": stored.model,
            **({} if stored.quality is None else {"score": stored.quality}),
        }

    coco.write(path, images, annotations(), kinds)
