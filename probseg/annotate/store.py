"""The database of annotations: photographs, objects, and every step of each object.

An object is a row of steps (clicks, boxes, strokes) and a cursor: undo moves the cursor back, redo
forward, a new step drops those behind it. So a server that was killed continues at the same step,
with undo and redo. Every change is one transaction, which is on the disk when it returns.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from probseg.errors import UsageError

VERSION = 2
"""Version of the schema; `PRAGMA user_version` of the file."""

LONGEST_PAUSE = 30.0
"""Longer times in seconds between two steps of an object count as this much."""

SCHEMA = """
CREATE TABLE photographs (
    name TEXT PRIMARY KEY, state TEXT NOT NULL DEFAULT 'open', revision INTEGER NOT NULL DEFAULT 0,
    written INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE objects (
    id INTEGER PRIMARY KEY AUTOINCREMENT, photo TEXT NOT NULL REFERENCES photographs(name),
    label TEXT, open INTEGER NOT NULL, cursor INTEGER NOT NULL DEFAULT 0,
    kept INTEGER NOT NULL DEFAULT 0, mask BLOB, counts TEXT, area INTEGER, source TEXT, base BLOB,
    model TEXT, seconds REAL NOT NULL DEFAULT 0, touched REAL, quality REAL
);
CREATE UNIQUE INDEX one_open ON objects(photo) WHERE open = 1;
CREATE INDEX of_photo ON objects(photo);
CREATE TABLE steps (
    object INTEGER NOT NULL REFERENCES objects(id) ON DELETE CASCADE, position INTEGER NOT NULL,
    body TEXT NOT NULL, PRIMARY KEY (object, position)
);
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

State = Literal["open", "done", "review"]


class Finished(NamedTuple):
    """A finished mask.

    Args:
        png: As a mask file.
        counts: As COCO's compressed run lengths.
        area: Pixels of the object.
    """

    png: bytes
    counts: str
    area: int


class StoredPhotograph(NamedTuple):
    """What is stored of a photograph itself.

    Args:
        state: Whether it is done.
        revision: Number of its changes.
    """

    state: State
    revision: int


class StaleRevisionError(RuntimeError):
    """The photograph was changed by another client since this one read it."""


@dataclass(frozen=True)
class StoredObject:
    """An object of a photograph.

    Args:
        id: Number of the object, unique in the database.
        label: Its class; None without.
        open: Whether it is being annotated; at most one of a photograph is.
        steps: All steps, those behind the cursor included.
        cursor: Number of steps that count.
        kept: Number of steps to which `mask` is the answer; 0 if there are none, or if one of
            them was replaced since.
        mask: PNG of the finished mask; None before.
        counts: The same as COCO's compressed run lengths.
        area: Pixels of the finished mask; None before.
        base: PNG of the mask before the first step, which was read from a file; None if the object
            was begun here.
        model: Name of the model that answered last; None for masks that were read.
        seconds: Time spent on it, pauses cut to `LONGEST_PAUSE`.
        quality: `Mask.quality` of the finished mask; None for masks that were read.
    """

    id: int
    label: str | None
    open: bool
    steps: tuple[dict[str, Any], ...]
    cursor: int
    kept: int
    mask: bytes | None
    counts: str | None
    area: int | None
    base: bytes | None
    model: str | None
    seconds: float
    quality: float | None


class Store:
    """The database of a folder.

    Args:
        path: The file; made if it is missing.

    Raises:
        UsageError: If it was written by a newer version, or is used by another process.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            msg = f"{path.parent}: cannot be made ({error}); choose another --out"
            raise UsageError(msg) from error
        # Requests are answered by several threads, one at a time: see `Sessions`.
        try:
            self._db = sqlite3.connect(
                path, check_same_thread=False, isolation_level=None, timeout=2
            )
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")  # one server for each folder
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA foreign_keys = ON")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                self._db.executescript(f"BEGIN;{SCHEMA}PRAGMA user_version = {VERSION};COMMIT;")
            elif version == 1:
                change = "ALTER TABLE objects ADD COLUMN quality REAL"
                self._db.executescript(f"BEGIN;{change};PRAGMA user_version = {VERSION};COMMIT;")
        except sqlite3.DatabaseError as error:
            msg = (
                f"{path}: {error}; stop another `probseg annotate` that is at work on this folder, "
                "make the folder writable, or choose another --out"
            )
            raise UsageError(msg) from error
        if version > VERSION:
            msg = f"{path}: schema {version} is of a newer probseg, this one reads {VERSION}"
            raise UsageError(msg)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def change(self, photo: str, revision: int | None) -> Iterator[StoredPhotograph]:
        """Make all changes of a block one transaction on a photograph, and yield it as it was.

        Args:
            photo: Name of the photograph.
            revision: What the client has read; None for a change of the server's own.

        Raises:
            StaleRevisionError: If the photograph is at another revision.
        """
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.execute("INSERT OR IGNORE INTO photographs (name) VALUES (?)", (photo,))
            before = self.photograph(photo)
            if revision is not None and revision != before.revision:
                raise StaleRevisionError
            sql = "UPDATE photographs SET revision = revision + 1 WHERE name = ?"
            self._db.execute(sql, (photo,))
            yield before
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # SQLite has ended it itself if the disk is full
                self._db.execute("ROLLBACK")
            raise

    def photograph(self, photo: str) -> StoredPhotograph:
        """Return the state and the revision of a photograph."""
        sql = "SELECT state, revision FROM photographs WHERE name = ?"
        row = self._db.execute(sql, (photo,)).fetchone()
        return StoredPhotograph("open", 0) if row is None else StoredPhotograph(*row)

    def overview(self) -> dict[str, tuple[State, int]]:
        """Return the state of each known photograph, and its number of finished objects."""
        sql = (
            "SELECT name, state, (SELECT COUNT(*) FROM objects WHERE photo = name AND open = 0) "
            "FROM photographs"
        )
        return {name: (state, count) for name, state, count in self._db.execute(sql)}

    def set_state(self, photo: str, state: State) -> None:
        """Note whether a photograph is done; inside `change`."""
        self._db.execute("UPDATE photographs SET state = ? WHERE name = ?", (state, photo))

    def objects(self, photo: str) -> list[StoredObject]:
        """Return the objects of a photograph in the order in which they were begun."""
        return self._objects("photo = ?", photo)

    def open_object(self, photo: str) -> StoredObject | None:
        """Return the open object of a photograph; None where there is none."""
        return next(iter(self._objects("photo = ? AND open = 1", photo)), None)

    def _objects(self, condition: str, photo: str) -> list[StoredObject]:
        sql = (
            "SELECT id, label, open, cursor, kept, mask, counts, area, base, model, seconds, "
            f"quality FROM objects WHERE {condition} ORDER BY id"
        )
        rows = self._db.execute(sql, (photo,)).fetchall()
        return [
            StoredObject(number, label, bool(opened), self._steps(number), *rest)
            for number, label, opened, *rest in rows
        ]

    def _steps(self, number: int) -> tuple[dict[str, Any], ...]:
        sql = "SELECT body FROM steps WHERE object = ? ORDER BY position"
        return tuple([json.loads(body) for (body,) in self._db.execute(sql, (number,))])

    def begin(self, photo: str) -> int:
        """Begin an object; inside `change`."""
        sql = "INSERT INTO objects (photo, open, touched) VALUES (?, 1, ?)"
        number = self._db.execute(sql, (photo, time.time())).lastrowid
        assert number is not None, "a row was inserted"
        return number

    def add_finished(self, photo: str, source: str, mask: Finished) -> None:
        """Add an object that was read from a mask file; inside `change`."""
        columns = "photo, open, source, base, mask, counts, area"
        sql = f"INSERT INTO objects ({columns}) VALUES (?, 0, ?, ?, ?, ?, ?)"
        self._db.execute(sql, (photo, source, mask.png, *mask))

    def add_step(self, number: int, step: dict[str, Any]) -> None:
        """Add a step at the cursor, in place of those behind it; inside `change`."""
        (cursor,) = self._db.execute(
            "SELECT cursor FROM objects WHERE id = ?", (number,)
        ).fetchone()
        self._db.execute("DELETE FROM steps WHERE object = ? AND position >= ?", (number, cursor))
        self._db.execute("INSERT INTO steps VALUES (?, ?, ?)", (number, cursor, json.dumps(step)))
        sql = "UPDATE objects SET kept = 0 WHERE id = ? AND kept > ?"
        self._db.execute(sql, (number, cursor))
        self.move_cursor(number, cursor + 1)

    def move_cursor(self, number: int, cursor: int) -> None:
        """Undo or redo steps; inside `change`."""
        sql = (
            "UPDATE objects SET cursor = ?, seconds = seconds + MIN(MAX(? - touched, 0), ?), "
            "touched = ? WHERE id = ?"
        )
        now = time.time()
        self._db.execute(sql, (cursor, now, LONGEST_PAUSE, now, number))

    def finish(self, number: int, mask: Finished, model: str, quality: float | None) -> None:
        """Close an object with its mask; inside `change`."""
        sql = (
            "UPDATE objects SET open = 0, kept = cursor, mask = ?, counts = ?, area = ?, "
            "model = ?, quality = ? WHERE id = ?"
        )
        self._db.execute(sql, (*mask, model, quality, number))

    def reopen(self, number: int) -> None:
        """Open a finished object; inside `change`."""
        sql = "UPDATE objects SET open = 1, touched = ? WHERE id = ?"
        self._db.execute(sql, (time.time(), number))

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
        """Note that a change leaves the files as they are; inside `change`."""
        sql = "UPDATE photographs SET written = revision WHERE name = ? AND written = revision - 1"
        self._db.execute(sql, (photo,))

    def setting(self, name: str) -> Any:  # noqa: ANN401
        """Return a setting; None if it was never set."""
        row = self._db.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def set_setting(self, name: str, value: Any) -> None:  # noqa: ANN401
        """Keep a setting."""
        sql = "INSERT OR REPLACE INTO settings VALUES (?, ?)"
        self._db.execute(sql, (name, json.dumps(value)))

    def names(self) -> list[str]:
        """Return the names of all photographs with objects or a state."""
        return [name for (name,) in self._db.execute("SELECT name FROM photographs ORDER BY name")]
