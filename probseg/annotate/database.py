"""The door of the database of annotations, whose file may come from a stranger.

Nothing in it is carried out: it has our tables and triggers or is refused, all its pages and rows
are checked when it is opened, and later statements reach nothing but our tables. Of an earlier
schema the rows are read, as data, into a new file.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

from probseg.annotate.schema import COLUMNS, INVERSES, LITERAL, SCHEMA, VERSION, insertion
from probseg.errors import UsageError
from probseg.paths import replacing

_logger = logging.getLogger(__name__)

WAY_OUT = (
    "rename the folder `.probseg` to begin anew (mask files stay as they are; clicks, labels and "
    "undo are left behind), or choose another --out"
)

LONGEST = 1 << 28
"""Most bytes of a text or a mask; twice what those of the largest photographs can have."""

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

_FUNCTIONS = ("coalesce", "count", "sum", "max", "min", "quote", "json_extract")

_AS_TEXT = {statement: name for name, statement in INVERSES.items()}
"""Names of the statements that version 3 kept as text, with question marks for values."""


def open_database(path: Path) -> sqlite3.Connection:
    """Open the database of a folder; make it if it is missing, renew it if it is of an old schema.

    Args:
        path: The file; links were refused before.

    Raises:
        UsageError: If it is no database of this version or an earlier one, is damaged, or is used
            by another process.
    """
    journal = path.with_name(f"{path.name}-journal")
    if journal.exists():  # SQLite would carry it out, and delete a file that it names
        msg = f"{journal}: is not written by probseg, which uses no such journal; remove it"
        raise UsageError(msg)
    try:
        db = _connected(path)
        try:
            return _checked(path, db)
        except BaseException:
            db.close()
            raise
    except sqlite3.OperationalError as error:
        msg = (
            f"{path}: {error}; stop another `probseg annotate` that is at work on this folder, "
            f"make the folder writable, or {WAY_OUT}"
        )
        raise UsageError(msg) from error
    except (sqlite3.Error, MemoryError, OverflowError) as error:
        msg = f"{path}: is damaged or not a database of annotations ({error}); {WAY_OUT}"
        raise UsageError(msg) from error


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
        msg = f"{path}: schema {version} is of a newer probseg, this one reads {VERSION}"
        raise UsageError(msg)
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
        msg = f"{path}: is damaged ({faults[0]}); {WAY_OUT}"
        raise UsageError(msg)
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
        msg = f"{path}: has {foreign[0]:.200}, which probseg did not make; {WAY_OUT}"
        raise UsageError(msg)


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
    undo had taken back lay behind a cursor of their object.
    """
    numbers = old.execute("SELECT name, seq FROM sqlite_sequence").fetchall()
    history = []
    for *row, text in old.execute("SELECT * FROM history") if version == 3 else []:
        name = _AS_TEXT.get(LITERAL.sub("?", text))
        history.append((*row, name, ", ".join(LITERAL.findall(text))))
    if any(name is None for *_, name, _ in history):
        _logger.warning(
            "%s: undo begins anew, as its history has statements that are not probseg's", path
        )
        history = []
    old.set_authorizer(_authorized)
    selected = {
        table: ", ".join("NULL" if version == 1 and name == "quality" else name for name in columns)
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
