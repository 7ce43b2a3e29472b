"""The files of a folder: masks that were there, those of finished objects, and all exports."""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import shutil
import sqlite3
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probseg.annotate.folder import GONE, SETTLED, Folder
from probseg.annotate.imports import ANNOTATIONS, Brought, counted, read_annotations, read_import
from probseg.annotate.photographs import DIGEST, Photograph, fingerprint, place_of, stamp_of
from probseg.annotate.store import Effort, Fingerprint, Finished, Store, StoredObject
from probseg.data.layout import sort_pictures
from probseg.errors import DataError, UsageError
from probseg.formats import coco, png, run_lengths
from probseg.formats.mask_names import MaskNames, stem_of
from probseg.kinds import Registry
from probseg.masks import read_objects
from probseg.paths import LEADS_OUT, digest, leads_out, modified, replacing, rewriting, walk
from probseg.picture_formats import LOSSLESS_SUFFIXES
from probseg.texts import read_text, write_rows

_logger = logging.getLogger(__name__)

DATABASE = Path(".probseg") / "annotations.sqlite"

ORIGINALS = Path(".probseg") / "masks"
"""Folder of the files of before annotation began."""

KEYS = "keys.json"
"""The file with keys of the page, which a person may write."""

DELAY = 2.0
"""Seconds after a change in which further ones join it before `annotations.json` is written."""

REST = 20
"""Times as long as `annotations.json` took to write last it is not written again."""

PIECE = 200
"""Objects that are read for `annotations.json` before other requests have a turn."""

NO_PHOTOGRAPH = "has no photograph of the same name; rename or remove it"

COCO, REPORT = "coco", "report"

_CONVERSION: Registry[Any] = Registry("annotation_export")


def check_links(out: Path) -> None:
    """Raise a UsageError if what is written to a folder would leave it through a link."""
    database = [f"{DATABASE}{end}" for end in ("", "-wal", "-shm", "-journal")]
    places = [out / name for name in (*database, KEYS)]
    for name in ("masks", ORIGINALS):  # files are written to their sub-folders
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
        self._resting_until = 0.0
        self._changes = 0  # of what annotations.json has
        self._listed: dict[Path, tuple[MaskNames, MaskFiles]] = {}
        self._written: dict[Path, tuple[int, tuple[int, int]]] = {}  # see `write_masks`
        self._all_read: tuple[object, ...] = ()  # lists of files whose masks were all read
        self.unreadable: dict[str, str] = {}  # why masks of photographs cannot be read
        self._brought: dict[str, list[Brought]] = {}
        self._imported: dict[str, list[str]] = {}  # photographs by the digest of files
        self._edited = False
        self.classes: list[str] = []
        self._image_ids: dict[str, int] = store.setting("image_ids") or {}
        own = [place / ANNOTATIONS for place in (out, folder.path)]
        path = next((p for p in own if p.is_file() and not leads_out(p, p.parent)), None)
        if path and not store.setting("annotations"):
            self._read_annotations(path)
        elif path == own[0] and (known := store.setting("annotations_digest")):
            self._edited = digest(own[0], DIGEST) != known
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
            self.classes, self._brought, self._image_ids = brought

    def bring(self, path: Path) -> None:
        """Bring objects of another program.

        Those that are there already are not added, nor those that the same files brought before:
        they may have been corrected since.
        """
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        content = " ".join(digest(file, DIGEST) for file in files)
        key = hashlib.blake2s(content.encode()).hexdigest()
        lost: Counter[str] = Counter()
        objects = _CONVERSION["read"](path, place_of(self.folder.path), lost)
        classes, brought = read_import(path, objects, self.folder.photographs, lost)
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
        if self._edited:
            yield ANNOTATIONS, f"was changed by another program; it is copied to {ORIGINALS}"
        place = self.folder.path
        for path, reason in (*self.masks().refused.items(), *self.folder.refused.items()):
            yield path.relative_to(place).as_posix(), reason

    def left_out(self) -> list[str]:
        """Say how many objects are in no file, and why."""
        rows = (
            ("have changed since", self.folder.changed),
            ("are gone", self.folder.gone),
            ("cannot be read", self.folder.unread),
        )
        lines = [
            f"{counted({f'of photographs that {what}': sum(counts.values())})}: {_first(counts)}"
            for what, counts in rows
            if counts
        ]
        if self.unreadable:
            lines.append(f"masks that cannot be read: {_first(self.unreadable)}")
        return lines

    def masks(self, folder: Path | None = None) -> MaskFiles:
        """List the files in `masks/`, unless other programs added or removed none since."""
        folder, names = folder or self.folder.path, self.folder.names
        known = self._listed.get(folder)
        if known is None or known[0] != names or modified(known[1].stamps) != known[1].stamps:
            known = names, mask_files(folder, names)
            now = time.time_ns()
            if all(now - stamp > SETTLED for stamp in known[1].stamps.values()):
                self._listed[folder] = known
        return known[1]

    def unread(self) -> Iterator[tuple[str, Photograph | None]]:
        """Yield photographs with masks that are not in the database yet."""
        with self._lock:
            lists = self.masks(), self.masks(self.out), self.folder.photographs
            if not self._brought and [*map(id, lists)] == [*map(id, self._all_read)]:
                return
            owned, waits = {*lists[0].owned, *lists[1].owned}, False
            known = set(self._store.names())
            listed = {photo.name: photo for photo in self.folder.photographs}
            waiting = dict.fromkeys(self._brought)
            waiting |= {name: None for name, photo in listed.items() if photo.stem in owned}
        for name in waiting:
            photo = listed.get(name)
            new = name not in known and photo is not None and photo.size is not None
            if (name in self._brought or new) and name not in self.unreadable:
                yield name, photo
                waits = True
        self._all_read = () if waits else lists

    def read_all(self) -> None:
        """Store all masks that were there and that nobody has looked at yet, one after the other.

        What cannot be read is left out, see `unreadable`.
        """
        for name, photo in self.unread():
            try:
                file = fingerprint(photo) if photo and photo.size else None  # while others click
                with self._lock:
                    if self._closed:
                        return
                    self.read(name, photo, file)
            except DataError as error:
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

    def read(self, name: str, photo: Photograph | None, file: Fingerprint | None = None) -> None:
        """Store the masks that a photograph had before it was annotated, at its first use.

        They are those of its mask files and those of an `annotations.json`, which are the same
        objects where they have the same pixels. Masks of a photograph that is gone are stored, too.
        """
        known = bool(self._store.photograph(name).revision)
        brought = self._brought.get(name, [])
        if (known and not brought) or (photo is not None and photo.size is None):
            return
        stored = {one.counts for one in self._store.objects(name)} if known else set()
        paths = []
        if photo and not known:
            places = (self.masks(place).owned.get(photo.stem) for place in (self.out, None))
            paths = next(filter(None, places), [])
        drawn = {}
        for source, labels in existing_masks(paths, photo) if photo else []:
            drawn[source] = finished(labels)
        with self._store.change(name, None):
            for one in brought:
                mask = finished(one.mask(photo.size if photo else None).astype(np.uint8))
                if mask.counts in stored:
                    continue
                same = [source for source, other in drawn.items() if other.counts == mask.counts]
                mask = drawn.pop(same[0]) if same else mask
                origin = None if one.past.seconds else one.file
                self._store.add_finished(name, mask, one.label, origin, one.past)
            for source, mask in drawn.items():
                self._store.add_finished(name, mask, source=source)
            if photo is not None and (brought or drawn):
                self._store.set_fingerprint(name, file or fingerprint(photo))
            self._store.keep_written(name)
        if self._brought.pop(name, None) and photo is None:
            self.folder.gone[name] = len(brought)
        if any(one.file != ANNOTATIONS for one in brought):
            self.write(name)

    def write(self, name: str) -> None:
        """Write the mask files of a photograph now, and the COCO file soon.

        What cannot be written is tried again with the COCO file.
        """
        self.write_annotations_soon()
        photograph = self.folder.named(name)
        if photograph is not None and photograph.error is None:
            (rejected,), *rows = self._store.in_files(name)
            rows = [] if rejected else rows
            masks = [(hash(row), partial(self._store.png, row[0])) for row in rows]
            names, listed = self.folder.names, self.masks(self.out)
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

    def forget_moved(self, moves: Mapping[str, str]) -> None:
        """Remove masks under the old names of photographs: they are written under the new ones."""
        for old, new in moves.items():
            masks = [stored.mask for stored in self._store.objects(new)]
            stem, place = stem_of(old), self.out / "masks"
            theirs, owners = MaskNames([stem]), (None, stem)
            for path in place.glob(f"{glob.escape(stem)}*.png"):
                mask = stem_of(path.relative_to(place).as_posix())
                own = theirs.owner(mask) and self.folder.names.owner(mask) in owners
                if own and not path.is_symlink() and path.read_bytes() in masks:
                    path.unlink()

    def write_what_is_due(self) -> None:
        """Write the masks that a server which was killed, or a full disk, left unwritten."""
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
                if not self._store.setting("annotations") or self._edited:
                    _back_up(path, self.out)
                    self._store.set_setting("annotations", True)
                    self._edited = False
                numbers = self._numbered(self.folder.photographs)
            write_coco(path, self.folder.photographs, self._store, self._lock, numbers)
            written = digest(path, DIGEST)
            self._resting_until = time.monotonic() + REST * (time.monotonic() - began)
            with self._lock:
                self._store.set_setting("annotations_digest", written)
                if changes == self._changes:
                    self._store.set_setting("annotations_due", False)
                    self._timer.cancel()
        return path

    def _numbered(self, photographs: Sequence[Photograph]) -> Mapping[str, int]:
        """Return the number of each photograph, which stays whatever is added or rejected."""
        following = max(self._image_ids.values(), default=0) + 1
        new = [photo.name for photo in photographs if photo.name not in self._image_ids]
        if new:
            self._image_ids |= {name: number for number, name in enumerate(new, following)}
            self._store.set_setting("image_ids", self._image_ids)
        return dict(self._image_ids)

    def export(self, name: str) -> tuple[Path, list[str]]:
        """Write what is exported under one of `export_names`, in place of its last version.

        Returns the file or folder, and what is not in it, one thing a line.
        """
        annotations = self.write_coco()
        with self._lock:
            efforts, lost = self._store.efforts(), self.left_out()
        if name == COCO:
            return annotations, lost
        path = self._make_room(export_names()[name])
        if name == REPORT:
            write_report(path, efforts)
            return path, lost
        place = place_of(self.folder.path)
        project = self.folder.path.resolve()  # the document root of Label Studio is above it
        storage = PurePosixPath(project.name, "images" if (project / "images").is_dir() else "")
        return path, [*lost, *_CONVERSION["write"](name, annotations, path, storage, place)]

    def _make_room(self, name: str) -> Path:
        """Remove the last export of a name; what was never exported is refused."""
        path = self.out / name
        with self._lock:
            exported = self._store.setting("exports") or []
            if path.exists() and name not in exported:
                raise DataError(
                    f"{path}: exists, and is not an export of this page; rename or remove it"
                )
            self._store.set_setting("exports", sorted({*exported, name}))
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        return path

    def close(self) -> None:
        """Write nothing from now on."""
        with self._writing:
            self._timer.cancel()
            self._closed = True


def _first(names: Collection[str]) -> str:
    """Name some of many."""
    return ", ".join([*names][:3]) + " ..." * (len(names) > 3)


class MaskFiles(NamedTuple):
    """The files in `masks/`."""

    owned: dict[str, list[Path]]  # those of each photograph, by its stem
    refused: dict[Path, str]  # why the others are not read
    stamps: dict[Path, int]  # of the folders, see `probseg.paths.modified`


def mask_files(folder: Path, names: MaskNames) -> MaskFiles:
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


def existing_masks(
    files: Sequence[Path], photograph: Photograph
) -> list[tuple[str, npt.NDArray[np.uint8]]]:
    """Read file and number of each object in mask files, and its labels `(H, W)`."""
    masks = []
    for path in files:
        drawn = read_objects(path)
        if drawn.labels.shape != photograph.size:
            raise DataError(
                f"{path}: has the size {drawn.labels.shape}, its photograph {photograph.size}"
            )
        masks += [(f"{path.name}#{number}", drawn.mask(number)) for number in drawn.numbers]
    return masks


def finished(labels: npt.NDArray[np.uint8]) -> Finished:
    """Encode labels `(H, W)` as they are stored; see `probseg.formats.png.encode`."""
    mask = labels == 1
    return Finished(png.encode(labels), run_lengths.encode(mask)["counts"], int(mask.sum()))


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
    owned, refused, _ = listed or mask_files(folder, names)
    before = owned.get(photograph.stem, [])
    marker = folder / ORIGINALS / f"{photograph.stem}.done"
    if not marker.exists():
        for path in before:
            _back_up(path, folder)
        with replacing(marker) as empty:  # in place of a link
            empty.touch()
    for name, (number, png_of) in contents.items():
        path = folder / "masks" / name
        if written.get(path) == (number, stamp_of(path)):
            continue
        if refused.pop(path, None) is not None:  # it was not read, but has the name
            _back_up(path, folder)
        mask = png_of()
        if path.is_symlink() or not path.is_file() or path.read_bytes() != mask:
            with replacing(path) as unfinished:
                unfinished.write_bytes(mask)
        written[path] = number, stamp_of(path)
    for path in before:
        if path.relative_to(folder / "masks").as_posix() not in contents:
            path.unlink()
    owned[photograph.stem] = [folder / "masks" / name for name in contents]


def _back_up(path: Path, folder: Path) -> None:
    """Copy a file of a folder to the files of before, unless it is a link to elsewhere."""
    if not leads_out(path, folder) and path.is_file():
        home = folder / "masks" if path.is_relative_to(folder / "masks") else path.parent
        with replacing(folder / ORIGINALS / path.relative_to(home)) as copy:
            copy.write_bytes(path.read_bytes())


def write_coco(
    path: Path,
    photographs: Sequence[Photograph],
    store: Store,
    lock: threading.RLock,
    numbers: Mapping[str, int],
) -> None:
    """Write all finished objects as COCO JSON with run lengths.

    `numbers` are the ids of the photographs by name. Besides COCO's own keys, annotations have
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
    categories: dict[str, int] = {}
    drawn = [name for name in known if name in sizes and name in annotated]

    kinds: list[coco.Entry] = []  # known when all annotations are

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
        kinds.extend(coco.numbered(categories))

    def entry(name: str, stored: StoredObject) -> dict[str, Any]:
        lengths = {"size": list(sizes[name]), "counts": stored.counts}
        label = stored.label or "object"
        return {
            "id": stored.id,
            "image_id": numbers[name],
            "category_id": categories.setdefault(label, len(categories) + 1),
            "segmentation": lengths,
            **coco.measures(lengths),
            "prompts": stored.steps[: stored.kept],
            "seconds": round(stored.seconds, 1),
            "model": stored.model,
            **({} if stored.quality is None else {"score": stored.quality}),
        }

    coco.write(path, images, annotations(), kinds)


def export_names() -> dict[str, str]:
    """Return the name of the file or folder of each export, by format; the report is the last."""
    return {COCO: ANNOTATIONS, **_CONVERSION["file_names"], REPORT: "report.csv"}


def write_report(path: Path, efforts: Sequence[Effort]) -> None:
    """Write the work on the objects of each label as CSV, in all and in the mean of an object."""
    totals = ("label", "objects", "seconds", "clicks")
    rows: list[tuple[object, ...]] = [(*totals, "seconds_per_object", "clicks_per_object")]
    for label, objects, seconds, clicks in efforts:
        means = round(seconds / objects, 2), round(clicks / objects, 2)
        rows.append((label, objects, round(seconds, 1), clicks, *means))
    with rewriting(path) as file:
        write_rows(file, rows)
