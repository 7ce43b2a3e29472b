"""Tables of the database of annotations, and the triggers that record how to undo a change.

`history` holds each change of a photograph as the statements that take it back, or, where it is
undone, that redo it, in groups by the revision that the change led to. `recording` has one row
during a change. https://www.sqlite.org/undoredo.html describes the method.
"""

from __future__ import annotations

SCHEMA = """
CREATE TABLE photographs (
    name TEXT PRIMARY KEY, state TEXT NOT NULL DEFAULT 'open', revision INTEGER NOT NULL DEFAULT 0,
    written INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE objects (
    id INTEGER PRIMARY KEY AUTOINCREMENT, photo TEXT NOT NULL REFERENCES photographs(name),
    label TEXT, open INTEGER NOT NULL, cursor INTEGER NOT NULL DEFAULT 0,
    kept INTEGER NOT NULL DEFAULT 0, mask BLOB, counts TEXT, area INTEGER, source TEXT, base BLOB,
    model TEXT, seconds REAL NOT NULL DEFAULT 0, touched REAL
);
CREATE UNIQUE INDEX one_open ON objects(photo) WHERE open = 1;
CREATE INDEX of_photo ON objects(photo);
CREATE TABLE steps (
    object INTEGER NOT NULL REFERENCES objects(id) ON DELETE CASCADE, position INTEGER NOT NULL,
    body TEXT NOT NULL, PRIMARY KEY (object, position)
);
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

QUALITY = "ALTER TABLE objects ADD COLUMN quality REAL;"

UNDONE = ("label", "open", "kept", "mask", "counts", "area", "model", "quality")
"""Columns of objects that undo and redo change; the time that was spent stays."""


def _recorded(event: str, inverse: str, number: str = "NULL") -> str:
    """Return a trigger that records how to take a change back, if a change is being recorded.

    Args:
        event: The name of the trigger, and when it is called.
        inverse: An SQL expression of the statement that takes the change back.
        number: An SQL expression of the number of the object.
    """
    return (
        f"CREATE TRIGGER {event} BEGIN "
        "INSERT INTO history (photo, revision, undone, object, inverse) "
        f"SELECT photo, revision, undone, {number}, {inverse} FROM recording; END;\n"
    )


def _assigned(table: str, column: str, key: str, number: str) -> str:
    """Record the value that a column had."""
    return _recorded(
        f"{table}_{column} AFTER UPDATE OF {column} ON {table} "
        f"WHEN OLD.{column} IS NOT NEW.{column}",
        f"'UPDATE {table} SET {column} = ' || quote(OLD.{column}) "
        f"|| ' WHERE {key} = ' || quote(OLD.{key})",
        number,
    )


def _inserted_again(table: str, columns: str) -> str:
    """Return the expression of the statement that inserts a deleted row."""
    values = " || ', ' || ".join(f"quote(OLD.{column})" for column in columns.split(", "))
    return f"'INSERT INTO {table} ({columns}) VALUES (' || {values} || ')'"


HISTORY = f"""
DELETE FROM steps WHERE position >= (SELECT cursor FROM objects WHERE id = object);
ALTER TABLE objects DROP COLUMN cursor;
CREATE TABLE history (
    number INTEGER PRIMARY KEY AUTOINCREMENT, photo TEXT NOT NULL, revision INTEGER NOT NULL,
    undone INTEGER NOT NULL, object INTEGER, inverse TEXT NOT NULL
);
CREATE INDEX history_of_photo ON history(photo, undone, revision);
CREATE TABLE recording (photo TEXT NOT NULL, revision INTEGER NOT NULL, undone INTEGER NOT NULL);
{_assigned("photographs", "state", "name", "NULL")}
{"".join(_assigned("objects", column, "id", "OLD.id") for column in UNDONE)}
{
    _recorded(
        "objects_insert AFTER INSERT ON objects",
        "'DELETE FROM objects WHERE id = ' || NEW.id",
        "NEW.id",
    )
}
{
    _recorded(
        "objects_delete AFTER DELETE ON objects",
        _inserted_again(
            "objects", f"id, photo, source, base, seconds, touched, {', '.join(UNDONE)}"
        ),
        "OLD.id",
    )
}
{
    _recorded(
        "steps_insert AFTER INSERT ON steps",
        "'DELETE FROM steps WHERE object = ' || NEW.object || ' AND position = ' || NEW.position",
        "NEW.object",
    )
}
{
    _recorded(
        "steps_delete AFTER DELETE ON steps",
        _inserted_again("steps", "object, position, body"),
        "OLD.object",
    )
}
"""
"""One history for each photograph, in place of a cursor in the steps of each object."""

CHANGES = (SCHEMA, QUALITY, HISTORY)
"""Statements that lead from each version of the schema, `PRAGMA user_version`, to the next one."""
