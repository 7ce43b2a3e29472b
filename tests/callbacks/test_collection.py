"""What is kept in memory and written down while an evaluation goes on."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probseg.callbacks.evaluation import Collection
from probseg.evaluation import (
    PROTOCOLS,
    ObjectRecord,
    Picture,
    best_and_worst,
    checksum,
)
from support.result_folders import step
from support.toy_models import toy_sample

PROTOCOL = replace(PROTOCOLS["gabbur2021"], max_clicks=1, trials=2)
PICTURE = Picture(np.zeros((1, 1, 3), np.uint8), np.ones((1, 1), np.uint8), None, (), ())


class Notes:
    """A journal that keeps its records in memory."""

    def __init__(self):
        self.records, self.closed = [], False

    def add(self, records):
        self.records += records

    def close(self):
        self.closed = True


def objects(count, dataset="Toy"):
    """Samples, of which a collection only needs the names."""
    return [toy_sample((3, 4))._replace(name=f"{n:02}", dataset=dataset) for n in range(count)]


def ran(samples, ious, pictured):
    """The runs of some objects, all trials, with pictures of the first ones if asked for."""
    return [
        ObjectRecord(
            sample.dataset,
            sample.name,
            trial,
            tuple(step(k, iou=iou, boundary_iou=iou) for k in range(2)),
            sample.name,
            checksum(sample),
            PICTURE if pictured and trial == 0 else None,
        )
        for sample, iou in zip(samples, ious, strict=True)
        for trial in range(2)
    ]


def feed(collection, samples, ious, size=3):
    """Do what an evaluation does; return the names of the objects that were run."""
    done = []
    for first in range(0, len(samples), size):
        batch = slice(first, first + size)
        if not collection.take_over(samples[batch]):
            pictured = collection.wants_pictures(samples[batch])
            collection.add(ran(samples[batch], ious[batch], pictured))
            done += [sample.name for sample in samples[batch]]
    return done


def pictured(collection):
    return {record.key for record in collection.records if record.picture is not None}


def firsts(samples, count):
    return {(sample.dataset, sample.name, 0) for sample in samples[:count]}


IOUS = np.random.default_rng(0).permutation(30) / 30


def test_a_validation_keeps_the_first_pictures_of_each_set():
    collection = Collection(PROTOCOL, 4)
    one, other = objects(10), objects(2, "other")
    assert collection.wants_pictures(one[:3])
    assert len(feed(collection, one, IOUS[:10])) == 10
    assert not collection.wants_pictures(one[6:])
    feed(collection, other, IOUS[:2])
    assert pictured(collection) == firsts(one, 4) | firsts(other, 2)
    assert len(collection.records) == 24
    assert not Collection(PROTOCOL, 0).wants_pictures(one)


def test_what_was_taken_over_is_run_again_for_a_picture_only():
    samples, notes = objects(30), Notes()
    before = ran(samples[:21], IOUS[:21], pictured=False)
    collection = Collection(PROTOCOL, 2, notes, before)
    done = feed(collection, samples, IOUS)
    telling = {name for _, name, _ in best_and_worst(before)}
    in_batch = {f"{n // 3 * 3 + i:02}" for n in map(int, telling) for i in range(3)}
    new = {sample.name for sample in samples[21:]}
    assert set(done) == in_batch | {"00", "01", "02"} | new
    assert len(done) < 30, "some were not run again"
    assert pictured(collection) == best_and_worst(collection.records) | firsts(samples, 2)
    assert [record.key for record in notes.records] == [
        record.key for record in ran(samples[21:], IOUS[21:], pictured=False)
    ]
    assert len(collection.records) == 60


def test_a_trial_that_is_missing_is_run():
    samples, notes = objects(30), Notes()
    middle, other = np.argsort(IOUS)[[14, 15]]  # neither among the best nor the worst
    known = ran(samples, IOUS, pictured=False)
    missing = known.pop(2 * middle + 1)
    collection = Collection(PROTOCOL, 0, notes, known)
    assert collection.take_over([samples[other]])
    assert {record.name for record in collection.records} == {samples[other].name}
    assert not collection.take_over([samples[middle], samples[other]])
    collection.add(ran([samples[middle]], IOUS[[middle]], pictured=True))
    assert notes.records == [missing]
    assert len(collection.records) == 4


@pytest.mark.parametrize("what", ["image", "mask", "scribbles", "initial"])
def test_a_sample_that_changed_is_run_again(what):
    samples, notes = objects(30), Notes()
    middle = int(np.argsort(IOUS)[14])
    collection = Collection(PROTOCOL, 0, notes, ran(samples, IOUS, pictured=False))
    before = samples[middle]
    pixels = {
        "image": before.image ^ 1,
        "mask": 1 - before.mask,
        "scribbles": before.mask,
        "initial": before.mask > 0,
    }
    changed = before._replace(**{what: pixels[what]})
    assert not collection.take_over([changed])
    collection.add(ran([changed], IOUS[[middle]], pictured=False))
    assert len(notes.records) == 2, "written down, although there were runs of this name"


@given(
    count=st.integers(1, 25),
    size=st.integers(1, 7),
    first=st.integers(0, 5),
    known=st.integers(0, 25),
    seed=st.integers(0, 99),
)
def test_killed_or_not_the_outcome_is_the_same(count, size, first, known, seed):
    samples = objects(count)
    ious = np.random.default_rng(seed).integers(0, 6, count) / 5  # with ties
    whole, resumed, notes = Notes(), Collection(PROTOCOL, first, Notes()), Notes()
    feed(resumed, samples[:known], ious[:known], size)
    taken_over = [replace(record, picture=None) for record in resumed.records]
    straight = Collection(PROTOCOL, first, whole)
    again = Collection(PROTOCOL, first, notes, taken_over)
    feed(straight, samples, ious, size)
    feed(again, samples, ious, size)
    assert (
        pictured(again)
        == pictured(straight)
        == best_and_worst(straight.records) | firsts(samples, first)
    )
    assert {record.key for record in again.records} == {record.key for record in straight.records}
    written = [record.key for record in (*taken_over, *notes.records)]
    assert sorted(written) == sorted(record.key for record in whole.records)
    assert len(set(written)) == len(written), "each run once"
