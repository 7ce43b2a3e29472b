"""Annotation of a folder: masks from the steps of a client.

All changes and all calls of the model are made under one lock, in the order in which they come.
Objects are rows of steps in the `Store`; `Answers` holds the answers to them.
"""

from __future__ import annotations

import logging
import re
import shlex
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from probseg.annotate.actions import carry_out, checked_label
from probseg.annotate.answers import Answers, ModelHost
from probseg.annotate.database import MOST_LABELS, DamagedError, set_aside
from probseg.annotate.files import DATABASE, Files, check_links, export_names, read_keys
from probseg.annotate.folder import Folder
from probseg.annotate.frames import (
    describe_finished,
    describe_open,
    describe_overview,
    describe_photograph,
    pack,
)
from probseg.annotate.imports import ANNOTATIONS, Upload
from probseg.annotate.learning import LEARNED, MANY_OBJECTS, Example, Learning, trust
from probseg.annotate.photographs import (
    Photograph,
    fingerprint,
    picture_files,
    place_of,
    read_readable,
    readable_size,
    small_map,
    stamp_of,
    stored_region,
)
from probseg.annotate.steps import RequestError, as_step, check_truth, next_click, stored_step
from probseg.annotate.store import MissingError, Store
from probseg.annotate.windows import LONGEST_NAME, Windows
from probseg.descriptions import RECOMMENDED
from probseg.errors import USER_ERRORS, DataError, UsageError
from probseg.formats import polygons
from probseg.formats.prompts import MAX_RADIUS
from probseg.interact.session import Session
from probseg.paths import alone_in

_logger = logging.getLogger(__name__)

REVIEWED = ("accepted", "rejected")
"""States that a photograph loses when it is changed."""

RULES = ("avoid_finished", "tidy")
"""Settings of the masks, true or false."""

PATIENCE = 2.0
"""Seconds that a page waits for existing masks; those of large folders arrive later."""

TELLING = 0.5
"""Seconds between two news of how far an export is."""

MOST_MASKS = 1000
"""Masks in one answer."""


class Sessions:
    """The photographs of a folder while they are annotated.

    Masks, `annotations.json` and the database go to `out`, None for the folder itself. `labels` can
    be chosen besides those that the database knows; `imported` are annotations of other programs.
    """

    def __init__(
        self,
        folder: Path,
        out: Path | None,
        model_host: ModelHost,
        labels: Sequence[str] = (),
        imported: Path | None = None,
    ) -> None:
        self.out = out or folder
        picture_files(folder)  # nothing is made in a folder without any
        check_links(self.out)
        read_keys(self.out)
        self._lock = threading.RLock()
        self.out.mkdir(parents=True, exist_ok=True)
        self.model_host = model_host
        with ExitStack() as opened:
            opened.enter_context(alone_in(self.out, "annotate"))
            damage: str | None = None
            before: dict[str, int] = {}
            try:
                self.store = Store(self.out / DATABASE)
            except DamagedError as error:
                aside, before = set_aside(self.out / DATABASE)
                damage = f"{error.fault}; it is kept as {aside.name}"
                self.store = Store(self.out / DATABASE)
            opened.callback(self.store.close)
            self._folder = Folder(folder, self.store, self._lock)
            self.files = Files(self._folder, self.out, self.store, self._lock, imported)
            self.labels: list[str] = self.store.setting("labels") or []
            self.windows = Windows()
            self.shared = 0  # number of changes of what all windows have in common
            self._changed_by: dict[str, str] = {}  # window of the last change of each photograph
            # new names of classes, for windows and clients that know the old ones
            self._aliases: dict[str | None, str | None] = self.store.setting("renamed") or {}
            rules = {name: self.store.setting(name) in (None, True) for name in RULES}
            self.answers = Answers(model_host, self.store, **rules)
            self.files.on_new_objects = self.answers.drop_finished
            self._background = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
            self._ahead: list[Future[None]] = []
            self._upload = Upload()
            self._stopped: set[object] = set()  # windows that want no export any more
            self._reading = Thread(target=self._read_all, daemon=True)
            if labels or self.files.classes:
                try:
                    names = [*map(checked_label, labels), *self.labels, *self.files.classes]
                    self.set_labels(names)
                except RequestError as error:
                    raise UsageError(f"--labels: {error}") from error
            self.learning = Learning(self.out / LEARNED, self._tell_learning)
            model_host.learning = self.learning
            past = self.store.setting("inference")
            if past is not None:
                model_host.resume(folder, **past)
            if model_host.first is not None:
                self._remember_inference()
            with self._lock:
                self.files.write_what_is_due()
            if damage is not None:
                self.files.read_all()
                there = self.store.count()
                rows = [f"{there[w]} of {before.get(w, 'an unknown number of')} {w}" for w in there]
                text = "%s, and a new one was made from annotations.json and the masks: it has %s"
                _logger.warning(text, damage, ", ".join(rows))
            self._opened = opened.pop_all()
        self._reading.start()

    @property
    def folder(self) -> Path:
        """The folder of the photographs."""
        return self._folder.path

    @property
    def photographs(self) -> Sequence[Photograph]:
        """All photographs."""
        return self._folder.photographs

    def close(self) -> None:
        """Write what is not written yet, and close the database.

        Masks from before the first start that are not read yet are left to the next session.
        """
        self.learning.stop()
        self._background.shutdown(cancel_futures=True)
        self._upload.close()
        try:
            self.files.write_coco(reads=False)
        except sqlite3.Error as error:  # the disk is full
            raise UsageError(
                f"{self.out}: annotations.json is not up to date ({error}); make room, and the "
                "next start of `probseg annotate` writes it; nothing is lost"
            ) from error
        finally:
            self.files.close()
            with self._lock:
                self._opened.close()

    def _read_all(self) -> None:
        """Read the masks from before the first start; a request does not wait for this."""
        with suppress(sqlite3.ProgrammingError):  # the database was closed meanwhile
            self.files.read_all()

    def _refresh(self, *, look: bool = False) -> None:
        """Take note of photographs that were added, removed, renamed or changed; under the lock."""
        for name, before in self._folder.refresh(look=look).items():
            self.answers.forget(before)
            if self.store.photograph(name).revision:  # who has the page open is told
                with self.store.change(name, None):
                    self.store.keep_written(name)
        self.files.write_what_is_due()

    # What clients read

    def begin(self) -> dict[str, Any]:
        """Return what a page needs to begin."""
        with self._lock:
            self._refresh()
        if not self._reading.is_alive():  # of photographs and masks that were added
            self.files.read_all(look=True)
        self._reading.join(PATIENCE)
        with self._lock:
            overview, left = self.store.overview(), dict(self.files.unread())
            rows = [describe_overview(p, overview.get(p.name)) for p in self.photographs]
        objects = sum(row["objects"] for row in rows)
        return {
            "models": self.model_host.names,
            **self.share(),
            "photographs": rows,
            "train_command": self._train_command(objects),
            "formats": [*export_names()],
            "keys": read_keys(self.out),
            "folder": self.folder.name,
            "unread": len(left),
            "left_out": self.files.left_out(),
            "open": self.windows.opened(),
        }

    def _train_command(self, objects: int) -> str:
        """Return the command that fine-tunes the recommended model on the objects of the folder.

        It is empty where photographs and masks are in different folders.
        """
        if self.out.resolve() != self.folder.resolve():
            return ""
        root = shlex.quote(str(self.folder.resolve()))
        recipe = "probseg fit --config configs/experiment/folder.yaml"
        if any(photo.inside for photo in self.photographs):  # masks/ is read without sub-folders
            images = shlex.quote(str(place_of(self.folder).resolve()))
            names = shlex.quote(str(self.folder.resolve() / ANNOTATIONS))
            parts = [
                f"--data.{part}.annotations {names} --data.{part}.images {images}"
                for part in ("train", "val")
            ]
            return " ".join([recipe, "--data configs/data/coco_json.yaml", *parts])
        command = f"{recipe} --data.root {root}"
        return command if objects >= MANY_OBJECTS else f"{command} --data.batch_size 4"

    def share(self) -> dict[str, Any]:
        """Return what all windows have in common, and the number of its changes."""
        return {
            "shared": self.shared,
            "model": {"name": self.model_host.name},
            "learning": self._learning(),
            "labels": [*self.labels],
            "renamed": self._aliases,
            "settings": self.settings(),
        }

    def settings(self) -> dict[str, Any]:
        """Return the settings of inference; None for those that the network lacks."""
        rules = {name: getattr(self.answers, name) for name in RULES}
        return {**self.model_host.settings(), **rules}

    def photograph(self, name: str) -> Photograph:
        """Return a photograph by its opaque name, as its file is now."""
        photograph = self._folder.find(name)
        if stamp_of(photograph.path) != photograph.stamp:
            with self._lock:
                self._refresh(look=True)
            photograph = self._folder.find(name)
        return photograph

    def describe(self, photograph: Photograph) -> dict[str, Any]:
        """Return all that a page shows of a photograph."""
        with self._lock:
            self.files.read(photograph.name, photograph)
            stored = self.store.photograph(photograph.name)
            current = self.store.open_object(photograph.name)
            listed = self.store.listed(photograph.name)
            return describe_photograph(photograph, stored, current, listed)

    def keep(self, photograph: Photograph) -> dict[str, Any]:
        """Let objects stay on a file that has changed, and return what a page begins with."""
        with self._lock:
            self._folder.keep(photograph)
            self._refresh(look=True)
            self.files.write_annotations_soon()
            self.windows.tell({"again": True})
        return self.begin()

    def open(self, photograph: Photograph, window: object = None) -> dict[str, Any]:
        """Describe a photograph, and prepare it and the next one in the background."""
        if isinstance(window, str):
            self.windows.opens(window, photograph.id)
        described = self.describe(photograph)
        for waiting in self._ahead:
            waiting.cancel()
        readable = [photograph] if photograph.error is None else []
        readable += self._folder.after(photograph)
        self._ahead = [self._background.submit(self._prepare, p) for p in readable]
        return described

    def masks(self, photograph: Photograph, numbers: str) -> bytes:
        """Return a frame for each object that has a mask, of those whose numbers an address has."""
        known = [int(one) for one in numbers.split(",") if re.fullmatch(r"\d{1,18}", one, re.ASCII)]
        with self._lock:
            objects = self.store.listed(photograph.name, known[:MOST_MASKS])
        if not objects:
            raise MissingError(numbers)
        regions = ((one.id, stored_region(one.counts, photograph)) for one in objects)
        return b"".join(pack({"object": number}, region) for number, region in regions)

    def small_masks(self, photograph: Photograph) -> bytes:
        """Return the frame of all finished objects at the size of the thumbnail.

        The map has the place of each pixel's object in `objects` of the header, from 1 on; of more
        than 255 objects only the first have one.
        """
        with self._lock:
            self.files.read(photograph.name, photograph)
            drawn = self.store.listed(photograph.name)[:255]
        shown = [{"id": one.id, "label": one.label} for one in drawn]
        return pack({"objects": shown}, small_map([one.counts for one in drawn], photograph))

    def outline(self, photograph: Photograph, tolerance: float) -> dict[str, Any]:
        """Return the outline of the open object, simplified to a tolerance in pixels."""
        if not tolerance <= MAX_RADIUS:
            raise RequestError(f"`tolerance` must be at most {MAX_RADIUS} pixels, got {tolerance}")
        with self._lock:
            mask = self.answers.mask(photograph, self._session(photograph).answer)
        parts = [] if mask is None else polygons.trace(mask, tolerance)
        rings = [[part.outer.tolist(), *(hole.tolist() for hole in part.holes)] for part in parts]
        return {"polygons": rings}

    def current_mask(self, photograph: Photograph) -> bytes:
        """Return the frame of the open object, with all that a page shows of the photograph."""
        with self._lock:
            described = self.describe(photograph)
            return self._frame(photograph, {**described, **_timed({}, time.perf_counter())})

    def without_adapting(self, photograph: Photograph) -> bytes:
        """Return the frame of the open object as if the network did not adapt; nothing changes."""
        with self._lock:
            current = self.store.open_object(photograph.name)
            mask = self.answers.without_adapting(photograph, current) if current else None
            return pack({}, mask)

    def preview(self, photograph: Photograph, request: Mapping[str, Any]) -> bytes | None:
        """Return the answer to one more click, which is not added; None if the model is busy."""
        step = as_step(stored_step({**request, "type": "click"}, readable_size(photograph)))
        if not self._lock.acquire(blocking=False):
            return None
        try:
            began = time.perf_counter()
            answer = self._session(photograph).preview(step)
            return pack(_timed(request, began), self.answers.mask(photograph, answer))
        finally:
            self._lock.release()

    def uncertainty(self, photograph: Photograph) -> bytes:
        """Return the frame of the entropy of each pixel, and where to click next."""
        with self._lock:
            began = time.perf_counter()
            answer = self._session(photograph).answer
        if answer.mask is None:
            entropy, suggestion = np.zeros(answer.state.photograph.size, np.float32), None
        else:
            entropy, suggestion = answer.mask.uncertainty, next_click(answer.mask)
        header = {**_timed({}, began), "suggestion": suggestion}
        return pack(header, np.rint(entropy * 255).astype(np.uint8))

    # What clients change

    def act(self, photograph: Photograph, request: Mapping[str, Any]) -> bytes:
        """Carry out an action, store it, and return the resulting frame."""
        action, revision = request.get("action"), request.get("revision")
        if not isinstance(action, dict) or type(revision) is not int:
            raise RequestError(
                "expected {'sequence': number, 'revision': number, 'action': {'type': ...}}"
            )
        with self._lock:
            began, name = time.perf_counter(), photograph.name
            self.files.read(photograph.name, photograph)
            try:
                with self.store.change(name, revision) as before:
                    files_change = carry_out(self, photograph, action)
                    files_change = self._update_state(name, before.state, files_change)
                    if not files_change:
                        self.store.keep_written(name)
                    if photograph.error is None and self.store.lacks_fingerprint(name):
                        pixels = self.answers.open(photograph).pixels
                        self.store.set_fingerprint(name, fingerprint(photograph, pixels))
            except BaseException:
                self.answers.drop(photograph)  # its steps were not stored
                self.answers.drop_finished(photograph)
                raise
            news: dict[str, Any] = {}
            if files_change:
                self.answers.drop_finished(photograph)
                self.files.write(name)
                news["objects"] = describe_finished(self.store.listed(name), photograph)
            state = self.store.photograph(name).state
            if state != before.state:
                news["state"] = state
                if action["type"] in ("undo", "redo"):
                    news["was"] = before.state
                elif before.state in REVIEWED and action["type"] != "state":
                    news["reviewed"] = before.state
            window = request.get("window")
            by = window if isinstance(window, str) and len(window) <= LONGEST_NAME else ""
            self._changed_by[name] = by
            if self.windows:  # whose lists show what one of them has changed
                row = describe_overview(photograph, self.store.overview(name).get(name))
                self.windows.tell({"photo": row, "by": by})
            return self._frame(photograph, {**news, **_timed(request, began)})

    def change_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Change settings of inference; the open objects are answered with the new ones."""
        rest = dict(settings)
        with self._lock:
            rules = {name: check_truth(rest, name, getattr(self.answers, name)) for name in RULES}
            rest = {name: value for name, value in rest.items() if name not in RULES}
            try:
                self.model_host.change(rest)
            except (TypeError, ValueError) as error:
                raise RequestError(str(error)) from error
            for name, value in rules.items():
                setattr(self.answers, name, value)
                self.store.set_setting(name, value)
            if rest:
                self._remember_inference()
                self.answers.clear()
            self._share()
            return self.share()

    def choose_model(self, name: object) -> None:
        """Answer with another model from now on."""
        with self._lock:
            if not isinstance(name, str) or name not in self.model_host.names:
                raise RequestError(f"`model` must be one of {self.model_host.names}, got {name!r}")
            self.model_host.load(name)
            self._remember_inference()
            self.answers.clear()
            self._share()

    def change_labels(self, change: Mapping[str, Any]) -> dict[str, Any]:
        """Add a class, rename or remove one with its objects, or order the classes.

        Windows keep each other's changes. Objects of a class that gets the name of another class
        join it; objects of a removed class have no class.
        """
        with self._lock:
            match change:
                case {"add": label}:
                    self.set_labels([*self.labels, checked_label(label)])
                case {"order": [*labels]}:
                    known = [label for label in labels if label in self.labels]
                    self.set_labels([*known, *self.labels])
                case {"rename": str(name), "to": label} if old := checked_label(name):
                    new = checked_label(label)
                    self._aliases.pop(new, None)
                    if old != new:
                        self.store.relabel(old, new)
                        self._aliases[old] = new
                        last = [*self._aliases.items()][-MOST_LABELS:]
                        self.store.set_setting("renamed", dict(last))
                        if new is not None:
                            self.files.rename_class(old, new)
                    self.set_labels([new if label == old else label for label in self.labels])
                    self.files.write_annotations_soon()
                case _:
                    raise RequestError(
                        "expected {'add': name}, {'rename': name, 'to': name or null} or 'order'"
                    )
            return self.share()

    def bring(self, piece: Mapping[str, Any]) -> dict[str, Any]:
        """Take a piece of files with objects of another program; see `Upload.add`.

        Returns the number of objects that the last piece brings to the photographs.
        """
        with self._upload.lock:
            whole = self._upload.add(piece)
            if whole is None:
                return {}
            with self._lock:
                before = sum(self.store.with_objects().values())
                names = [photo.name for photo in self._folder.photographs]
            try:
                self._upload.sort(names)
                self.files.bring(whole)
            except USER_ERRORS as error:  # which name files by their paths in a temporary folder
                raise RequestError(self._upload.named(str(error))) from error
        self.files.read_all()
        with self._lock:
            self.set_labels([*self.labels, *self.files.classes])
            self.windows.tell({"again": True})
            return {"objects": sum(self.store.with_objects().values()) - before}

    def current_label(self, label: object) -> str | None:
        """Return a label of a client under the name that it has now."""
        name = checked_label(label)
        while name in self._aliases and name not in self.labels:
            name = self._aliases[name]
        return name

    def set_labels(self, labels: Sequence[str | None]) -> None:
        """Set the classes to choose from."""
        names = list(dict.fromkeys(name for name in labels if name is not None))
        if len(names) > MOST_LABELS:
            raise RequestError(f"`labels` must be at most {MOST_LABELS} names")
        if names != self.labels:
            self.labels = names
            self.store.set_setting("labels", names)
            self._share()

    def export(self, name: object, window: object = None) -> dict[str, Any]:
        """Write the finished objects in a format of `export_names`, or the report of the work.

        The windows are told how far the work is, with the name of the one that asked for it.
        Returns the path, the photographs with open objects, and what the format cannot hold.
        """
        names = list(export_names())
        if name not in names:
            raise RequestError(f"`format` must be one of {names}, got {name!r:.200}")
        told = time.monotonic()
        self._stopped.discard(window)

        def progress(done: int) -> None:
            nonlocal told
            if window in self._stopped:
                raise DataError("stopped: nothing was written, and the last version was removed")
            if (now := time.monotonic()) - told > TELLING:
                told = now
                self.windows.tell({"export": done, "of": len(self.photographs), "by": window})

        path, lost = self.files.export(str(name), progress)
        with self._lock:
            unfinished = self.store.with_open_objects()
        return {"path": str(path), "unfinished": unfinished, "lost": lost}

    def stop_export(self, window: object) -> dict[str, Any]:
        """End the export that a window asked for."""
        self._stopped.add(window)
        return {}

    def learn(self, minutes: object) -> dict[str, Any]:
        """Train on the finished photographs in a process of its own, from a learned model if used.

        The windows are told how far it is, and what came out.
        """
        first = self.model_host.learned.get(self.model_host.name)
        self.learning.start(minutes, [*self._examples()], first)
        return self._learning()

    def stop_learning(self) -> dict[str, Any]:
        """End the training; another `learn` goes on from its last epoch."""
        self.learning.stop()
        return self._learning()

    def use_learned(self, *, use: bool) -> None:
        """Answer with the model that was learned last, or again with the one before."""
        with self._lock:
            learned, now = self.model_host.learned, self.model_host.name
            if use and (name := self.learning.status().get("model")):
                if now not in learned:
                    self.store.set_setting("unlearned", now)
                trust(learned[name])
                self.choose_model(name)
            elif not use and now in learned:
                before = self.store.setting("unlearned")
                self.choose_model(before if before in self.model_host.names else RECOMMENDED)
            else:
                raise RequestError("there is no learned model" if use else "none is used")

    def _examples(self) -> Iterator[Example]:
        """Yield the photographs that are done or accepted, with their finished objects."""
        with self._lock:
            overview = self.store.overview()
        for photo in self.photographs:
            known = overview.get(photo.name)
            if photo.error is None and known is not None and known.state in ("done", "accepted"):
                with self._lock:
                    masks = [self.store.png(one.id) for one in self.store.listed(photo.name)]
                if masks:
                    yield Example(photo.path, photo.name, masks)

    def _learning(self) -> dict[str, Any]:
        """Return what a page shows of a learning, and whether a learned model is used."""
        return {**self.learning.status(), "used": self.model_host.name in self.model_host.learned}

    def _tell_learning(self) -> None:
        status = self._learning()
        if status["state"] == "done":
            self.learning.forget(self.model_host.name)
        self.windows.tell({"learning": status})

    def report(self) -> dict[str, Any]:
        """Return the work on finished objects by label."""
        self.files.read_all()
        with self._lock:
            return {"labels": [effort._asdict() for effort in self.store.efforts()]}

    # Inside the lock

    def _session(self, photograph: Photograph) -> Session:
        """Return the session of the open object, or of a new one where none is open."""
        return self.answers.session(photograph, self.store.open_object(photograph.name))

    def _update_state(self, name: str, before: str, files_change: bool) -> bool:
        """Withdraw the decision on a photograph that has changed; return whether files change.

        Its state is then open if an object is open, else done.
        """
        state, opens = self.store.photograph(name).state, self.store.open_object(name) is not None
        if state != before or state not in ("done", *REVIEWED):
            return files_change
        if opens or (files_change and state in REVIEWED):
            self.store.set_state(name, "open" if opens else "done")
        return files_change or (opens and state == "rejected")

    def _remember_inference(self) -> None:
        inference = {"model": self.model_host.name, "settings": self.model_host.settings()}
        self.store.set_setting("inference", inference)

    def _frame(self, photograph: Photograph, news: Mapping[str, Any]) -> bytes:
        """Return the frame of the open object, with news for the client in the header."""
        stored = self.store.photograph(photograph.name)
        current, mask = self.store.open_object(photograph.name), None
        shown = describe_open(stored, current)
        if current is not None and photograph.error is None:
            answer = self.answers.session(photograph, current).answer
            mask, whole = self.answers.mask(photograph, answer), answer.mask
            covered: float = 0
            if mask is not None and whole and (pixels := np.count_nonzero(whole.binary)):
                covered = 1 - np.count_nonzero(mask) / pixels
            shown["current"] |= {
                "quality": round(whole.quality, 3) if whole and answer.predicted else None,
                "scales": len(answer.state.tried),
                "covered": covered,
            }
        by = self._changed_by.get(photograph.name)
        known = {"revision": stored.revision, "shared": self.shared}
        return pack({**known, **({} if by is None else {"by": by}), **news, **shown}, mask)

    def _share(self) -> None:
        """Tell all windows that what they have in common has changed."""
        self.shared += 1
        self.windows.tell({"shared": self.shared})

    def _prepare(self, photograph: Photograph) -> None:
        if photograph in self.answers:
            return
        with suppress(DataError):  # the request that needs it says why
            image = read_readable(photograph)  # clicks on another one are answered meanwhile
            with self._lock:
                self.answers.open(photograph, image)


def _timed(request: Mapping[str, Any], began: float) -> dict[str, Any]:
    """Return the number of a request and the time since it `began`, for the answer's header."""
    milliseconds = round(1000 * (time.perf_counter() - began), 1)
    return {"sequence": request.get("sequence", 0), "milliseconds": milliseconds}
