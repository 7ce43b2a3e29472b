"""The records of a running evaluation."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from probseg.evaluation import Journal, ObjectRecord, Protocol, checksum, most_telling
from probseg.types import Sample

Key = tuple[str, str, int]
"""Data set, object and trial."""


class Collection:
    """Keeps all records, and the pictures of the first objects and of the best and worst.

    Args:
        protocol: Of the evaluation.
        first: Number of objects of each data set whose pictures are kept in any case.
        journal: File of the records, if the evaluation is to survive being killed.
        taken_over: Runs of an earlier evaluation. They have no pictures: a batch with one of the
            best or worst is run again.
    """

    def __init__(
        self,
        protocol: Protocol,
        first: int,
        journal: Journal | None = None,
        taken_over: Sequence[ObjectRecord] = (),
    ) -> None:
        self.protocol = protocol
        self._first = first
        self._journal = journal
        self._records: dict[Key, ObjectRecord] = {}
        self._left = {record.key: record for record in taken_over}
        self._written = {record.key: record.pixels for record in taken_over}
        self._unpictured = most_telling(taken_over)
        self._shown: dict[str, list[Key]] = defaultdict(list)

    @property
    def records(self) -> list[ObjectRecord]:
        """All records so far."""
        return list(self._records.values())

    def adopts(self, samples: Sequence[Sample]) -> bool:
        """Reuse the earlier runs of these objects if all of them exist.

        Returns:
            Whether that was done. If not, the objects have to be run: a run is missing, a pixel of
            a sample has changed, or a picture is needed.
        """
        if not self._left or self._shows_more(samples):
            return False
        runs: list[ObjectRecord] = []
        for sample in samples:
            pixels = checksum(sample)
            for trial in range(self.protocol.trials):
                run = self._left.get((sample.dataset, sample.name, trial))
                if run is None or run.pixels != pixels or run.key in self._unpictured:
                    return False
                runs.append(run)
        self._records |= {run.key: run for run in runs}
        return True

    def wants_pictures(self, samples: Sequence[Sample]) -> bool:
        """Whether pictures of these objects may be kept; in a test they may be best or worst."""
        return self._journal is not None or self._shows_more(samples)

    def add(self, records: Sequence[ObjectRecord]) -> None:
        """Add the runs of some objects."""
        self._records |= {record.key: record for record in records}
        if self._journal is not None:
            new = [record for record in records if self._written.get(record.key) != record.pixels]
            self._journal.add(new)
        for record in records:
            shown = self._shown[record.dataset]
            if record.picture is not None and len(shown) < self._first:
                shown.append(record.key)
        kept = {key for shown in self._shown.values() for key in shown}
        if self._journal is not None:
            kept |= most_telling(self._records.values())
        for key, record in self._records.items():
            if record.picture is not None and key not in kept:
                self._records[key] = dataclasses.replace(record, picture=None)

    def _shows_more(self, samples: Sequence[Sample]) -> bool:
        return any(len(self._shown[sample.dataset]) < self._first for sample in samples)

    def close(self) -> None:
        """Remove the journal after a report has been written."""
        if self._journal is not None:
            self._journal.close()
