"""The journal of a running evaluation, from which a killed one is resumed.

`objects.rank0.<mark>.csv` grows with every batch of objects, one file for each process, and
`evaluation.json` beside it says what is being evaluated. A finished evaluation, which may lie in
the same folder, stays whole until the new one has results.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import Any

from probseg.evaluation.records import ObjectRecord, read_objects, unique, write_objects
from probseg.paths import rewriting, write_text

ABOUT = "evaluation.json"

RESULTS = "results.json"
"""File of a finished evaluation."""


class Journal:
    """Adds records to a file as they are made.

    Args:
        folder: Folder of the evaluation; created if missing.
        subject: What is evaluated, as JSON values: whatever can change a number. An evaluation of
            the same subject continues from here.
        rank: Number of the process; each has a separate file.
        records: Taken over from an unfinished journal, which may lie in the same folder: at no
            moment are they in neither.
    """

    def __init__(
        self,
        folder: Path,
        subject: Mapping[str, Any],
        rank: int = 0,
        records: Sequence[ObjectRecord] = (),
    ) -> None:
        self._folder = folder
        self._path = folder / _name(rank, fingerprint(subject))
        folder.mkdir(parents=True, exist_ok=True)
        with rewriting(self._path) as file:
            write_objects(file, records)
        if rank == 0:
            text = json.dumps({"fingerprint": fingerprint(subject), "subject": subject}, indent=2)
            write_text(folder / ABOUT, text + "\n")

    def add(self, records: Sequence[ObjectRecord]) -> None:
        """Write records to the file; they survive the end of this process."""
        with self._path.open("a", newline="", encoding="utf-8") as file:
            write_objects(file, records, header=False)

    def close(self) -> None:
        """Remove the journal: the evaluation is finished, and its results are written."""
        (self._folder / ABOUT).unlink(missing_ok=True)
        for path in self._folder.glob("objects.rank*.csv"):
            path.unlink()


def remove_journal(folder: Path) -> None:
    """Remove the journal of a folder whose records were copied to another one."""
    (folder / ABOUT).unlink(missing_ok=True)


def fingerprint(subject: Mapping[str, Any]) -> str:
    """Return a checksum of JSON values."""
    return hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()


def find_unfinished(
    folder: Path, subject: Mapping[str, Any], runs: Path | None = None
) -> tuple[Path, list[ObjectRecord]]:
    """Find the records of an unfinished evaluation of the same subject.

    The newest journal counts.

    Args:
        folder: Of the new evaluation, `<run>/<test>/<protocol>`, which is looked at, too.
        subject: Description of the evaluation.
        runs: Folder of runs, in each of which the same place is looked at; None for no others.

    Returns:
        The folder, and its records: each run once, whole runs only. None are there where nothing
        was left unfinished.
    """
    journals = [folder / ABOUT]
    if runs is not None:
        journals += runs.glob(f"*/{escape(str(Path(*folder.parts[-2:])))}/{ABOUT}")
    mark = fingerprint(subject)
    fitting = [path for path in journals if path.is_file() and _mark(path) == mark]
    if not fitting:
        return folder, []
    newest = max(fitting, key=lambda path: path.stat().st_mtime).parent
    files = sorted(newest.glob(_name("*", mark)))
    return newest, unique([r for file in files for r in read_objects(file, unfinished=True)])


def _name(rank: int | str, mark: str) -> str:
    return f"objects.rank{rank}.{mark[:12]}.csv"


def _mark(path: Path) -> str | None:
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["fingerprint"])
    except (ValueError, KeyError):  # killed while it was written
        return None
