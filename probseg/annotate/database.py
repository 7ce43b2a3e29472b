"""The database of annotations, whose file may come from a stranger.

None of its SQL is executed: a file with other tables and triggers than ours is refused, all pages
and rows are checked when it is opened, and later statements can reach only our tables. The rows of
an earlier schema are read, as data, into a new file.

`history` holds the inverse of each change of a photograph, or what redoes it where it is undone:
the name of a statement in `INVERSES` and its values, grouped by the revision that the change led
to. `recording` has one row during a change.
https://www.sqlite.org/undoredo.html describes the method.
"""

from __future__ import annotations

import logging
import re
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from probseg.errors import DataError, UsageError
from probseg.paths import replacing

_logger = logging.getLogger(__name__)

VERSION = 6
"""`PRAGMA user_version` of `SCHEMA`."""

COLUMNS = {
    "photographs": (
        *("name", "state", "revision", "written"),
        *("height", "width", "bytes", "modified", "digest", "pixels"),
        "comment",
    ),
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
    written INTEGER NOT NULL DEFAULT 0,
    height INTEGER, width INTEGER, bytes INTEGER, modified INTEGER, -- of the file that was clicked
    digest TEXT, pixels TEXT,
    comment TEXT CHECK (length(comment) <= 1000) -- of the reviewer who sent it back
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
    "photographs_comment": "UPDATE photographs SET comment = ? WHERE name = ?",
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

    def value(literal: str) -> str | bytes | float | None:
        match literal[0]:
            case "N":
                return None
            case "X":
                return bytes.fromhex(literal[2:-1])
            case "'":
                return literal[1:-1].replace("''", "'")
        return int(literal) if literal.lstrip("-").isdigit() else float(literal)

    texts = LITERAL.findall(literals)
    if ", ".join(texts) != literals:
        raise ValueError(f"expected a list of values, got {literals!r:.100}")
    return [value(text) for text in texts]


def literal(value: str | bytes | float | None) -> str:
    """Return a value as SQLite's function `quote` writes it; the inverse of `values`."""
    if isinstance(value, str):
        quoted = value.replace("'", "''")
        return f"'{quoted}'"
    if isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    return "NULL" if value is None else repr(value)


PLACES = {
    "name": {
        "photographs_state": 1,
        "photographs_comment": 1,
        "objects_delete": _DELETED.index("photo"),
    },
    "label": {"objects_label": 0, "objects_delete": _DELETED.index("label")},
}
"""Where names of photographs and labels stand among the literals of the history."""


def _recorded(name: str, event: str, values: Sequence[str], number: str = "OLD.id") -> str:
    """Return a trigger that records how to take a change back, if a change is being recorded.

    The trigger and the statement in `INVERSES` have one name; `values` are expressions of what the
    statement needs, `number` of the object that it concerns.
    """
    literals = " || ', ' || ".join(f"quote({value})" for value in values)
    return (
        f"CREATE TRIGGER {name} AFTER {event} BEGIN "
        "INSERT INTO history (photo, revision, undone, object, inverse, literals) "
        f"SELECT photo, revision, undone, {number}, '{name}', {literals} FROM recording; END;\n"
    )


def _assigned(table: str, column: str, key: str, number: str) -> str:
    """Record the value that a column had."""
    changed = f"UPDATE OF {column} ON {table} WHEN OLD.{column} IS NOT NEW.{column}"
    return _recorded(f"{table}_{column}", changed, [f"OLD.{column}", f"OLD.{key}"], number)


_OLD_OBJECT, _OLD_STEP = (
    [f"OLD.{column}" for column in columns] for columns in (_DELETED, COLUMNS["steps"])
)
SCHEMA = "".join(
    [
        _TABLES,
        _assigned("photographs", "state", "name", "NULL"),
        _assigned("photographs", "comment", "name", "NULL"),
        *(_assigned("objects", column, "id", "OLD.id") for column in UNDONE),
        _recorded("objects_insert", "INSERT ON objects", ["NEW.id"], "NEW.id"),
        _recorded("objects_delete", "DELETE ON objects", _OLD_OBJECT),
        _recorded("steps_insert", "INSERT ON steps", ["NEW.object", "NEW.position"], "NEW.object"),
        _recorded("steps_delete", "DELETE ON steps", _OLD_STEP, "OLD.object"),
        f"PRAGMA user_version = {VERSION};\n",
    ]
)
"""Statements that make the tables of an empty file."""

LONGEST_LABEL = 100
"""Maximum characters of a label."""

LONGEST_COMMENT = 1000
"""Most characters of a comment, as in the schema."""

MOST_LABELS = 1000
"""Maximum number of classes to choose from."""


class Inference(TypedDict):
    """The model of the last session, and its settings, which `ModelHost.change` checks."""

    model: Annotated[str, Field(max_length=4096)]
    settings: Annotated[dict[str, Any], Field(max_length=100)]


def is_label(text: str) -> bool:
    """Return whether a text can be a label: a short line that can be printed."""
    return 0 < len(text) <= LONGEST_LABEL and text.isprintable()


def _label(text: str) -> str:
    if not is_label(text):
        raise ValueError(
            f"a label must be text of at most {LONGEST_LABEL} characters, got {text!r:.100}"
        )
    return text


_Length = Annotated[int, Field(ge=1, le=10**9)]  # of a side in pixels

SETTINGS: dict[str, TypeAdapter[Any]] = {
    "labels": TypeAdapter(
        Annotated[list[Annotated[str, AfterValidator(_label)]], Field(max_length=MOST_LABELS)]
    ),
    "avoid_finished": TypeAdapter(bool),
    "tidy": TypeAdapter(bool),
    "inference": TypeAdapter(Inference),
    "unlearned": TypeAdapter(Annotated[str, Field(max_length=4096)]),
    "annotations": TypeAdapter(bool),
    "annotations_due": TypeAdapter(bool),
    "aside": TypeAdapter(dict[str, list[str]]),
    "annotations_digest": TypeAdapter(Annotated[str, Field(max_length=64)]),
    "image_ids": TypeAdapter(dict[str, Annotated[int, Field(ge=1, le=1 << 53)]]),
    "category_ids": TypeAdapter(dict[str, Annotated[int, Field(ge=1, le=1 << 53)]]),
    "sizes": TypeAdapter(dict[str, tuple[int, int, _Length, _Length]]),
    "imported": TypeAdapter(dict[str, list[str]]),
    "exports": TypeAdapter(Annotated[dict[str, int] | list[str], Field(max_length=100)]),
    "seen": TypeAdapter(int),
    "renamed": TypeAdapter(Annotated[dict[str, str | None], Field(max_length=MOST_LABELS)]),
}
"""What each setting may be."""

HINT = (
    "rename the folder `.probseg` to begin anew (mask files stay as they are; clicks, labels and "
    "undo are left behind), or choose another --out"
)

COUNTED = {
    "objects": "SELECT COUNT(*) FROM objects",
    "clicks, boxes and strokes": "SELECT COUNT(*) FROM steps",
    "decisions on photographs": "SELECT COUNT(*) FROM photographs WHERE state <> 'open'",
    "changes to undo": "SELECT COUNT(*) FROM history",
}
"""What is lost with a database, and how to count it."""


class DamagedError(DataError):
    """A database is damaged, or not ours."""

    def __init__(self, path: Path, fault: str) -> None:
        self.fault = f"{path}: {fault}"
        super().__init__(f"{self.fault}; {HINT}")


MOST_WORK = 10**8
"""Instructions of SQLite in which the rows of a damaged database are counted: some seconds."""

LONGEST = 1 << 28
"""Maximum bytes of a text or a mask; twice what those of the largest photographs can have."""

OUTSIDE = (
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOMEM),
    *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY),
    *(sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL),
)
"""Errors of locks, permissions and disks: the database itself may be sound."""

_PRAGMAS = (
    "trusted_schema = OFF",  # no function with side effects in defaults, checks and indices
    "cell_size_check = ON",
    "locking_mode = EXCLUSIVE",  # one server for each folder
    "journal_mode = WAL",
    "synchronous = FULL",
    "foreign_keys = ON",
)

_ACTIONS = (
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_INSERT,
    sqlite3.SQLITE_UPDATE,
    sqlite3.SQLITE_DELETE,
)

_FUNCTIONS = ("coalesce", "count", "sum", "max", "min", "quote", "length", "json_extract")


def open_database(path: Path) -> sqlite3.Connection:
    """Open the database of a folder; make it where it is missing, renew it from an old schema."""
    journal = path.with_name(f"{path.name}-journal")
    if journal.exists():  # SQLite would carry it out, and delete a file that it names
        raise UsageError(
            f"{journal}: is not written by probseg, which uses no such journal; remove it"
        )
    new = not path.exists()
    if not new and not path.stat().st_size:  # SQLite would take it for a new one
        raise DamagedError(path, "is empty")
    try:
        db = _connected(path)
        try:
            return _checked(path, db)
        except BaseException:
            db.close()
            raise
    except (sqlite3.Error, UnicodeDecodeError, MemoryError, OverflowError) as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in OUTSIDE:
            for half in (path, journal) if new else ():
                half.unlink(missing_ok=True)
            raise UsageError(
                f"{path}: {error}; stop another program that is at work on this file, make the "
                f"folder writable, or {HINT}"
            ) from error
        fault = f"is damaged or not a database of annotations ({error})"
        raise DamagedError(path, fault) from error


def count(db: sqlite3.Connection) -> dict[str, int]:
    """Return how many rows of `COUNTED` a database has, as far as they can be read."""
    db.set_authorizer(_authorized)
    counts = {}
    for what, sql in COUNTED.items():
        with suppress(sqlite3.Error):
            (counts[what],) = db.execute(sql).fetchone()
    return counts


def set_aside(path: Path) -> tuple[Path, dict[str, int]]:
    """Rename a database that cannot be used; return its new name and what can be counted in it."""
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    for end in ("-wal", "-shm", ""):
        beside = path.with_name(f"{path.name}{end}")
        if beside.exists():
            beside.rename(aside.with_name(f"{aside.name}{end}"))
    with closing(sqlite3.connect(f"{aside.absolute().as_uri()}?mode=ro", uri=True)) as db:
        db.set_progress_handler(lambda: 1, MOST_WORK)
        return aside, count(db)


def _connected(path: Path) -> sqlite3.Connection:
    # Requests are answered by several threads, one at a time: see `Sessions`.
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=2)
    db.text_factory = lambda text: text.decode("utf-8", "replace")
    try:
        db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
        for pragma in _PRAGMAS:
            db.execute(f"PRAGMA {pragma}")
    except BaseException:
        db.close()
        raise
    return db


def _checked(path: Path, db: sqlite3.Connection) -> sqlite3.Connection:
    """Return an open database once nothing but our tables can be in it and be reached."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise UsageError(
            f"{path}: schema {version} is of a newer probseg, this one reads {VERSION}"
        )
    if not db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]:
        db.executescript(f"BEGIN; {SCHEMA} COMMIT;")
        version = VERSION
    _refuse_foreign_schema(path, db, version)
    if version < VERSION:
        _renew(path, db, version)
        return open_database(path)
    faults = [text for (text,) in db.execute("PRAGMA quick_check(1)") if text != "ok"]
    faults += [f"row {row} of {table}" for table, row, *_ in db.execute("PRAGMA foreign_key_check")]
    if faults:
        raise DamagedError(path, f"is damaged ({faults[0]})")
    db.execute("DELETE FROM recording")
    db.set_authorizer(_authorized)
    return db


def _refuse_foreign_schema(path: Path, db: sqlite3.Connection, version: int) -> None:
    """Raise unless a database has exactly our tables, indices and triggers.

    Of earlier schemas only the tables are read, so that names and kinds of what they have suffice.
    """
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.executescript(SCHEMA)
        ours = _entries(empty)
    theirs = _entries(db)
    if version < VERSION:
        ours, theirs = {row[:2] for row in ours}, {row[:2] for row in theirs}
    foreign = sorted(f"the {kind} `{name}`" for kind, name, *_ in theirs - ours)
    virtual = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage = 0"
    foreign += [f"the virtual table `{name}`" for (name,) in db.execute(virtual)]
    foreign += [
        f"the computed column `{column}` of {table}"
        for table in COLUMNS
        for _, column, *_, computed in db.execute(f"PRAGMA table_xinfo({table})")
        if computed and not foreign
    ]
    if version < 1 or (version == VERSION and theirs < ours):
        foreign.append(f"a schema {version} with other tables")
    if foreign:
        raise DamagedError(path, f"has {foreign[0]:.200}, which probseg did not make")


def _entries(db: sqlite3.Connection) -> set[tuple[str, ...]]:
    return set(db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"))


def _authorized(
    action: int, table: str | None, name: str | None, database: str | None, trigger: str | None
) -> int:
    """Allow what `Store` does: to read and change rows of our tables, in transactions."""
    allowed = (
        action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_TRANSACTION)
        or (action in _ACTIONS and database in ("main", None) and table in COLUMNS)
        or (action == sqlite3.SQLITE_FUNCTION and name in _FUNCTIONS)
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _renew(path: Path, old: sqlite3.Connection, version: int) -> None:
    """Replace a file of an earlier schema by one with its rows; `old` is closed.

    Version 1 had no quality; version 3 has a history of statements as text; before it, steps that
    undo had taken back lay behind a cursor of their object. Version 4 did not know the files, 5 no
    comments.
    """
    inverses = {text: name for name, text in INVERSES.items()}  # version 3 has the texts
    numbers = old.execute("SELECT name, seq FROM sqlite_sequence").fetchall()
    history = old.execute("SELECT * FROM history").fetchall() if version >= 4 else []
    for *row, text in old.execute("SELECT * FROM history") if version == 3 else []:
        name = inverses.get(LITERAL.sub("?", text))
        history.append((*row, name, ", ".join(LITERAL.findall(text))))
    if any(name is None for *_, name, _ in history):
        _logger.warning(
            "%s: undo begins anew, as its history has statements that are not probseg's", path
        )
        history = []
    old.set_authorizer(_authorized)
    later = {"quality": 2, **dict.fromkeys(COLUMNS["photographs"][4:-1], 5), "comment": 6}
    selected = {
        table: ", ".join("NULL" if version < later.get(name, 0) else name for name in columns)
        for table, columns in COLUMNS.items()
        if table not in ("history", "recording")
    }
    behind = " WHERE position < (SELECT cursor FROM objects WHERE id = object)"
    with replacing(path) as draft:
        with closing(_connected(draft)) as new:
            new.executescript(f"BEGIN; {SCHEMA}")
            for table, names in selected.items():
                condition = behind if table == "steps" and version < 3 else ""
                rows = old.execute(f"SELECT {names} FROM {table}{condition}")
                new.executemany(insertion(table, COLUMNS[table]), rows)
            new.executemany(insertion("history", COLUMNS["history"]), history)
            new.execute("DELETE FROM sqlite_sequence")  # numbers are used once
            new.executemany("INSERT INTO sqlite_sequence VALUES (?, ?)", numbers)
            new.execute("COMMIT")
            new.execute("PRAGMA journal_mode = DELETE")
        old.set_authorizer(None)
        old.execute("PRAGMA journal_mode = DELETE")  # a log that stayed would be read again
        old.close()
