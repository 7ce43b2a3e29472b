"""Tables of the database of annotations, and the triggers that record how to undo a change.

`history` holds each change of a photograph as what takes it back, or, where it is undone, what
redoes it: the name of a statement of `INVERSES` and the values in it, in groups by the revision
that the change led to. `recording` has one row during a change.
https://www.sqlite.org/undoredo.html describes the method.

Types and checks hold for files of others, too: see `probseg.annotate.database`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

VERSION = 4
"""`PRAGMA user_version` of `SCHEMA`."""

COLUMNS = {
    "photographs": ("name", "state", "revision", "written"),
    "objects": (
        *("id", "photo", "label", "open", "kept", "mask", "counts", "area", "source", "base"),
        *("model", "seconds", "touched", "quality"),
    ),
    "steps": ("object", "position", "body"),
    "settings": ("name", "value"),
    "history": ("number", "photo", "revision", "undone", "object", "inverse", "literals"),
    "recording": ("photo", "revision", "undone"),
}
"""Columns of each table."""

_TABLES = """
CREATE TABLE photographs (
    name TEXT PRIMARY KEY NOT NULL,
    state TEXT NOT NULL DEFAULT 'open'
        CHECK (state IN ('open', 'done', 'review', 'accepted', 'rejected', 'returned')),
    revision INTEGER NOT NULL DEFAULT 0 CHECK (revision BETWEEN 0 AND 1000000000000),
    written INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE objects (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    photo TEXT NOT NULL REFERENCES photographs(name),
    label TEXT,
    open INTEGER NOT NULL CHECK (open IN (0, 1)),
    kept INTEGER NOT NULL DEFAULT 0 CHECK (kept BETWEEN 0 AND 1000000000),
    mask BLOB,
    counts TEXT CHECK (counts NOT GLOB '*[^0-o]*' AND counts GLOB '*[0-O]'), -- whole run lengths
    area INTEGER CHECK (area BETWEEN 0 AND 1000000000),
    source TEXT,
    base BLOB,
    model TEXT,
    seconds REAL NOT NULL DEFAULT 0 CHECK (seconds BETWEEN 0 AND 1e9),
    touched REAL CHECK (touched BETWEEN 0 AND 1e12),
    quality REAL CHECK (quality BETWEEN 0 AND 1)
) STRICT;
CREATE UNIQUE INDEX one_open ON objects(photo) WHERE open = 1;
CREATE INDEX of_photo ON objects(photo);
CREATE TABLE steps (
    object INTEGER NOT NULL REFERENCES objects(id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (object, position)
) STRICT;
CREATE TABLE settings (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL) STRICT;
CREATE TABLE history (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    photo TEXT NOT NULL,
    revision INTEGER NOT NULL,
    undone INTEGER NOT NULL,
    object INTEGER,
    inverse TEXT NOT NULL,
    literals TEXT NOT NULL
) STRICT;
CREATE INDEX history_of_photo ON history(photo, undone, revision);
CREATE TABLE recording (
    photo TEXT NOT NULL, revision INTEGER NOT NULL, undone INTEGER NOT NULL
) STRICT;
"""

UNDONE = ("label", "open", "kept", "mask", "counts", "area", "model", "quality")
"""Columns of objects that undo and redo change; the time that was spent stays."""

_DELETED = ("id", "photo", "source", "base", "seconds", "touched", *UNDONE)
"""Columns of an object that was deleted."""


def insertion(table: str, columns: Sequence[str]) -> str:
    """Return the statement that inserts a row with values of these columns."""
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"


INVERSES = {
    "photographs_state": "UPDATE photographs SET state = ? WHERE name = ?",
    **{f"objects_{name}": f"UPDATE objects SET {name} = ? WHERE id = ?" for name in UNDONE},
    "objects_insert": "DELETE FROM objects WHERE id = ?",
    "objects_delete": insertion("objects", _DELETED),
    "steps_insert": "DELETE FROM steps WHERE object = ? AND position = ?",
    "steps_delete": insertion("steps", COLUMNS["steps"]),
}
"""Statements that take changes back, by the names of the triggers that record the changes."""

LITERAL = re.compile(r"NULL|X'[0-9A-F]*'|'[^']*(?:''[^']*)*'|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
"""A value as SQLite's function `quote` writes it."""


def values(literals: str) -> list[str | bytes | float | None]:
    """Return the values of literals with commas between; anything else is a `ValueError`."""
    found = LITERAL.findall(literals)
    if ", ".join(found) != literals:
        msg = f"{literals!r:.100} is no list of values"
        raise ValueError(msg)
    return [_value(literal) for literal in found]


def _value(literal: str) -> str | bytes | float | None:
    match literal[0]:
        case "N":
            return None
        case "X":
            return bytes.fromhex(literal[2:-1])
        case "'":
            return literal[1:-1].replace("''", "'")
    return int(literal) if literal.lstrip("-").isdigit() else float(literal)


def _recorded(name: str, event: str, *expressions: str, number: str = "NULL") -> str:
    """Return a trigger that records how to take a change back, if a change is being recorded.

    Args:
        name: Of the trigger, and of the statement in `INVERSES`.
        event: When the trigger is called.
        expressions: Of the values in the statement.
        number: Expression of the number of the object.
    """
    literals = " || ', ' || ".join(f"quote({one})" for one in expressions)
    return (
        f"CREATE TRIGGER {name} AFTER {event} BEGIN "
        "INSERT INTO history (photo, revision, undone, object, inverse, literals) "
        f"SELECT photo, revision, undone, {number}, '{name}', {literals} FROM recording; END;\n"
    )


def _assigned(table: str, column: str, key: str, number: str) -> str:
    """Record the value that a column had."""
    changed = f"UPDATE OF {column} ON {table} WHEN OLD.{column} IS NOT NEW.{column}"
    return _recorded(f"{table}_{column}", changed, f"OLD.{column}", f"OLD.{key}", number=number)


def _old(columns: Sequence[str]) -> list[str]:
    return [f"OLD.{column}" for column in columns]


SCHEMA = "".join(
    [
        _TABLES,
        _assigned("photographs", "state", "name", "NULL"),
        *(_assigned("objects", column, "id", "OLD.id") for column in UNDONE),
        _recorded("objects_insert", "INSERT ON objects", "NEW.id", number="NEW.id"),
        _recorded("objects_delete", "DELETE ON objects", *_old(_DELETED), number="OLD.id"),
        _recorded(
            "steps_insert",
            "INSERT ON steps",
            "NEW.object",
            "NEW.position",
            number="NEW.object",
        ),
        _recorded("steps_delete", "DELETE ON steps", *_old(COLUMNS["steps"]), number="OLD.object"),
        f"PRAGMA user_version = {VERSION};\n",
    ]
)
"""Statements that make the tables of an empty file."""
