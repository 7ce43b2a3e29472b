"""The photographs and masks of a folder, whose files may change between sessions and in one."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from probseg.annotate.photographs import (
    CHANGED,
    RESIZED,
    Photograph,
    Read,
    fingerprint,
    list_photographs,
    mask_size,
    photograph_folders,
    pixel_digest,
    place_of,
    read_readable,
    sized,
    stamp_of,
)
from probseg.annotate.store import Fingerprint, Finished, MissingError, Store
from probseg.data.layout import sort_pictures
from probseg.errors import DataError
from probseg.formats.mask_names import MaskNames, stem_of
from probseg.masks import read_objects
from probseg.paths import LEADS_OUT, leads_out, modified, replacing, touched, walk
from probseg.picture_formats import LOSSLESS_SUFFIXES

GONE = "is gone; its objects are kept, but left out of all files until it is back"

NO_PHOTOGRAPH = "has no photograph of the same name; rename or remove it"

ORIGINALS = Path(".probseg") / "masks"
"""Folder of the files of before annotation began."""

SETTLED = 2 * 10**9
"""Nanoseconds after which a time stamp of a folder differs from that of any later change."""


class Folder:
    """The photographs of a folder, compared with those that the database knows.

    Objects stay with the content that they were drawn on: a file with another name is recognised,
    and one with other pixels is set aside as if it could not be read. Only files whose size or time
    have changed are looked at, and those that were written or renamed since `seen`.
    """

    def __init__(self, path: Path, store: Store, lock: threading.RLock) -> None:
        self.path, self._store, self._lock = path, store, lock
        place, self._began = place_of(path), time.time_ns() - SETTLED
        seen = store.setting("seen")  # nanoseconds until which all files are known
        self.seen = self._began if seen is None else seen
        self._same: dict[Path, int] = {}  # when files were found to be the known ones
        self._read: Read = {  # files that are as they were are not looked at again
            (name, (size, time)): ((height, width), None)
            for name, (size, time, height, width) in (store.setting("sizes") or {}).items()
            if not touched(place / name, self.seen)
        }
        self._list()

    def _list(self) -> None:
        folders, self.refused = photograph_folders(self.path)
        self._stamps, now = modified(folders), time.time_ns()
        self._settled = all(now - stamp > SETTLED for stamp in self._stamps.values())
        known = len(self._read)
        self.photographs: Sequence[Photograph] = list_photographs(self.path, self._read)
        if len(self._read) > known:
            sizes = {one.name: (*one.stamp, *one.size) for one in self.photographs if one.size}
            self._store.set_setting("sizes", sizes)
        self.moved = self._compare()
        self.names = MaskNames(photograph.stem for photograph in self.photographs)
        self._places = {photograph.id: n for n, photograph in enumerate(self.photographs)}
        self._by_name = {photograph.name: photograph for photograph in self.photographs}

    def refresh(self, *, look: bool = False) -> dict[str, Photograph]:
        """List the folder again if files were added or removed, or if told to; under the lock.

        Returns the photographs that were listed before and are others now, by name.
        """
        if self._settled and not look and modified(self._stamps) == self._stamps:
            return {}
        before = self._by_name
        with suppress(DataError):  # all photographs are gone: the list stays as it was
            self._list()
        return {name: old for name, old in before.items() if self.by_name(name) != old}

    def note_seen(self) -> None:
        """Record that all files were compared with the database."""
        if self._store.setting("seen") != self._began:
            self._store.set_setting("seen", self._began)

    def find(self, number: str) -> Photograph:
        """Return a photograph by its opaque name."""
        try:
            return self.photographs[self._places[number]]
        except KeyError:
            raise MissingError("such photograph in the folder now; reload the page") from None

    def after(self, photograph: Photograph) -> list[Photograph]:
        """Return the next photograph that can be read, or none."""
        later = range(self._places.get(photograph.id, 0) + 1, len(self.photographs))
        readable = (self.photographs[n] for n in later if self.photographs[n].error is None)
        return [*islice(readable, 1)]

    def keep(self, photograph: Photograph) -> None:
        """Let the objects of a file that has changed stay on its pixels; under the lock."""
        size, _ = self._read.get((photograph.name, photograph.stamp), (None, None))
        if photograph.error != CHANGED or size is None:
            reason = photograph.error or "its file has not changed"
            raise DataError(f"{photograph.name}: {reason}")
        file = fingerprint(replace(photograph, size=size, error=None))
        self._store.set_fingerprint(photograph.name, file)

    def by_name(self, name: str) -> Photograph | None:
        """Return a photograph by its name; None where it is gone."""
        return self._by_name.get(name)

    def _compare(self) -> dict[str, str]:
        """Find files that were renamed or changed since objects were drawn on them.

        Returns new names of photographs by the old ones, after the database has them.
        """
        known, prints = self._store.with_objects(), self._store.fingerprints()
        free = {photo.name: photo for photo in self.photographs if photo.error is None}
        astray = [
            name
            for name in known
            if name not in free or not self._is_same(name, prints.get(name), free.pop(name), free)
        ]
        of_size: dict[int, list[Photograph]] = defaultdict(list)
        for photo in free.values():
            of_size[photo.stamp[0]].append(photo)
        moves: dict[str, str] = {}
        for name in astray:
            file = prints.get(name)
            for photo in of_size[file.bytes] if file else []:
                if file and fingerprint(photo, pixels="").digest == file.digest:
                    moves[name] = photo.name
                    of_size[file.bytes].remove(photo)
                    break
        if moves:
            self._store.rename(moves)
        left = {name: known[name] for name in astray if name not in moves}
        aside = {name for name in left if name in free and name not in moves.values()}
        self.photographs = [
            _set_aside(photo, prints.get(photo.name)) if photo.name in aside else photo
            for photo in self.photographs
        ]
        listed = {photo.name for photo in self.photographs}
        listed -= set(moves.values())  # what was there before is gone
        self.gone = {name: count for name, count in left.items() if name not in listed}
        self.changed = {name: left[name] for name in aside}
        self.unreadable = {name: left[name] for name in left.keys() & listed - aside}
        return moves

    def _is_same(
        self, name: str, file: Fingerprint | None, photo: Photograph, free: dict[str, Photograph]
    ) -> bool:
        """Say whether a file has the pixels that objects were drawn on; if not, it is free again.

        Of databases of earlier versions only the size of the photographs is known.
        """
        assert photo.size is not None, "it can be read"
        began = time.time_ns() - SETTLED
        if file is None:
            mask, same = self._store.mask(name), False
            with suppress(DataError):
                same = mask is None or mask_size(mask) == photo.size
        elif (file.bytes, file.modified) == photo.stamp and not touched(
            photo.path, self._same.get(photo.path, self.seen)
        ):
            same = True
        else:
            same = (file.height, file.width) == photo.size
            now = fingerprint(photo, pixels=file.pixels) if same else file
            if now.digest != file.digest:
                same = False
                with suppress(DataError):
                    same = pixel_digest(read_readable(photo)) == file.pixels
            if same:
                self._store.set_fingerprint(name, now)
                self._same[photo.path] = began
        if not same:
            free[name] = photo
        return same


def _set_aside(photo: Photograph, file: Fingerprint | None) -> Photograph:
    """Return a photograph that is another picture than that of its objects, as one not to read."""
    same_size = file is not None and (file.height, file.width) == photo.size
    return replace(photo, size=None, error=CHANGED if same_size else RESIZED)


class MaskFiles(NamedTuple):
    """The files in `masks/`."""

    owned: dict[str, list[Path]]  # those of each photograph, by its stem
    refused: dict[Path, str]  # why the others are not read
    stamps: dict[Path, int]  # of the folders, see `probseg.paths.modified`


def list_masks(folder: Path, names: MaskNames) -> MaskFiles:
    """List the files in `masks/` and its sub-folders; what is in them is not looked at."""

    def no_link(path: Path) -> bool:  # copies are kept in the folder, which may be sent back
        return False

    place = folder / "masks"
    folders, links = walk(place, folder, no_link)
    stamps = modified(folders)
    owned: dict[str, list[Path]] = defaultdict(list)
    refused = dict.fromkeys(links, LEADS_OUT)
    for one in folders:
        files, others = sort_pictures(one, LOSSLESS_SUFFIXES, folder, trusted=no_link)
        refused |= others
        for path in files.values():
            owner = names.owner(stem_of(path.relative_to(place).as_posix()))
            if owner is None:
                refused[path] = NO_PHOTOGRAPH
            else:
                owned[owner].append(path)
    return MaskFiles(owned, refused, stamps)


def existing_masks(files: Sequence[Path], photograph: Photograph) -> dict[str, Finished]:
    """Read the objects in mask files, by the name of the file and their number."""
    masks = {}
    for path in files:
        drawn = read_objects(path)
        if drawn.labels.shape != photograph.size:
            raise DataError(
                f"{path}: has {sized(drawn.labels.shape)}, its photograph {sized(photograph.size)}"
            )
        for number in drawn.numbers:
            masks[f"{path.name}#{number}"] = Finished.from_labels(drawn.mask(number))
    return masks


def write_masks(
    folder: Path,
    photograph: Photograph,
    masks: Sequence[tuple[int, Callable[[], bytes]]],
    names: MaskNames,
    listed: MaskFiles | None = None,
    written: dict[Path, tuple[int, tuple[int, int]]] | None = None,
) -> None:
    """Write `masks/<stem>_<n>.png` of the finished objects, and remove those that are no more.

    Files that were there before annotation began are copied to `.probseg/masks/` when the first
    change of their photograph is written, and refused files before one of them is replaced. What is
    `listed` of the folder is brought up to date; None to list it here. `masks` are a number that
    tells each from others, and what gives its PNG: files that were `written` with this number, and
    have the bytes and time that they had then, are not looked at.
    """
    written = {} if written is None else written
    stems = names.first(photograph.stem, len(masks))
    contents = {f"{stem}.png": mask for stem, mask in zip(stems, masks, strict=True)}
    owned, refused, _ = listed or list_masks(folder, names)
    before = owned.get(photograph.stem, [])
    marker = folder / ORIGINALS / f"{photograph.stem}.done"
    if not marker.exists():
        for path in before:
            back_up(path, folder)
        with replacing(marker) as empty:  # in place of a link
            empty.touch()
    for name, (number, png_of) in contents.items():
        path = folder / "masks" / name
        if written.get(path) == (number, stamp_of(path)):
            continue
        if refused.pop(path, None) is not None:  # it was not read, but has the name
            back_up(path, folder)
        mask = png_of()
        if path.is_symlink() or not path.is_file() or path.read_bytes() != mask:
            with replacing(path) as unfinished:
                unfinished.write_bytes(mask)
        written[path] = number, stamp_of(path)
    for path in before:
        if path.relative_to(folder / "masks").as_posix() not in contents:
            path.unlink()
    owned[photograph.stem] = [folder / "masks" / name for name in contents]


def back_up(path: Path, folder: Path) -> None:
    """Copy a file of a folder to the files of before, unless it is a link to elsewhere."""
    if not leads_out(path, folder) and path.is_file():
        home = folder / "masks" if path.is_relative_to(folder / "masks") else path.parent
        place, content = folder / ORIGINALS / path.relative_to(home), path.read_bytes()
        if place.is_file() and place.read_bytes() != content:  # an earlier one stays
            place = place.with_stem(f"{place.stem} {time.time_ns()}")
        with replacing(place) as copy:
            copy.write_bytes(content)
