"""The photographs of a folder, whose files may change between sessions and during one."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from probseg.annotate.photographs import (
    CHANGED,
    Photograph,
    Read,
    fingerprint,
    list_photographs,
    mask_size,
    photograph_folders,
    pixel_digest,
    place_of,
    read_readable,
    stamp_of,
)
from probseg.annotate.store import Fingerprint, MissingError, Store
from probseg.errors import DataError
from probseg.formats.mask_names import MaskNames
from probseg.paths import modified

GONE = "is gone; its objects are kept, but left out of all files until it is back"

SETTLED = 2 * 10**9
"""Nanoseconds after which a time stamp of a folder differs from that of any later change."""


class Folder:
    """The photographs of a folder, compared with those that the database knows.

    Objects stay with the content that they were drawn on: a file with another name is recognised,
    and one with other pixels is set aside as if it could not be read. Only files whose size or time
    have changed are looked at.
    """

    def __init__(self, path: Path, store: Store, lock: threading.RLock) -> None:
        self.path, self._store, self._lock = path, store, lock
        place = place_of(path)
        self._read: Read = {  # files that are as they were are not looked at again
            (place / name, (file.bytes, file.modified)): ((file.height, file.width), None)
            for name, file in store.fingerprints().items()
        }
        self._list()

    def _list(self) -> None:
        folders, self.refused = photograph_folders(self.path)
        self._stamps, now = modified(folders), time.time_ns()
        self._settled = all(now - stamp > SETTLED for stamp in self._stamps.values())
        self.photographs: Sequence[Photograph] = list_photographs(self.path, self._read)
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
        return {name: old for name, old in before.items() if self.named(name) != old}

    def find(self, number: str) -> Photograph:
        """Return a photograph by its opaque name."""
        try:
            return self.photographs[self._places[number]]
        except KeyError:
            raise MissingError(number) from None

    def after(self, photograph: Photograph) -> list[Photograph]:
        """Return the next photograph that can be read, or none."""
        later = range(self._places.get(photograph.id, 0) + 1, len(self.photographs))
        readable = (self.photographs[n] for n in later if self.photographs[n].error is None)
        return [*islice(readable, 1)]

    def keep(self, photograph: Photograph) -> None:
        """Let the objects of a file that has changed stay on its pixels; under the lock."""
        size, _ = self._read.get((photograph.path, photograph.stamp), (None, None))
        known = self._store.fingerprints().get(photograph.name)
        if photograph.error != CHANGED or size is None or known is None or known[:2] != size:
            raise DataError(f"{photograph.name}: has another size than its objects; {CHANGED}")
        file = fingerprint(replace(photograph, size=size, error=None))
        self._store.set_fingerprint(photograph.name, file)

    def named(self, name: str) -> Photograph | None:
        """Return a photograph by its name; None where it is gone."""
        return self._by_name.get(name)

    def is_current(self, photograph: Photograph) -> bool:
        """Say whether the file is the one that was listed."""
        return stamp_of(photograph.path) == photograph.stamp

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
            replace(photo, size=None, error=CHANGED) if photo.name in aside else photo
            for photo in self.photographs
        ]
        listed = {photo.name for photo in self.photographs}
        listed -= set(moves.values())  # what was there before is gone
        self.gone = {name: count for name, count in left.items() if name not in listed}
        self.changed = {name: left[name] for name in aside}
        self.unread = {name: left[name] for name in left.keys() & listed - aside}
        return moves

    def _is_same(
        self, name: str, file: Fingerprint | None, photo: Photograph, free: dict[str, Photograph]
    ) -> bool:
        """Say whether a file has the pixels that objects were drawn on; if not, it is free again.

        Of databases of earlier versions only the size of the photographs is known.
        """
        assert photo.size is not None, "it can be read"
        if file is None:
            mask, same = self._store.mask(name), False
            with suppress(DataError):
                same = mask is None or mask_size(mask) == photo.size
        elif (file.bytes, file.modified) == photo.stamp:
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
        if not same:
            free[name] = photo
        return same
