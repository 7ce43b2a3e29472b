"""Reading all files of a data set once."""

import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probseg.data.reading import NAMED, digest_of, index_objects, plain_name, read_all
from probseg.errors import DataError
from support.refusals import refused


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / "here" / f"{name}.txt" for name in "abc"]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_text(path.stem)
        os.utime(path, ns=(10**18, 10**18))
    return paths


def test_a_digest_follows_names_sizes_times_and_order(files):
    root = files[0].parent
    digests = [digest_of(files, root)]
    assert digests == [digest_of(list(files), root)]
    digests.append(digest_of(files[::-1], root))
    digests.append(digest_of(files[:2], root))
    os.utime(files[0], ns=(10**18, 10**18 + 1))
    digests.append(digest_of(files, root))
    files[0].write_text("aa")
    os.utime(files[0], ns=(10**18, 10**18 + 1))
    digests.append(digest_of(files, root))
    files[0].rename(root / "d.txt")
    digests.append(digest_of(files, root))
    digests.append(digest_of([root / "d.txt", *files[1:]], root))
    strange = root / os.fsdecode(b"\xff.png")
    strange.write_text("")
    digests.append(digest_of([strange], root))
    assert len(set(digests)) == len(digests)


def half(number):
    if number % 2:
        msg = f"{number}.png: is odd"
        raise DataError(msg)
    return number // 2


def test_results_come_in_order_and_errors_at_the_end():
    assert list(read_all(half, range(0, 12, 2), "numbers")) == list(range(6))
    one = read_all(half, [0, 3, 8], "numbers")
    assert [next(one), next(one)] == [0, 4]
    refused(DataError, lambda: next(one), "3.png: is odd")
    for count in (NAMED, NAMED + 1, 30):
        message = refused(
            DataError, lambda n=count: list(read_all(half, range(1, 2 * n, 2), "all"))
        )
        first, *lines = message.split("\n")
        assert first == f"{count} entries of all cannot be used:"
        assert lines[:NAMED] == [f"{2 * i + 1}.png: is odd" for i in range(NAMED)]
        assert lines[NAMED:] == ([f"and {count - NAMED} more"] if count > NAMED else [])
    with pytest.raises(ZeroDivisionError):  # other errors are not caught
        list(read_all(lambda number: 1 // number, [1, 0], "numbers"))


def test_only_a_terminal_shows_how_far_it_is(monkeypatch):
    for terminal, shown in ((True, "\rreading numbers: 6 of 6\n"), (False, "")):
        stream = io.StringIO()
        stream.isatty = lambda terminal=terminal: terminal
        monkeypatch.setattr(sys, "stderr", stream)
        list(read_all(half, range(0, 12, 2), "numbers"))
        assert stream.getvalue().endswith(shown)
        assert bool(stream.getvalue()) == bool(shown)


def test_objects_are_listed_once(files):
    calls = []

    def count(path):
        calls.append(path)
        areas = np.zeros(5, np.int64)
        areas[[1, 3]] = (len(path.read_text()), 7 if path.stem == "b" else 0)
        return areas

    a, b, c = files
    expected = [(a, 1, 1), (b, 1, 1), (b, 3, 7), (c, 1, 1)]
    for _ in range(2):
        assert index_objects("x", a.parent, count, files, files) == expected
    assert sorted(calls) == files
    b.write_text("bbb")
    expected[1] = (b, 1, 3)
    assert index_objects("x", a.parent, count, files, files) == expected
    assert len(calls) == 6
    for options in ({"limit": 1}, {"limit": 2}, {"limit": 1}):
        assert index_objects("x", a.parent, count, files, files, **options) == expected
    assert len(calls) == 12
    assert index_objects("y", a.parent, lambda _: np.zeros(3, np.int64), files, files) == []


@given(name=st.text(max_size=30) | st.sampled_from(["a.png", "..", "a/b", "/", "C:x", "é", ". "]))
def test_plain_names_stay_in_their_folder(name):
    if plain_name(name):
        path = Path("/data/masks") / name
        assert path.parent == Path("/data/masks")
        assert os.path.normpath(path) == str(path)
    for name in ("000000000139", "a b#1.png", "é.png", ".hidden", "a..b"):
        assert plain_name(name)
    for name in ("", ".", "..", " ", "...", "a/b", "../a", "a\\b", "C:a", "a\n", "a\0", 256 * "a"):
        assert not plain_name(name)
