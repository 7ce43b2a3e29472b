"""When the files of a folder are read and written: masks, `annotations.json`, exports, keys."""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from probseg.annotate.folder import (
    GONE,
    ORIGINALS,
    SETTLED,
    Folder,
    MaskFiles,
    back_up,
    existing_masks,
    list_masks,
    write_masks,
)
from probseg.annotate.imports import (
    ANNOTATIONS,
    Brought,
    counted,
    read_annotations,
    read_import,
    write_annotations,
)
from probseg.annotate.learning import LEARNED
from probseg.annotate.photographs import (
    DIGEST,
    Photograph,
    fingerprint,
    place_of,
    stamp_of,
    stored_labels,
)
from probseg.annotate.steps import stored_patch
from probseg.annotate.store import NO_LABEL, Effort, Fingerprint, Finished, Store
from probseg.errors import DataError, UsageError
from probseg.formats.mask_names import MaskNames, stem_of
from probseg.kinds import Registry
from probseg.paths import digest, leads_out, modified, remove, rewriting, touched, walk
from probseg.texts import read_text, write_rows
from probseg.types import Patch

_logger = logging.getLogger(__name__)

DATABASE = Path(".probseg") / "annotations.sqlite"

KEYS = "keys.json"
"""The file with keys of the page, which a person may write."""

DELAY = 2.0
"""Seconds after a change in which further ones join it before `annotations.json` is written."""

REST = 20
"""Times as long as `annotations.json` took to write last it is not written again."""

IDS = ("image_ids", CATEGORY_IDS := "category_ids")
"""Settings with numbers of photographs and of classes by name."""

COCO, REPORT = "coco", "report"

_CONVERSION: Registry[Any] = Registry("annotation_export")


def check_links(out: Path) -> None:
    """Raise a UsageError if what is written to a folder would leave it through a link."""
    database = [f"{DATABASE}{end}" for end in ("", "-wal", "-shm", "-journal")]
    places = [out / name for name in (*database, KEYS)]
    for name in ("masks", ORIGINALS, LEARNED):  # files are written to their sub-folders
        folders, links = walk(out / name, out, lambda path: False)
        places += [*folders[:1], *links]
    for place in places:
        if leads_out(place, out):
            raise UsageError(f"{place}: a link leads out of {out}; remove the link")


def read_keys(folder: Path) -> dict[str, list[str]]:
    """Return the keys of each action that `keys.json` names; none where there is no such file.

    Which actions there are and which of their keys collide, the page knows.
    """
    path = folder / KEYS
    if not path.exists():
        return {}
    try:
        table = json.loads(read_text(path, most=10**6))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: cannot be read as JSON ({error}); correct or remove it"
        ) from error
    rows = table.items() if isinstance(table, dict) else [("", None)]
    keys: dict[str, Any] = {action: [key] if isinstance(key, str) else key for action, key in rows}
    for several in keys.values():
        if not isinstance(several, list) or not all(isinstance(key, str) for key in several):
            example = '{"done": "w", "next": ["n", "PageDown"]}'
            raise UsageError(f"{path}: must be like {example}, got {table!r:.200}")
    return keys


class Files:
    """Mask files and `annotations.json` of a folder while it is annotated.

    Masks that were there are in the folder or in `out`; all that is written goes to `out`. Callers
    of `read` and `write` hold the lock, those of `write_coco`, `export` and `close` do not.
    """

    def __init__(
        self,
        folder: Folder,
        out: Path,
        store: Store,
        lock: threading.RLock,
        imported: Path | None = None,
    ) -> None:
        self.folder, self.out = folder, out
        self._store, self._lock = store, lock
        self._timer = threading.Timer(0, lambda: None)
        self._closed = False
        self._said = ""  # why nothing can be written
        self._writing = threading.Lock()  # of annotations.json; taken before the other one
        self._exporting = threading.Lock()
        self._resting_until = 0.0
        self._changes = 0  # of what annotations.json has
        self._listed: dict[Path, tuple[MaskNames, MaskFiles]] = {}
        self._written: dict[Path, tuple[int, tuple[int, int]]] = {}  # see `write_masks`
        self._all_read: tuple[object, ...] = ()  # lists of files whose masks were all read
        self._compared: set[str] = set()  # known photographs whose masks were compared
        self.replaced: set[str] = set()  # files of others that were copied to those of before
        self.on_new_objects: Callable[[Photograph], None] = lambda photo: None
        self.unreadable: dict[str, str] = {}  # why masks of photographs cannot be read
        self._brought: dict[str, list[Brought]] = {}
        self._imported: dict[str, list[str]] = {}  # photographs by the digest of files
        self.classes: list[str] = []
        # numbers of photographs and of classes, which stay
        self._ids: dict[str, dict[str, int]] = {kind: store.setting(kind) or {} for kind in IDS}
        own = [place / ANNOTATIONS for place in (out, folder.path)]
        path = next((p for p in own if p.is_file() and not leads_out(p, p.parent)), None)
        if path and not store.setting("annotations"):
            self._read_annotations(path)
        elif path == own[0] and (known := store.setting("annotations_digest")):
            self.replaced |= {ANNOTATIONS} if digest(own[0], DIGEST) != known else set()
        if imported is not None:
            self.bring(imported)

    def _read_annotations(self, path: Path) -> None:
        """Read an `annotations.json`; one that stays as it is may be of other photographs."""
        try:
            brought = read_annotations(path, self.folder.photographs)
        except UsageError as error:
            if path.parent == self.out:
                raise
            self.unreadable[ANNOTATIONS] = str(error)
        else:
            self.classes, self._brought, *ids = brought
            self._ids = dict(zip(IDS, ids, strict=True))

    def bring(self, path: Path) -> None:
        """Bring objects of another program.

        Those that are there already are not added, nor those that the same files brought before:
        they may have been corrected since.
        """
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        content = " ".join(digest(file, DIGEST) for file in files)
        key = hashlib.blake2s(content.encode()).hexdigest()
        lost, listed = Counter[str](), dict[str, None]()
        objects = _CONVERSION["read"](path, place_of(self.folder.path), lost, listed)
        classes, brought = read_import(path, objects, self.folder.photographs, lost, listed)
        with self._lock:
            self.classes = [*self.classes, *classes]
            before = (self._store.setting("imported") or {}).get(key, [])
            self._imported[key] = [*brought]
            for name in brought.keys() - {*before}:
                self._brought[name] = [*self._brought.get(name, ()), *brought[name]]
            if +lost:
                self.unreadable[path.name] = f"has {counted(lost)}, which are left out"

    def refused(self) -> Iterator[tuple[str, str]]:
        """Yield photographs, masks and folders that are not used, as their names say, and why."""
        for photograph in self.folder.photographs:
            if photograph.error is not None:
                yield photograph.name, photograph.error
        yield from ((name, GONE) for name in self.folder.gone)
        yield from self.unreadable.items()
        for changed in sorted(self.replaced):
            yield changed, f"was changed by another program; it is copied to {ORIGINALS}"
        place = self.folder.path
        for path, reason in (*self.mask_files().refused.items(), *self.folder.refused.items()):
            yield path.relative_to(place).as_posix(), reason

    def left_out(self) -> list[str]:
        """Say how many objects are in no file, and why."""
        rows = (
            ("have changed since", self.folder.changed),
            ("are gone", self.folder.gone),
            ("cannot be read", self.folder.unreadable),
        )
        lines = [
            f"{counted({f'of photographs that {what}': sum(counts.values())})}: {_first(counts)}"
            for what, counts in rows
            if counts
        ]
        if self.unreadable:
            files = [f"{name} ({reason})" for name, reason in self.unreadable.items()]
            lines.append(f"masks that cannot be read, or not all of them: {_first(files)}")
        if self.replaced:
            names = _first(sorted(self.replaced))
            lines.append(f"files that another program changed, copied to {ORIGINALS}: {names}")
        return lines

    def mask_files(self, folder: Path | None = None) -> MaskFiles:
        """List the files in `masks/`, unless other programs added or removed none since."""
        folder, names = folder or self.folder.path, self.folder.names
        known = self._listed.get(folder)
        if known is None or known[0] != names or modified(known[1].stamps) != known[1].stamps:
            known = names, list_masks(folder, names)
            now = time.time_ns()
            if all(now - stamp > SETTLED for stamp in known[1].stamps.values()):
                self._listed[folder] = known
        return known[1]

    def unread(self) -> Iterator[tuple[str, Photograph | None]]:
        """Yield photographs with masks that are not in the database yet."""
        with self._lock:
            lists = self.mask_files(), self.mask_files(self.out), self.folder.photographs
            if not self._brought and [*map(id, lists)] == [*map(id, self._all_read)]:
                return
            owned, waits = {*lists[0].owned, *lists[1].owned}, False
            known = set(self._store.names())
            listed = {photo.name: photo for photo in self.folder.photographs}
            waiting = dict.fromkeys(self._brought)
            waiting |= {name: None for name, photo in listed.items() if photo.stem in owned}
        for name in waiting:
            photo = listed.get(name)
            new = name in self._brought
            if photo is not None and photo.size is not None and not new:
                new = name not in known or bool(self._foreign_masks(photo, lists[1]))
            if new and name not in self.unreadable:
                yield name, photo
                waits = True
        self._all_read = () if waits else lists

    def read_all(self, *, look: bool = False) -> None:
        """Store all masks that were there and that nobody has looked at yet, one after the other.

        What cannot be read is left out, see `unreadable`. Whether other programs have changed files
        is known from their folders, or, if told to `look`, from the files themselves.
        """
        if look:
            self._all_read = ()
        for name, photo in self.unread():
            try:
                file = fingerprint(photo) if photo and photo.size else None  # while others click
                with self._lock:
                    if self._closed:
                        return
                    self._compared.discard(name)
                    self.read(name, photo, file)
            except (DataError, OSError) as error:  # also files that were removed meanwhile
                self.unreadable[name] = str(error)
        with self._lock:
            if self._imported and not self._closed:
                known = self._store.setting("imported") or {}
                read = {
                    key: [name for name in names if name not in self.unreadable]
                    for key, names in self._imported.items()
                }
                self._store.set_setting("imported", known | read)
                self._imported = {}
            if not self._closed and not self.unreadable:
                self.folder.note_seen()

    def read(self, name: str, photo: Photograph | None, file: Fingerprint | None = None) -> None:
        """Store the masks that a photograph had before it was annotated, at its first use.

        They are those of its mask files and those of an `annotations.json`, which are the same
        objects where they have the same pixels. An `annotations.json` may have objects of a
        photograph that is gone or cannot be read; they are stored, too. Later masks are those that
        other programs have written.
        """
        known = bool(self._store.photograph(name).revision)
        brought = self._brought.get(name, [])
        aside = self.folder.gone
        if photo is not None and photo.size is None:
            aside, photo = self.folder.changed if photo.changed else self.folder.unreadable, None
        if known and photo and name not in self._compared:
            self._compared.add(name)
            self._read_later(photo)
        if known and not brought:
            return
        stored = {one.counts for one in self._store.objects(name)} if known else set()
        paths = []
        if photo and not known:
            places = (self.mask_files(place).owned.get(photo.stem) for place in (self.out, None))
            paths = next(filter(None, places), [])
        drawn = existing_masks(paths, photo) if photo else {}
        if not brought and not paths:
            return  # looking writes nothing: the disk may be full
        size = photo.size if photo else None
        if known and photo is None and (file := self._store.fingerprints().get(name)):
            size = file.height, file.width
        with self._store.change(name, None):
            for one in brought:
                pixels = one.mask(size).astype(np.uint8)
                mask = Finished.from_labels(pixels)
                if mask.counts in stored:
                    continue
                same = [source for source, other in drawn.items() if other.counts == mask.counts]
                mask = drawn.pop(same[0]) if same else mask
                origin = None if one.past.seconds else one.file
                self._store.add_finished(name, mask, one.label, origin, one.past)
            for source, mask in drawn.items():
                self._store.add_finished(name, mask, source=source)
            if photo is not None:
                self._store.set_fingerprint(name, file or fingerprint(photo))
            self._store.keep_written(name)
        if photo is not None:
            self.on_new_objects(photo)
        if self._brought.pop(name, None) and photo is None:
            aside[name] = len(self._store.objects(name))
        if any(one.file != ANNOTATIONS for one in brought):
            self.write(name)

    def _foreign_masks(self, photo: Photograph, listed: MaskFiles) -> list[Path]:
        """Return the masks of a known photograph that were not written here, as far as known."""
        return [
            path
            for path in listed.owned.get(photo.stem, [])
            if touched(path, self.folder.seen)
            and self._written.get(path, (0, None))[1] != stamp_of(path)
        ]

    def _read_later(self, photo: Photograph) -> None:
        """Store the masks that another program has added or changed since a photograph is known.

        A changed mask is that of its object from now on, until undo; others are new objects. The
        files are copied to those of before.
        """
        listed = self.mask_files(self.out)
        files = {path: path.read_bytes() for path in self._foreign_masks(photo, listed)}
        _, rows = self._store.in_files(photo.name)
        own = {self._store.png(row[0]): row for row in rows if files}
        for path in [path for path, content in files.items() if content in own]:
            self._written[path] = hash(own[files.pop(path)]), stamp_of(path)
        if not files or photo.name in self._store.unwritten():
            return
        counts, new = {row[3] for row in rows}, dict[Path, list[Finished]]()
        for path in files:
            self._written[path] = 0, stamp_of(path)
            try:
                masks = [*existing_masks([path], photo).values()]
            except DataError as error:
                masks, self.unreadable[path.name] = [], str(error)
            others = [mask for mask in masks if mask.counts not in counts]
            if others or not masks:
                back_up(path, self.out)
            if others:
                new[path] = others
            elif not masks:
                self.replaced.add(path.name)
        if not new:
            return
        stems = self.folder.names.first(photo.stem, len(rows))
        places = [self.out / "masks" / f"{stem}.png" for stem in stems]
        homes = dict(zip(places, rows, strict=True))
        before = self._store.photograph(photo.name)
        with self._store.change(photo.name, before.revision):
            for path, masks in new.items():
                row = homes.get(path)
                if row is not None and not row[1] and len(masks) == 1:
                    self._replace(photo, row[0], masks.pop())
                for n, mask in enumerate(masks, start=1):
                    self._store.add_finished(photo.name, mask, source=f"{path.name}#{n}")
            if before.state in ("accepted", "rejected"):
                self._store.set_state(photo.name, "done")
        self.on_new_objects(photo)
        self.write(photo.name)

    def _replace(self, photo: Photograph, number: int, mask: Finished) -> None:
        """Give a finished object another mask, as if its pixels had been drawn; inside `change`."""
        stored = self._store.find(photo.name, number)
        assert stored is not None, "it has a file"
        old, new = (stored_labels(drawn, photo) == 1 for drawn in (stored.mask or b"", mask.png))
        self._store.reopen(number)
        for patch in (Patch(new & ~old), Patch(old & ~new, positive=False)):
            if patch.pixels.any():
                self._store.add_step(number, stored_patch(patch))
        self._store.finish(number, mask, stored.model, None)

    def write(self, name: str) -> None:
        """Write the mask files of a photograph now, and the COCO file soon.

        What cannot be written is tried again with the COCO file. What another program has written
        meanwhile is copied to the files of before.
        """
        self.write_annotations_soon()
        photograph = self.folder.by_name(name)
        if photograph is not None and photograph.error is None:
            rejected, rows = self._store.in_files(name)
            rows = [] if rejected else rows
            masks = [(hash(row), partial(self._store.png, row[0])) for row in rows]
            names, listed = self.folder.names, self.mask_files(self.out)
            for path in self._foreign_masks(photograph, listed) if name in self._compared else ():
                back_up(path, self.out)
                self.replaced.add(path.name)
            write_masks(self.out, photograph, masks, names, listed, self._written)
            homes = {path.parent for path in listed.owned[photograph.stem]}
            listed.stamps.update(modified({*listed.stamps, *homes}))
        self._store.set_written(name)

    def write_annotations_soon(self) -> None:
        """Write the COCO file soon, or at the next start."""
        self._changes += 1
        if not self._store.setting("annotations_due"):
            self._store.set_setting("annotations_due", True)
        self._write_coco_soon()

    def _remove_masks(self, names: Mapping[str, str]) -> None:
        """Remove masks under the old names of photographs, which have the objects of new names."""
        for old, new in names.items():
            masks = [stored.mask for stored in self._store.objects(new)]
            stem, place = stem_of(old), self.out / "masks"
            theirs, owners = MaskNames([stem]), (None, stem)
            for path in place.glob(f"{glob.escape(stem)}*.png"):
                mask = stem_of(path.relative_to(place).as_posix())
                own = theirs.owner(mask) and self.folder.names.owner(mask) in owners
                if own and not path.is_symlink() and path.read_bytes() in masks:
                    path.unlink()

    def _write_what_was_set_aside(self) -> None:
        """Write the files of photographs that changed, went or came back since the last time.

        Masks of changed ones are removed, and written when the earlier file is there again.
        """
        folder = self.folder
        away = {*folder.changed, *folder.gone, *folder.unreadable}
        before = self._store.setting("aside") or {"away": [], "removed": []}
        removed = {*folder.changed} | {*before["removed"]} & away
        aside = {"away": sorted(away), "removed": sorted(removed)}
        if aside == before:
            return
        self.write_annotations_soon()
        self._remove_masks({name: name for name in removed.difference(before["removed"])})
        known = self._store.with_objects()
        for name in before["removed"]:
            if name not in removed and name in known:  # and was not renamed
                self._compared.add(name)  # so that masks of others are copied before
                self.write(name)
        self._store.set_setting("aside", aside)

    def write_what_is_due(self) -> None:
        """Write the masks that a server which was killed, or a full disk, left unwritten.

        And the files of photographs that were renamed or replaced, went or came back.
        """
        self._remove_masks(self.folder.moved)
        self._write_what_was_set_aside()
        for name in self._store.unwritten():
            self.write(name)
        if self._store.setting("annotations_due"):
            self._write_coco_soon()

    def _write_coco_soon(self) -> None:
        self._timer.cancel()
        delay = max(DELAY, self._resting_until - time.monotonic())
        self._timer = threading.Timer(delay, self._write_now)
        self._timer.daemon = True
        self._timer.start()

    def _write_now(self) -> None:
        try:
            self.write_coco()
        except (OSError, sqlite3.Error) as error:
            with self._lock:
                if self._closed:
                    return
                if str(error) != self._said:
                    _logger.warning("%s; what is stored is written again until it succeeds", error)
                self._said = str(error)
                self._write_coco_soon()
        else:
            self._said = ""

    def write_coco(self, *, reads: bool = True) -> Path:
        """Write `annotations.json` and masks that are due, unless the folder is closed.

        Returns the path of the first.
        Masks that nobody has looked at are read before; unless it `reads`, nothing is written then.
        """
        path = self.out / ANNOTATIONS
        if reads:
            self.read_all()
        with self._writing:
            with self._lock:
                if self._closed:
                    return path
                for name in self._store.unwritten():
                    self.write(name)
                if next(self.unread(), None) is not None:
                    return path
                began, changes = time.monotonic(), self._changes
                if not self._store.setting("annotations") or ANNOTATIONS in self.replaced:
                    back_up(path, self.out)
                    self._store.set_setting("annotations", True)
                    self.replaced.discard(ANNOTATIONS)
                names = [photo.name for photo in self.folder.photographs]
                labels = [*(self._store.setting("labels") or []), *self._store.labels()]
                numbers = [*map(self._numbers_of, IDS, (names, labels))]
            write_annotations(path, self.folder.photographs, self._store, self._lock, *numbers)
            written = digest(path, DIGEST)
            self._resting_until = time.monotonic() + REST * (time.monotonic() - began)
            with self._lock:
                self._store.set_setting("annotations_digest", written)
                if changes == self._changes:
                    self._store.set_setting("annotations_due", False)
                    self._timer.cancel()
        return path

    def _numbers_of(self, kind: str, names: Sequence[str]) -> dict[str, int]:
        """Return the numbers of some names, which stay whatever is added, rejected or removed."""
        known = self._ids[kind]
        following = max(known.values(), default=0) + 1
        new = [name for name in dict.fromkeys(names) if name not in known]
        if new:
            known |= {name: number for number, name in enumerate(new, following)}
            self._store.set_setting(kind, known)
        return {name: known[name] for name in names}

    def rename_class(self, old: str, new: str) -> None:
        """Let a class have its number under another name, unless that has one."""
        known = self._ids[CATEGORY_IDS]
        if old in known and new not in known:
            known[new] = known.pop(old)
            self._store.set_setting(CATEGORY_IDS, known)

    def export(self, name: str, progress: Callable[[int], None]) -> tuple[Path, list[str]]:
        """Write what is exported under one of `export_names`, in place of its last version.

        `progress` is called with the number of each photograph; an error of it ends the work.
        Returns the file or folder, and what is not in it, one thing a line.
        """
        annotations = self.write_coco()
        with self._lock:
            efforts, lost = self._store.efforts(), self.left_out()
            if rejected := self._store.rejected():
                lost = [*lost, f"rejected photographs: {len(rejected)}"]
            has_classes = name not in (REPORT, "png", "index")
            if has_classes and (number := self._store.without_label()):
                lost = [*lost, f"labels of objects, which are written as `{NO_LABEL}`: {number}"]
        if name == COCO:
            return annotations, lost
        if not self._exporting.acquire(blocking=False):
            raise DataError("another export is being written; wait for its end, or stop it")
        try:
            path, aside = self._make_room(export_names()[name])
            if name == REPORT:
                write_efforts(path, efforts)
            else:
                place = place_of(self.folder.path)
                project = self.folder.path.resolve()  # Label Studio's document root is above it
                images = "images" if (project / "images").is_dir() else ""
                places = PurePosixPath(project.name, images), place
                lost += _CONVERSION["write"](name, annotations, path, places, progress)
            with self._lock:
                times = {**self._store.setting("exports"), path.name: time.time_ns()}
                self._store.set_setting("exports", times)
        finally:
            self._exporting.release()
        return path, [*lost, *aside]

    def _make_room(self, name: str) -> tuple[Path, list[str]]:
        """Remove the last export of a name, or rename it if somebody has worked on it.

        What was never exported is refused. Returns the path, and what was renamed.
        """
        path, now = self.out / name, time.time_ns()
        with self._lock:
            times = self._store.setting("exports") or {}
            if isinstance(times, list):  # of an earlier version
                times = dict.fromkeys(times, now)
            if path.exists() and name not in times:
                raise DataError(
                    f"{path}: exists, and is not an export of this page; rename or remove it"
                )
            self._store.set_setting("exports", {**times, name: times.get(name, now)})
        if path.is_symlink() or not path.exists():
            path.unlink(missing_ok=True)
            return path, []
        files = [file for file in (path, *path.rglob("*")) if file.suffix != ".cache"]
        if any(touched(file, times[name]) for file in files if file.is_file()):
            aside = path.with_stem(f"{path.stem} {time.strftime('%Y-%m-%d %H.%M.%S')}")
            path.rename(aside)
            return path, [f"{name} was changed by another program; it is kept as {aside.name}"]
        remove(path)
        return path, []

    def close(self) -> None:
        """Write nothing from now on."""
        with self._writing:
            self._timer.cancel()
            self._closed = True


def _first(names: Collection[str]) -> str:
    """Name some of many."""
    return ", ".join([*names][:3]) + " ..." * (len(names) > 3)


def export_names() -> dict[str, str]:
    """Return the name of the file or folder of each export, by format; the report is the last."""
    return {COCO: ANNOTATIONS, **_CONVERSION["file_names"], REPORT: "report.csv"}


def write_efforts(path: Path, efforts: Sequence[Effort]) -> None:
    """Write the work on the objects of each label as CSV, in all and in the mean of an object."""
    totals = ("label", "objects", "seconds", "clicks")
    rows: list[tuple[object, ...]] = [(*totals, "seconds_per_object", "clicks_per_object")]
    for label, objects, seconds, clicks in efforts:
        means = round(seconds / objects, 2), round(clicks / objects, 2)
        rows.append((label, objects, round(seconds, 1), clicks, *means))
    with rewriting(path) as file:
        write_rows(file, rows)
