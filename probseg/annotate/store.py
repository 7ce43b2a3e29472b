"""The database of annotations: photographs, objects, and every step of each object.

Every change is one transaction, which is on the disk when it returns. Each photograph has one
history of all changes of its objects and its state, for undo and redo: see
`probseg.annotate.database`. After a kill, the server continues at the same step.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from probseg.annotate.database import (
    INVERSES,
    PLACES,
    SETTINGS,
    DamagedError,
    count,
    is_label,
    literal,
    open_database,
    values,
)
from probseg.annotate.steps import check_stored
from probseg.errors import UsageError
from probseg.formats import png, run_lengths
from probseg.paths import replacing

_logger = logging.getLogger(__name__)

LONGEST_PAUSE = 30.0
"""Longer times in seconds between two steps count as this much."""

NO_LABEL = "object"
"""Category of objects without a label."""

State = Literal["open", "done", "review", "accepted", "rejected", "returned"]
"""The annotator is at work, has finished, or is unsure; the reviewer is content, leaves the
photograph out of all files, or sends it back."""


class Finished(NamedTuple):
    """A finished mask: as a mask file, as COCO's compressed run lengths, and its pixels."""

    png: bytes
    counts: str
    area: int

    @classmethod
    def from_labels(cls, labels: npt.NDArray[np.uint8]) -> Finished:
        """Encode labels `(H, W)`; see `probseg.formats.png.encode`."""
        mask = labels == 1
        return cls(png.encode(labels), run_lengths.encode(mask)["counts"], int(mask.sum()))


class StoredPhotograph(NamedTuple):
    """What is stored of a photograph itself."""

    state: State
    revision: int  # number of its changes
    undo: bool  # whether there is a change to undo
    redo: bool
    comment: str | None = None  # of the reviewer who sent it back


class Past(NamedTuple):
    """How a mask came about, as far as it is known."""

    steps: Sequence[dict[str, Any]] = ()
    seconds: float = 0.0
    model: str | None = None
    quality: float | None = None


class Overview(NamedTuple):
    """What the list of photographs says of one of them."""

    state: State
    labels: dict[str, int]  # number of finished objects by label, which is empty for those without
    quality: float | None  # the lowest `Mask.quality` of its finished objects
    comment: str | None  # of the reviewer who sent it back
    revision: int  # number of its changes


class Effort(NamedTuple):
    """Work on the finished objects of a label."""

    label: str  # empty for objects without
    objects: int  # masks that were read from files count once somebody opened them
    seconds: float
    clicks: int


class Fingerprint(NamedTuple):
    """The file of a photograph on which objects were drawn."""

    height: int  # of the photograph, upright
    width: int
    bytes: int
    modified: int  # nanoseconds
    digest: str  # of the content of the file
    pixels: str  # of the pixels, which stay if a program writes keywords into the file


class Listed(NamedTuple):
    """A finished object as it is listed and drawn."""

    id: int
    label: str | None
    counts: str
    area: int
    clicks: int
    seconds: float
    quality: float | None


class MissingError(KeyError):
    """There is no such photograph or object."""


class StaleRevisionError(RuntimeError):
    """The photograph was changed by another client since this one read it."""


@dataclass(frozen=True)
class StoredObject:
    """An object of a photograph."""

    id: int  # unique in the database
    label: str | None
    open: bool  # whether it is being annotated; at most one of a photograph is
    steps: tuple[dict[str, Any], ...]  # clicks, boxes, strokes and patches in order
    kept: int  # number of steps to which `mask` is the answer; 0 if one was replaced since
    mask: bytes | None  # PNG of the finished mask; None before
    counts: str | None  # the same as COCO's compressed run lengths
    area: int | None
    base: bytes | None  # PNG of the mask before the first step, read from a file or copied
    model: str | None  # which answered last; None for masks that were read
    seconds: float  # from the last step on another object to its end, without long pauses
    quality: float | None  # `Mask.quality` of the finished mask; None for masks that were read


class Store:
    """The database of a folder."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"{path.parent}: cannot be made ({error}); choose another --out"
            ) from error
        self._last: float | None = None  # time of the last step on any object
        self._path = path
        self._open()
        try:
            self._refuse_damage()
        except BaseException:
            self.close()
            raise

    def _restore_file(self) -> None:
        """Write all rows to a new file if another program has removed or replaced ours.

        A file that took its place is kept beside it, under another name.
        """
        place = self._path
        state = place.stat() if place.exists() else None
        if state is not None and (state.st_dev, state.st_ino) == self._file:
            return
        if state is not None:
            place.rename(place.with_name(f"{place.name}.replaced-{time.time_ns()}"))
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as draft, closing(sqlite3.connect(draft)) as copy:
            self._db.set_authorizer(None)
            self._db.backup(copy)
        self._db.close()
        for end in ("-wal", "-shm"):
            place.with_name(f"{place.name}{end}").unlink(missing_ok=True)
        self._open()
        _logger.warning("%s was removed or replaced by another program; it is written anew", place)

    def _open(self) -> None:
        self._db = open_database(self._path)
        state = self._path.stat()
        self._file = state.st_dev, state.st_ino

    def count(self) -> dict[str, int]:
        """Return how many objects, steps, decisions and changes to undo there are."""
        return count(self._db)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def change(self, photo: str, revision: int | None) -> Iterator[StoredPhotograph]:
        """Make all changes of a block one transaction on a photograph, and yield it as it was."""
        self._restore_file()
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO photographs (name) VALUES (?)", (photo,))
            before = self.photograph(photo)
            if revision is not None and revision != before.revision:
                raise StaleRevisionError
            sql = "UPDATE photographs SET revision = revision + 1 WHERE name = ?"
            self._db.execute(sql, (photo,))
            if revision is not None:
                # While this row exists, triggers of the schema write the history of each statement.
                sql = "INSERT INTO recording VALUES (?, ?, 0)"
                self._db.execute(sql, (photo, before.revision + 1))
            yield before
            self._db.execute("DELETE FROM recording")
            sql = (  # a new change takes the place of those that were undone
                "DELETE FROM history WHERE photo = ? AND undone = 1 AND EXISTS "
                "(SELECT 1 FROM history WHERE photo = ? AND undone = 0 AND revision = ?)"
            )
            self._db.execute(sql, (photo, photo, before.revision + 1))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Make all changes of a block, or none."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # SQLite has ended it itself if the disk is full
                self._db.execute("ROLLBACK")
            raise

    def photograph(self, photo: str) -> StoredPhotograph:
        """Return what is stored of a photograph."""
        has = "EXISTS (SELECT 1 FROM history WHERE photo = name AND undone = {})"
        columns = f"state, revision, {has.format(0)}, {has.format(1)}, comment"
        sql = f"SELECT {columns} FROM photographs"
        row = self._db.execute(f"{sql} WHERE name = ?", (photo,)).fetchone()
        if row is None:
            return StoredPhotograph("open", 0, undo=False, redo=False)
        state, revision, undo, redo, comment = row
        return StoredPhotograph(state, revision, bool(undo), bool(redo), comment)

    def undo(self, photo: str) -> bool:
        """Undo the last change of a photograph, if there is one; inside `change`."""
        sql = "SELECT MAX(revision) FROM history WHERE photo = ? AND undone = 0"
        return self._take_back(photo, self._db.execute(sql, (photo,)).fetchone()[0], undone=False)

    def redo(self, photo: str) -> bool:
        """Redo the change of a photograph that was undone last; inside `change`."""
        sql = "SELECT MIN(revision) FROM history WHERE photo = ? AND undone = 1"
        return self._take_back(photo, self._db.execute(sql, (photo,)).fetchone()[0], undone=True)

    def _take_back(self, photo: str, revision: int | None, *, undone: bool) -> bool:
        """Take back the change that led to a revision; None if there is no change."""
        if revision is None:
            return False
        # The triggers record the inverses of these inverses: undo leaves what redo needs.
        self._db.execute("UPDATE recording SET revision = ?, undone = ?", (revision, not undone))
        group = "FROM history WHERE photo = ? AND undone = ? AND revision = ?"
        known = (photo, undone, revision)
        sql = f"SELECT inverse, literals {group} ORDER BY number DESC"
        rows = self._db.execute(sql, known).fetchall()
        self._db.execute(f"DELETE {group}", known)
        self._reverse(photo, rows)
        return True

    def _reverse(self, photo: str, rows: Sequence[tuple[str, str]]) -> None:
        """Carry out what takes changes back: names of `INVERSES`, and literals of their values."""
        (last,) = self._db.execute("SELECT COALESCE(MAX(number), 0) FROM history").fetchone()
        try:
            for inverse, literals in rows:
                self._db.execute(INVERSES[inverse], values(literals))
        except sqlite3.OperationalError:  # the disk is full
            raise
        except (LookupError, ValueError, OverflowError, sqlite3.Error) as error:
            fault = f"the history of {photo} is damaged ({error!r:.200})"
            raise DamagedError(self._path, fault) from error
        self._refuse_damage("id IN (SELECT object FROM history WHERE number > ?)", last)

    def _refuse_damage(self, which: str = "TRUE", *some: int) -> None:
        """Raise a `DamagedError` unless all objects, or those that are meant, are as stored.

        What the schema can say is checked already, see `probseg.annotate.database`.
        """
        finished = "open = 0 AND (mask IS NULL OR counts IS NULL OR area IS NULL)"
        sql = f"SELECT id FROM objects WHERE {which} AND {finished}"
        faults = [f"object {number} has no mask" for (number,) in self._db.execute(sql, some)]
        sql = f"SELECT id, label FROM objects WHERE {which} AND label IS NOT NULL"
        for number, label in self._db.execute(sql, some):
            if not is_label(label):
                faults.append(f"the label of object {number} is {label!r:.100}")
        sql = f"SELECT object, body FROM steps JOIN objects ON id = object WHERE {which}"
        for number, body in self._db.execute(sql, some):
            try:
                check_stored(body)
            except ValueError as error:
                faults.append(f"a step of object {number}: {error}")
        if faults:
            raise DamagedError(self._path, f"is damaged ({faults[0]})")

    def overview(self, photo: str | None = None) -> dict[str, Overview]:
        """Return what the list of photographs says of each known one, or of one, by name."""
        one, values_of_it = ("", ()) if photo is None else (" WHERE name = ?", (photo,))
        sql = (
            "SELECT name, state, (SELECT MIN(quality) FROM objects WHERE photo = name AND open = 0)"
            f", comment, revision FROM photographs{one}"
        )
        rows = self._db.execute(sql, values_of_it)
        known = {name: Overview(state, {}, *rest) for name, state, *rest in rows}
        sql = (
            "SELECT photo, COALESCE(label, ''), COUNT(*) FROM objects WHERE open = 0 "
            f"{'' if photo is None else 'AND photo = ? '}GROUP BY photo, label ORDER BY label"
        )
        for name, label, number in self._db.execute(sql, values_of_it):
            known[name].labels[label] = number
        return known

    def fingerprints(self) -> dict[str, Fingerprint]:
        """Return the files on which objects of photographs were drawn, by name, as far as known."""
        sql = f"SELECT name, {', '.join(Fingerprint._fields)} FROM photographs"
        rows = self._db.execute(sql)
        return {name: Fingerprint(*row) for name, *row in rows if None not in row}

    def set_fingerprint(self, photo: str, file: Fingerprint) -> None:
        """Record the file on which a photograph's objects are drawn."""
        marks = ", ".join(f"{name} = ?" for name in Fingerprint._fields)
        self._db.execute(f"UPDATE photographs SET {marks} WHERE name = ?", (*file, photo))

    def lacks_fingerprint(self, photo: str) -> bool:
        """Say whether a photograph has objects and the file is not known."""
        sql = "SELECT 1 FROM photographs JOIN objects ON photo = name WHERE name = ? AND digest"
        return self._db.execute(f"{sql} IS NULL LIMIT 1", (photo,)).fetchone() is not None

    def with_objects(self) -> dict[str, int]:
        """Return the number of objects of each photograph that has any, open ones too, by name."""
        return dict(self._db.execute("SELECT photo, COUNT(*) FROM objects GROUP BY photo"))

    def rejected(self) -> set[str]:
        """Return the names of the photographs that were rejected."""
        sql = "SELECT name FROM photographs WHERE state = 'rejected'"
        return {name for (name,) in self._db.execute(sql)}

    def listed(self, photo: str, numbers: Sequence[int] | None = None) -> list[Listed]:
        """Return the finished objects of a photograph, or those with a mask of some numbers."""
        clicks = (
            "(SELECT COUNT(*) FROM steps WHERE object = id "
            "AND json_extract(body, '$.type') = 'click')"
        )
        which = "open = 0"
        if numbers is not None:
            which = f"counts IS NOT NULL AND id IN ({', '.join('?' * len(numbers))})"
        sql = (
            f"SELECT id, label, counts, area, {clicks}, seconds, quality FROM objects "
            f"WHERE photo = ? AND {which} ORDER BY id"
        )
        return [Listed(*row) for row in self._db.execute(sql, (photo, *(numbers or ())))]

    def in_files(self, photo: str) -> tuple[bool, list[tuple[Any, ...]]]:
        """Return what files of a photograph depend on: whether it is rejected, and its masks.

        Of these: number, whether it is open, label, run lengths, and bytes of the PNG.
        """
        sql = (
            "SELECT id, open, label, counts, LENGTH(mask) FROM objects "
            "WHERE photo = ? AND mask IS NOT NULL ORDER BY id"
        )
        rows = self._db.execute(sql, (photo,)).fetchall()
        return self.photograph(photo).state == "rejected", rows

    def mask(self, photo: str) -> bytes | None:
        """Return a finished mask of a photograph; None if it has none."""
        _, rows = self.in_files(photo)
        return self.png(rows[0][0]) if rows else None

    def png(self, number: int) -> bytes:
        """Return the mask of an object that has one."""
        (mask,) = self._db.execute("SELECT mask FROM objects WHERE id = ?", (number,)).fetchone()
        return bytes(mask)

    def rename(self, moves: Mapping[str, str]) -> None:
        """Give photographs with all that was done to them other names, all at once.

        What a name belonged to and does not move stays under a name that no file has.
        """
        now = time.strftime("%Y-%m-%d %H.%M.%S")
        with self._transaction():
            for new in set(moves.values()) - set(moves):
                self._rename(new, f"{new}, replaced {now}")
            for old in moves:
                self._rename(old, f"{old}/{now}")
            for old, new in moves.items():
                self._rename(f"{old}/{now}", new)

    def relabel(self, old: str, new: str | None) -> None:
        """Rename the class of objects, or remove it (None), also of those that undo brings back."""
        with self._transaction():
            self._db.execute("UPDATE objects SET label = ? WHERE label = ?", (new, old))
            self._rewrite("label", old, new)

    def _rename(self, old: str, new: str) -> None:
        columns = ("state", "revision", "comment", *Fingerprint._fields)
        listed = ", ".join(columns)
        sql = (
            f"INSERT INTO photographs (name, written, {listed}) "
            f"SELECT ?, -1, {listed} FROM photographs WHERE name = ?"
        )
        self._db.execute(sql, (new, old))
        for table in ("objects", "history"):
            self._db.execute(f"UPDATE {table} SET photo = ? WHERE photo = ?", (new, old))
        self._rewrite("name", old, new, " AND photo = ?", new)
        self._db.execute("DELETE FROM photographs WHERE name = ?", (old,))

    def _rewrite(
        self, what: str, old: str, new: str | None, where: str = "", *values_of_it: str
    ) -> None:
        """Replace a name or a label in what undo and redo know."""
        for inverse, place in PLACES[what].items():
            sql = f"SELECT number, literals FROM history WHERE inverse = ?{where}"
            for number, literals in self._db.execute(sql, (inverse, *values_of_it)).fetchall():
                known = values(literals)
                if known[place] == old:
                    known[place] = new
                    text = ", ".join(map(literal, known))
                    sql = "UPDATE history SET literals = ? WHERE number = ?"
                    self._db.execute(sql, (text, number))

    def efforts(self) -> list[Effort]:
        """Return the work on finished objects, by label."""
        sql = (
            "SELECT COALESCE(label, ''), COUNT(*), SUM(seconds), SUM((SELECT COUNT(*) FROM steps "
            "WHERE object = id AND json_extract(body, '$.type') = 'click')) FROM objects "
            "WHERE open = 0 AND (source IS NULL OR touched IS NOT NULL) "
            "GROUP BY label ORDER BY label"
        )
        return [Effort(*row) for row in self._db.execute(sql)]

    def set_state(self, photo: str, state: State) -> None:
        """Note whether a photograph is done; inside `change`."""
        self._db.execute("UPDATE photographs SET state = ? WHERE name = ?", (state, photo))

    def set_comment(self, photo: str, comment: str | None) -> None:
        """Keep what a reviewer says of a photograph; inside `change`."""
        self._db.execute("UPDATE photographs SET comment = ? WHERE name = ?", (comment, photo))

    def labels(self) -> list[str]:
        """Return the classes of all objects in the order of their names; without one comes last."""
        sql = "SELECT DISTINCT label FROM objects ORDER BY label IS NULL, label"
        return [NO_LABEL if label is None else label for (label,) in self._db.execute(sql)]

    def without_label(self) -> int:
        """Return how many finished objects have no label, but of rejected photographs."""
        sql = (
            "SELECT COUNT(*) FROM objects JOIN photographs ON photo = name "
            "WHERE open = 0 AND label IS NULL AND state <> 'rejected'"
        )
        return int(self._db.execute(sql).fetchone()[0])

    def objects(self, photo: str) -> list[StoredObject]:
        """Return the objects of a photograph in the order in which they were begun."""
        return self._objects("photo = ?", photo)

    def open_object(self, photo: str) -> StoredObject | None:
        """Return the open object of a photograph, or None."""
        return next(iter(self._objects("photo = ? AND open = 1", photo)), None)

    def find(self, photo: str, number: int) -> StoredObject | None:
        """Return an object of a photograph by its number, or None."""
        return next(iter(self._objects("photo = ? AND id = ?", photo, number)), None)

    def _objects(self, condition: str, *values_of_it: str | int) -> list[StoredObject]:
        sql = (
            "SELECT id, label, open, kept, mask, counts, area, base, model, seconds, quality "
            f"FROM objects WHERE {condition} ORDER BY id"
        )
        rows = self._db.execute(sql, values_of_it).fetchall()
        sql = "SELECT body FROM steps WHERE object = ? ORDER BY position"
        objects = []
        for number, label, opened, *rest in rows:
            steps = [json.loads(body) for (body,) in self._db.execute(sql, (number,))]
            objects.append(StoredObject(number, label, bool(opened), tuple(steps), *rest))
        return objects

    def begin(self, photo: str, label: str | None = None, base: bytes | None = None) -> int:
        """Begin an object; inside `change`."""
        sql = (
            "INSERT INTO objects (photo, open, touched, label, base, seconds) "
            "VALUES (?, 1, ?, ?, ?, ?)"
        )
        now = time.time()
        seconds = 0.0 if self._last is None else _counted(now - self._last)
        number = self._db.execute(sql, (photo, now, label, base, seconds)).lastrowid
        assert number is not None, "a row was inserted"
        return number

    def add_finished(
        self,
        photo: str,
        mask: Finished,
        label: str | None = None,
        source: str | None = None,
        past: Past = Past(),  # noqa: B008
    ) -> None:
        """Add an object that is finished; inside `change`."""
        columns = "photo, open, label, source, base, mask, counts, area, kept, seconds, model"
        sql = f"INSERT INTO objects ({columns}, quality) VALUES (?, 0{', ?' * 10})"
        base = None if past.steps else mask.png
        row = (photo, label, source, base, *mask, len(past.steps), *past[1:])
        number = self._db.execute(sql, row).lastrowid
        for position, step in enumerate(past.steps):
            written = (number, position, json.dumps(step))
            self._db.execute("INSERT INTO steps VALUES (?, ?, ?)", written)

    def add_step(self, number: int, step: dict[str, Any]) -> None:
        """Add a step to an object; inside `change`."""
        sql = (
            "INSERT INTO steps SELECT ?, COALESCE(MAX(position) + 1, 0), ? FROM steps "
            "WHERE object = ?"
        )
        self._db.execute(sql, (number, json.dumps(step), number))
        self._count_time(number)

    def _count_time(self, number: int) -> None:
        """Add the time since the last step of an object to its seconds."""
        sql = "SELECT touched FROM objects WHERE id = ?"
        (touched,) = self._db.execute(sql, (number,)).fetchone()
        self._last = now = time.time()
        sql = "UPDATE objects SET seconds = seconds + ?, touched = ? WHERE id = ?"
        self._db.execute(sql, (_counted(now - (touched or now)), now, number))

    def clear(self, number: int) -> None:
        """Delete the steps of an object; inside `change`."""
        self._db.execute("DELETE FROM steps WHERE object = ?", (number,))
        self._db.execute("UPDATE objects SET kept = 0, quality = NULL WHERE id = ?", (number,))

    def finish(self, number: int, mask: Finished, model: str | None, quality: float | None) -> None:
        """Close an object with its mask; inside `change`."""
        sql = (
            "UPDATE objects SET open = 0, mask = ?, counts = ?, area = ?, model = ?, quality = ?, "
            "kept = (SELECT COUNT(*) FROM steps WHERE object = id) WHERE id = ?"
        )
        self._db.execute(sql, (*mask, model, quality, number))
        self._count_time(number)

    def reopen(self, number: int) -> None:
        """Open a finished object; inside `change`."""
        sql = "UPDATE objects SET open = 1, touched = ? WHERE id = ?"
        self._db.execute(sql, (time.time(), number))

    def close_again(self, number: int) -> None:
        """Take back all that was done to an object since it was opened again; inside `change`."""
        group = "history WHERE object = ?1 AND undone = 0"
        sql = (
            f"SELECT photo, inverse, literals FROM {group} AND number >= (SELECT MAX(number) "
            f"FROM {group} AND inverse = 'objects_open' AND literals = ?2) ORDER BY number DESC"
        )
        rows = self._db.execute(sql, (number, f"0, {number}")).fetchall()
        if rows:
            self._reverse(rows[0][0], [row[1:] for row in rows])
        else:  # its history was left behind
            self._db.execute("UPDATE objects SET open = 0 WHERE id = ?", (number,))

    def decide_again(self, photo: str, number: int) -> None:
        """Give a photograph the state that it lost when an object was opened; inside `change`.

        It is done where other objects have changed since; one that has got a state since keeps it.
        """
        known = "FROM history WHERE photo = ?1 AND undone = 0"
        sql = (
            f"SELECT revision, object, inverse, literals {known} AND revision >= (SELECT "
            f"MAX(revision) {known} AND object = ?2 AND (inverse = 'objects_insert' OR (inverse = "
            "'objects_open' AND literals = ?3)))"
        )
        since = self._db.execute(sql, (photo, number, f"0, {number}")).fetchall()
        states = [row for row in since if row[2] == "photographs_state"]
        if len(states) != 1 or states[0][0] != min(row[0] for row in since):
            return
        if any(row[1] not in (None, number) for row in since):
            self.set_state(photo, "done")
        else:
            self._reverse(photo, [row[2:] for row in states])

    def set_label(self, number: int, label: str | None) -> None:
        """Set the class of an object; inside `change`."""
        self._db.execute("UPDATE objects SET label = ? WHERE id = ?", (label, number))

    def delete(self, number: int) -> None:
        """Delete an object and its steps; inside `change`."""
        self._db.execute("DELETE FROM objects WHERE id = ?", (number,))

    def with_open_objects(self) -> list[str]:
        """Return the names of the photographs with an open object."""
        rows = self._db.execute("SELECT photo FROM objects WHERE open = 1 ORDER BY photo")
        return [name for (name,) in rows]

    def unwritten(self) -> list[str]:
        """Return the names of the photographs whose files are out of date."""
        sql = "SELECT name FROM photographs WHERE written < revision"
        return [name for (name,) in self._db.execute(sql)]

    def set_written(self, photo: str) -> None:
        """Record that the files of a photograph are up to date."""
        self._db.execute("UPDATE photographs SET written = revision WHERE name = ?", (photo,))

    def keep_written(self, photo: str) -> None:
        """Note that a change does not affect the files; inside `change`."""
        sql = "UPDATE photographs SET written = revision WHERE name = ? AND written = revision - 1"
        self._db.execute(sql, (photo,))

    def setting(self, name: str) -> Any:  # noqa: ANN401
        """Return a setting; None if it was never set or is not in `SETTINGS`."""
        row = self._db.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        try:
            return SETTINGS[name].validate_json(row[0], strict=True)
        except ValueError as error:
            _logger.warning("%s: the setting %s is not used: %.300s", self._path, name, error)
            return None

    def set_setting(self, name: str, value: Any) -> None:  # noqa: ANN401
        """Keep a setting."""
        self._restore_file()
        sql = "INSERT OR REPLACE INTO settings VALUES (?, ?)"
        self._db.execute(sql, (name, json.dumps(value)))

    def names(self) -> list[str]:
        """Return the names of all photographs with objects or a state."""
        return [name for (name,) in self._db.execute("SELECT name FROM photographs ORDER BY name")]


def _counted(pause: float) -> float:
    """Return how many seconds of a pause count; none if the clock was set back."""
    return min(max(pause, 0.0), LONGEST_PAUSE)
