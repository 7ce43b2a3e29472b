"""The files of a folder: masks that were there, those of finished objects, and all exports."""

from __future__ import annotations

import json
import shutil
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probseg.annotate.photographs import Photograph
from probseg.annotate.store import Effort, Finished, Store, StoredObject
from probseg.data.layout import sort_pictures, unread_folders
from probseg.errors import DataError, UsageError
from probseg.formats import coco, png, run_lengths
from probseg.formats.mask_names import MaskNames
from probseg.kinds import Offers
from probseg.masks import read_objects
from probseg.paths import leads_out, replacing
from probseg.picture_formats import LOSSLESS_SUFFIXES
from probseg.texts import read_text, write_rows

DATABASE = Path(".probseg") / "annotations.sqlite"

ORIGINALS = Path(".probseg") / "masks"
"""Folder of the files of before annotation began."""

ANNOTATIONS = "annotations.json"

KEYS = "keys.json"
"""The file with keys of the page, which a person may write."""

DELAY = 2.0
"""Seconds after a change in which further ones join it before `annotations.json` is written."""

NO_PHOTOGRAPH = "has no photograph of the same name; rename or remove it"

COCO, REPORT = "coco", "report"

_CONVERSION: Offers[Any] = Offers("annotation_export")


def check_links(out: Path) -> None:
    """Raise a UsageError if what is written to a folder would leave it through a link."""
    database = [f"{DATABASE}{end}" for end in ("", "-wal", "-shm", "-journal")]
    names: list[str | Path] = ["masks", ORIGINALS, *database, KEYS]
    for place in (out / name for name in names):
        if leads_out(place, out):
            msg = f"{place}: a link leads out of {out}; remove the link"
            raise UsageError(msg)


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
        msg = f"{path}: cannot be read as JSON ({error}); correct or remove it"
        raise UsageError(msg) from error
    rows = table.items() if isinstance(table, dict) else [("", None)]
    keys: dict[str, Any] = {action: [key] if isinstance(key, str) else key for action, key in rows}
    for several in keys.values():
        if not isinstance(several, list) or not all(isinstance(key, str) for key in several):
            example = '{"done": "w", "next": ["n", "PageDown"]}'
            msg = f"{path}: must be like {example}, got {table!r:.200}"
            raise UsageError(msg)
    return keys


class Files:
    """Mask files and `annotations.json` of a folder while it is annotated.

    Masks that were there are in `folder`, all that is written goes to `out`. Callers of all methods
    but `refused`, `counts`, `write_coco` and `export` hold the lock.
    """

    def __init__(
        self,
        folder: Path,
        out: Path,
        photographs: Sequence[Photograph],
        store: Store,
        lock: threading.RLock,
    ) -> None:
        self.folder, self.out = folder, out
        self._photographs, self._store, self._lock = photographs, store, lock
        self._names = MaskNames(photograph.stem for photograph in photographs)
        self._timer = threading.Timer(0, lambda: None)
        self._closed = False

    def refused(self) -> Iterator[tuple[str, str]]:
        """Yield photographs, masks and folders that are not used, as their names say, and why."""
        for photograph in self._photographs:
            if photograph.error is not None:
                yield photograph.name, photograph.error
        refused = mask_files(self.folder, self._names).refused
        nested = unread_folders(self.folder / "images", self.folder / "masks")
        for path, reason in (*refused.items(), *nested.items()):
            yield path.relative_to(self.folder).as_posix(), reason

    def counts(self) -> dict[str, int]:
        """Return the number of mask files by the stem of their photograph."""
        owned = mask_files(self.folder, self._names).owned
        return {stem: len(paths) for stem, paths in owned.items()}

    def read(self, photograph: Photograph) -> None:
        """Store the masks that a photograph had before it was annotated, at its first use."""
        name = photograph.name
        if photograph.size is None or self._store.photograph(name).revision:
            return
        paths = mask_files(self.folder, self._names).owned.get(photograph.stem, [])
        masks = existing_masks(paths, photograph)
        with self._store.change(name, None):
            for source, labels in masks:
                self._store.add_finished(name, finished(labels), source=source)
            self._store.keep_written(name)

    def write(self, name: str) -> None:
        """Write the mask files of a photograph now, and the COCO file soon."""
        photograph = next((p for p in self._photographs if p.name == name), None)
        if photograph is not None:
            rejected = self._store.photograph(name).state == "rejected"
            objects = [] if rejected else self._store.objects(name)
            write_masks(self.out, photograph, objects, self._names)
        if not self._store.setting("annotations_due"):
            self._store.set_setting("annotations_due", True)
        self._store.set_written(name)
        self._write_coco_soon()

    def write_what_is_due(self) -> None:
        """Write what a server that was killed did not."""
        for name in self._store.unwritten():
            self.write(name)
        if self._store.setting("annotations_due"):
            self._write_coco_soon()

    def _write_coco_soon(self) -> None:
        self._timer.cancel()
        self._timer = threading.Timer(DELAY, self.write_coco)
        self._timer.daemon = True
        self._timer.start()

    def write_coco(self) -> Path:
        """Write `annotations.json`, unless the folder is closed; return its path."""
        path = self.out / ANNOTATIONS
        with self._lock:
            if not self._closed:
                if not self._store.setting("annotations"):  # it may be somebody else's
                    _back_up(path, self.out)
                    self._store.set_setting("annotations", True)
                write_coco(path, self._photographs, self._store)
                self._store.set_setting("annotations_due", False)
        return path

    def export(self, name: str) -> tuple[Path, list[str]]:
        """Write what is exported under one of `export_names`, in place of its last version.

        Returns the file or folder, and what the format cannot hold, one thing a line.
        """
        annotations = self.write_coco()
        with self._lock:
            efforts = self._store.efforts()
        if name == COCO:
            return annotations, []
        path = self._make_room(export_names()[name])
        if name == REPORT:
            write_report(path, efforts)
            return path, []
        project = self.folder.resolve()  # the document root of Label Studio is above it
        storage = PurePosixPath(project.name, "images" if (project / "images").is_dir() else "")
        return path, _CONVERSION["write"](name, annotations, path, storage)

    def _make_room(self, name: str) -> Path:
        """Remove the last export of a name; what was never exported is refused."""
        path = self.out / name
        with self._lock:
            exported = self._store.setting("exports") or []
            if path.exists() and name not in exported:
                msg = f"{path}: exists, and is no export of this page; rename or remove it"
                raise DataError(msg)
            self._store.set_setting("exports", sorted({*exported, name}))
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        return path

    def close(self) -> None:
        """Write nothing from now on."""
        self._timer.cancel()
        self._closed = True


class MaskFiles(NamedTuple):
    """The files in `masks/`."""

    owned: Mapping[str, list[Path]]  # those of each photograph, by its stem
    refused: Mapping[Path, str]  # why the others are not read


def mask_files(folder: Path, names: MaskNames) -> MaskFiles:
    """List the files in `masks/`; what is in them is not looked at."""
    # No link is trusted: copies of the files are kept in the folder, which may be sent back.
    files, refused = sort_pictures(
        folder / "masks", LOSSLESS_SUFFIXES, folder, trusted=lambda path: False
    )
    owned: dict[str, list[Path]] = defaultdict(list)
    for stem, path in files.items():
        owner = names.owner(stem)
        if owner is None:
            refused[path] = NO_PHOTOGRAPH
        else:
            owned[owner].append(path)
    return MaskFiles(owned, refused)


def existing_masks(
    files: Sequence[Path], photograph: Photograph
) -> list[tuple[str, npt.NDArray[np.uint8]]]:
    """Read file and number of each object in mask files, and its labels `(H, W)`."""
    masks = []
    for path in files:
        drawn = read_objects(path)
        if drawn.labels.shape != photograph.size:
            msg = f"{path}: has the size {drawn.labels.shape}, its photograph {photograph.size}"
            raise DataError(msg)
        masks += [(f"{path.name}#{number}", drawn.mask(number)) for number in drawn.numbers]
    return masks


def finished(labels: npt.NDArray[np.uint8]) -> Finished:
    """Encode labels `(H, W)` as they are stored; see `probseg.formats.png.encode`."""
    mask = labels == 1
    return Finished(png.encode(labels), run_lengths.encode(mask)["counts"], int(mask.sum()))


def write_masks(
    folder: Path, photograph: Photograph, objects: Sequence[StoredObject], names: MaskNames
) -> None:
    """Write `masks/<stem>_<n>.png` of the finished objects, and remove those that are no more.

    Files that were there before annotation began are copied to `.probseg/masks/` when the first
    change of their photograph is written, and refused files before one of them is replaced.
    """
    masks = [stored.mask for stored in objects if stored.mask is not None]
    stems = names.first(photograph.stem, len(masks))
    contents = {f"{stem}.png": mask for stem, mask in zip(stems, masks, strict=True)}
    owned, refused = mask_files(folder, names)
    before = owned.get(photograph.stem, [])
    marker = folder / ORIGINALS / f"{photograph.stem}.done"
    if not marker.exists():
        for path in before:
            _back_up(path, folder)
        with replacing(marker) as empty:  # in place of a link
            empty.touch()
    for name, mask in contents.items():
        path = folder / "masks" / name
        if path in refused:  # it was not read, but has the name
            _back_up(path, folder)
        if path.is_symlink() or not path.is_file() or path.read_bytes() != mask:
            with replacing(path) as unfinished:
                unfinished.write_bytes(mask)
    for path in before:
        if path.name not in contents:
            path.unlink()


def _back_up(path: Path, folder: Path) -> None:
    """Copy a file of a folder to the files of before, unless it is a link to elsewhere."""
    if not leads_out(path, folder) and path.is_file():
        with replacing(folder / ORIGINALS / path.name) as copy:
            copy.write_bytes(path.read_bytes())


def write_coco(path: Path, photographs: Sequence[Photograph], store: Store) -> None:
    """Write all finished objects as COCO JSON with run lengths.

    Besides COCO's own keys, annotations have `prompts` (the clicks, boxes and strokes that the
    mask is the answer to, in order; see `probseg.annotate.steps`), `seconds`, `model` and `score`
    (`Mask.quality`; not of masks that were read). Objects without a label are of the category
    `object`. Photographs that were rejected are left out.
    """
    rejected = {name for name, row in store.overview().items() if row.state == "rejected"}
    sizes = {p.name: p.size for p in photographs if p.size and p.name not in rejected}
    numbers = {name: n for n, name in enumerate(sizes, start=1)}
    images = [
        {"id": numbers[name], "file_name": name, "height": height, "width": width}
        for name, (height, width) in sizes.items()
    ]
    categories: dict[str, int] = {}
    annotations: list[dict[str, Any]] = []
    for name in store.names():
        for stored in store.objects(name) if name in sizes else []:
            if stored.counts is None:
                continue
            lengths = {"size": list(sizes[name]), "counts": stored.counts}
            label = stored.label or "object"
            annotations.append(
                {
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
            )
    coco.write(path, images, annotations, coco.numbered(categories))


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
    with path.open("w", newline="", encoding="utf-8") as file:
        write_rows(file, rows)
