"""The records of an evaluation while it goes on."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from probseg.interact import Journal, ObjectRecord, Protocol, most_telling
from probseg.types import Sample


class Collection:
    """Keeps all records, and the pictures of the first objects and of the best and worst.

    Args:
        protocol: Of the evaluation.
        first: Number of objects of each data set whose pictures are kept whatever they are like.
        journal: Takes the records down, where the evaluation is to survive being killed.
        taken_over: Runs that need not be done again. They have no pictures: a batch with one that
            deserves one is run once more.
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
        self._records = {record.key: record for record in taken_over}
        self._written = set(self._records)
        self._unpictured = most_telling(taken_over) if journal else set()
        self._shown: dict[str, list[tuple[str, str, int]]] = defaultdict(list)

    @property
    def records(self) -> list[ObjectRecord]:
        """All records so far."""
        return list(self._records.values())

    def lacks(self, samples: Sequence[Sample]) -> bool:
        """Whether a run of these objects, or a picture of them, is missing."""
        keys = {
            (sample.dataset, sample.name, trial)
            for sample in samples
            for trial in range(self.protocol.trials)
        }
        done = keys <= self._records.keys() and not keys & self._unpictured
        return not done or self._shows_more(samples)

    def wants_pictures(self, samples: Sequence[Sample]) -> bool:
        """Whether pictures of these objects may be kept; in a test they may be best or worst."""
        return self._journal is not None or self._shows_more(samples)

    def add(self, records: Sequence[ObjectRecord]) -> None:
        """Add the runs of some objects."""
        self._records |= {record.key: record for record in records}
        if self._journal is not None:
            self._journal.add([record for record in records if record.key not in self._written])
            self._written |= self._records.keys()
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
        """Clear up after a report has been written."""
        if self._journal is not None:
            self._journal.close()
