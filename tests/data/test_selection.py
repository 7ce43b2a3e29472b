"""A part of a data set: by area and name, and with weights."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probseg.data import Selected
from probseg.data.base import InteractiveDataset
from probseg.data.selection import is_held_out, object_weights
from support import refusals
from support.fakes import FakeObjects
from support.rows import each


class Sized(InteractiveDataset):
    """Objects of known areas whose images must not be read: two to a photograph."""

    name = "sized"

    def __init__(self, areas):
        self._areas = np.asarray(areas, dtype=np.int64)

    def __len__(self):
        return len(self._areas)

    def __getitem__(self, index):
        pytest.fail("no image has to be read")

    @property
    def areas(self):
        return self._areas

    def object_name(self, index):
        return f"photo{index // 2}#{index % 2}"


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def names(dataset):
    return [dataset.object_name(index) for index in range(len(dataset))]


def refused(*parts, dataset=None, **arguments):
    everything = Sized([5, 10, 15, 20]) if dataset is None else dataset
    refusals.refused(ValueError, lambda: Selected(everything, **arguments), *parts)


ALL = [f"photo{photo}#{number}\t1" for photo in (0, 1) for number in (0, 1)]


def test_names_of_objects_and_photographs_are_left_out(tmp_path, monkeypatch):
    path = write(tmp_path / "list.tsv", "photo1#0\tblurred", "", "photo0", "of_another_set", "pho")
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path))
    for exclude in (path, "list.tsv"):
        left = names(Selected(Sized([9] * 6), exclude=exclude))
        assert left == ["photo1#1", "photo2#0", "photo2#1"]
    inner = FakeObjects(5, name="inner")
    selected = Selected(inner, exclude=write(path, "object0", "object3"))
    assert [sample.name for sample in selected] == ["object1", "object2", "object4"]
    assert selected.areas is None
    assert selected[-1] is inner[4]


def test_weights_follow_names_not_lines(tmp_path):
    lines = ("photo1#1\t0.25", "photo0#0\t1e3", "photo1#0\t0", "photo0#1\t2")
    path = write(tmp_path / "weights.tsv", *lines)
    selected = Selected(Sized([5, 10, 15, 20]), weights=path)
    assert selected.weights.tolist() == [1000, 2, 0, 0.25]
    assert selected.weights.dtype == np.float64
    fewer = Selected(Sized([5, 10, 15, 20]), min_area=10, weights=path)
    assert fewer.weights.tolist() == [2, 0, 0.25]
    path = write(tmp_path / "weights.tsv", *lines[:1], *lines[2:])  # object 1 is left out
    fewer = Selected(Sized([5, 10, 15, 20]), min_area=11, weights=path)
    assert fewer.weights.tolist() == [0, 0.25]


def test_a_selection_of_a_selection(tmp_path):
    weights = write(tmp_path / "a.tsv", "photo0#0\t1", "photo0#1\t2", "photo1#0\t3", "photo1#1\t4")
    first = Selected(Sized([5, 10, 15, 20]), min_area=6, weights=weights)
    second = Selected(first, min_area=15)
    assert names(second) == ["photo1#0", "photo1#1"]
    assert second.areas.tolist() == [15, 20]
    assert second.name == "sized"
    assert second.weights.tolist() == [3, 4]
    others = write(tmp_path / "b.tsv", "photo1#0\t7", "photo1#1\t8")
    assert Selected(first, min_area=15, weights=others).weights.tolist() == [7, 8]
    assert object_weights(second) is second.weights
    assert object_weights(Sized([5])) is None


@given(st.integers(2, 12), st.integers(60, 120))
def test_photographs_are_held_out_with_all_their_objects(count, objects):
    everything = Sized(np.ones(objects))
    trained = names(Selected(everything, hold_out=count))
    left_out = names(Selected(everything, held_out=count))
    assert sorted(trained + left_out) == sorted(names(everything))
    photos = [{name.split("#")[0] for name in part} for part in (trained, left_out)]
    assert not photos[0] & photos[1]
    assert photos[1] == {photo for photo in photos[0] | photos[1] if is_held_out(photo, count)}


def test_the_rule_stays_what_it_was():
    photos = ["photo0", "photo1", "ecssd_0001", "ecssd_0002", "été 0", "été 1"]
    assert [is_held_out(photo, 3) for photo in photos] == [True, False] * 3
    assert [number for number in range(60) if is_held_out(f"photo{number}", 10)] == [25, 34, 37, 55]
    for count in (2, 8):
        held_out = sum(is_held_out(f"{number:05d}", count) for number in range(20_000))
        error = (20_000 * (count - 1)) ** 0.5 / count  # of a binomial distribution
        assert abs(held_out - 20_000 / count) < 3 * error


@each(
    ("argument", "lines", "parts"),
    [
        ("min_area", 3, ["got 3", "inner does not know"]),
        ("exclude", ["photo7"], ["of its 1 names none", "photo7", "sized has 'photo0#0'"]),
        ("exclude", ["photo0", "photo1"], ["none of its 4 objects is left"]),
        ("weights", None, ["no such file", "`weights`"]),
        ("weights", ALL[:2], ["no weight for objects", "'photo1#0'", "2 in"]),
        ("weights", [*ALL, "photo2#0\t1"], ["no object of sized has: ['photo2#0'] (1 in all)"]),
        ("weights", ["photo0#0\t1", "photo0#1\t-0.5"], ["line 2", "number >= 0, got '-0.5'"]),
        ("weights", ["", "photo0#0\tinf"], ["line 2", "got 'inf'"]),
        ("weights", ["photo0#0 1"], ["line 1", "a tab and a finite number >= 0, got ''"]),
        ("weights", ["photo0#0\t1\t2"], ["line 1", r"got '1\t2'"]),
        ("weights", ["photo0#0\t1", "photo0#0\t1"], ["line 2", "'photo0#0' was listed before"]),
        ("weights", [f"{line[:-1]}0" for line in ALL], ["has 0 for all objects"]),
        ("hold_out", 10, ["leaves out no photograph of sized, of 4 objects", "null"]),
        ("held_out", 10, ["none of its 4 objects is left", "held_out=10"]),
        ("hold_out", 1, ["`hold_out`", "got 1"]),
    ],
)
def test_what_cannot_be_right_is_refused(tmp_path, argument, lines, parts):
    if isinstance(lines, int):
        inner = FakeObjects(5, name="inner") if argument == "min_area" else None
        refused(*parts, dataset=inner, **{argument: lines})
    else:
        path = tmp_path / "list.tsv"
        if lines is not None:
            write(path, *lines)
        refused(path, *parts, **{argument: path})
