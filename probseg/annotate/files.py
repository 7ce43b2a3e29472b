"""The masks of a folder: those that were there are read, finished objects are written."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from probseg.annotate import output
from probseg.annotate.keys import KEYS
from probseg.annotate.photographs import Photograph
from probseg.annotate.store import Store
from probseg.data.layout import unread_folders
from probseg.errors import DataError, UsageError
from probseg.formats.mask_names import MaskNames
from probseg.paths import leads_out

DATABASE = Path(".probseg") / "annotations.sqlite"

DELAY = 2.0
"""Seconds after a change in which further ones join it before `annotations.json` is written."""


def check_links(out: Path) -> None:
    """Raise a UsageError if what is written to a folder would leave it through a link."""
    database = [f"{DATABASE}{end}" for end in ("", "-wal", "-shm", "-journal")]
    for place in (out / name for name in ("masks", ".probseg/masks", *database, KEYS)):
        if leads_out(place, out):
            msg = f"{place}: a link leads out of {out}; remove the link"
            raise UsageError(msg)


class Files:
    """Mask files and `annotations.json` of a folder while it is annotated.

    Args:
        folder: Of the photographs, and perhaps of `masks/` that were there before.
        out: Where masks and `annotations.json` go.
        photographs: All photographs.
        store: Their objects.
        lock: Held by callers of all methods but `refused`, `counts`, `write_coco`
            and `take`.
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
        refused = output.mask_files(self.folder, self._names).refused
        nested = unread_folders(self.folder / "images", self.folder / "masks")
        for path, reason in (*refused.items(), *nested.items()):
            yield path.relative_to(self.folder).as_posix(), reason

    def counts(self) -> dict[str, int]:
        """Return the number of mask files by the stem of their photograph."""
        owned = output.mask_files(self.folder, self._names).owned
        return {stem: len(paths) for stem, paths in owned.items()}

    def read(self, photograph: Photograph) -> None:
        """Store the masks that a photograph had before it was annotated, at its first use.

        Raises:
            DataError: If a file cannot be read, or has another size.
        """
        name = photograph.name
        if photograph.size is None or self._store.photograph(name).revision:
            return
        paths = output.mask_files(self.folder, self._names).owned.get(photograph.stem, [])
        masks = output.existing_masks(paths, photograph)
        with self._store.change(name, None):
            for source, labels in masks:
                self._store.add_finished(name, output.finished(labels), source=source)
            self._store.keep_written(name)

    def write(self, name: str) -> None:
        """Write the mask files of a photograph now, and the COCO file soon."""
        photograph = next((p for p in self._photographs if p.name == name), None)
        if photograph is not None:
            rejected = self._store.photograph(name).state == "rejected"
            objects = [] if rejected else self._store.objects(name)
            output.write_masks(self.out, photograph, objects, self._names)
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
        path = self.out / output.ANNOTATIONS
        with self._lock:
            if not self._closed:
                if not self._store.setting("annotations"):
                    output.keep_annotations(self.out)
                    self._store.set_setting("annotations", True)
                output.write_coco(path, self._photographs, self._store)
                self._store.set_setting("annotations_due", False)
        return path

    def take(self, name: str) -> Path:
        """Return the path of a file or folder that is exported anew; its last version is removed.

        Raises:
            DataError: If there is something of the name that was never exported.
        """
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
