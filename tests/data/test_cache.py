"""Files that are read once, and arrays kept of them: rebuilt when damaged, built by one process."""

import copy
import errno
import io
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import probseg.data.cache as cache
from probseg.data.cache import NAMED, cached, digest_of, index_objects, plain_name, read_all
from probseg.errors import DataError
from support.refusals import refused

FORK = multiprocessing.get_context("fork")


class Data:
    """A folder with a source, and a build whose calls are counted in a file."""

    def __init__(self, root):
        self.root = root / "data"
        self.root.mkdir()
        self.source = self.root / "list.txt"
        self.source.write_text("3 4 5")
        self.calls = root / "calls"
        self.kept = self.root / ".probseg"

    def build(self):
        with self.calls.open("a") as file:
            file.write("x")
        numbers = np.array(self.source.read_text().split(), dtype=np.int64)
        return {"numbers": numbers, "names": np.zeros((0, 2), np.uint8), "text": numbers % 2 == 0}

    @property
    def builds(self):
        return len(self.calls.read_text()) if self.calls.exists() else 0

    def open(self, build=None, **options):
        return cached("list", [self.source], options, build or self.build, self.root)

    def file(self, name):
        (path,) = self.kept.rglob(name)
        return path


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.delenv("PROBSEG_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home" / ".cache").mkdir(parents=True)
    return tmp_path / "home" / ".cache" / "probseg"


@pytest.fixture
def data(tmp_path):
    return Data(tmp_path)


def sound(arrays, numbers=(3, 4, 5)):
    assert {name: (array.dtype, array.shape) for name, array in arrays.items()} == {
        "numbers": (np.dtype(np.int64), (len(numbers),)),
        "names": (np.dtype(np.uint8), (0, 2)),
        "text": (np.dtype(bool), (len(numbers),)),
    }
    assert arrays["numbers"].tolist() == list(numbers)
    return True


def test_arrays_are_built_once_and_mapped(data, home, tmp_path, monkeypatch):
    assert sound(data.open())
    again = data.open()
    assert sound(again)
    assert data.builds == 1
    with pytest.raises(ValueError, match="read-only"):
        again["numbers"][0] = 1
    mapped = again["numbers"].base
    while not isinstance(mapped, np.memmap):
        mapped = mapped.base
    assert mapped.filename.name == "numbers.npy"
    monkeypatch.setenv("PROBSEG_CACHE", str(tmp_path / "chosen"))  # which comes first
    assert sound(data.open())
    assert list((tmp_path / "chosen").rglob("numbers.npy"))
    assert not home.exists()


def test_a_changed_source_is_read_again(data, caplog):
    data.open()
    data.source.write_text("7 8 9 10")
    assert sound(data.open(), (7, 8, 9, 10))
    state = data.source.stat()
    data.source.write_text("1 2 3 99")
    os.utime(data.source, ns=(state.st_atime_ns, state.st_mtime_ns + 10**6))
    assert sound(data.open(), (1, 2, 3, 99))
    assert sound(data.open(), (1, 2, 3, 99))
    assert data.builds == 3
    assert not caplog.messages  # nothing is wrong
    assert len(list(data.kept.rglob("numbers.npy"))) == 1  # the old ones are gone


def test_names_options_sources_and_formats_tell_caches_apart(data, monkeypatch):
    other = data.root / "other.txt"
    other.write_text("3 4 5")
    for name, sources, options in (
        ("list", [data.source], {}),
        ("list", [data.source], {"part": 1}),
        ("list", [data.source], {"part": "1"}),
        ("list", [other], {}),
        ("list", [data.source, other], {}),
        ("lists", [data.source], {}),
    ):
        before = data.builds
        for _ in range(2):
            cached(name, sources, options, data.build, data.root)
        assert data.builds == before + 1, (name, sources, options)
    monkeypatch.setattr(cache, "VERSION", cache.VERSION + 1)
    data.open()
    assert data.builds == before + 2


@pytest.mark.parametrize("damage", ["short", "gone", "other", "long"])
@pytest.mark.parametrize("name", ["numbers.npy", "*.json"])
def test_damaged_files_are_rebuilt(data, caplog, damage, name):
    data.open()
    path = data.file(name)
    content = path.read_bytes()
    changed = {"short": content[:-3], "other": os.urandom(len(content)), "long": content + b"{"}
    path.unlink() if damage == "gone" else path.write_bytes(changed[damage])
    assert sound(data.open())
    told = caplog.text
    if name == "*.json" and damage == "gone":
        assert told == ""  # as if it had never been built
    else:
        assert "rebuilt" in told
        assert str(data.kept) in told
    assert sound(data.open())
    assert data.builds == 2
    assert caplog.text == told


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_every_byte_of_a_small_file_counts(data, place, flip):
    data.open()
    builds = data.builds
    path = data.file("numbers.npy")
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= flip
    path.write_bytes(content)
    assert sound(data.open())
    assert data.builds == builds + 1


def test_samples_of_a_large_file_count(data):
    arrays = {"numbers": np.arange(10**6)}
    data.open(lambda: arrays)
    path = data.file("numbers.npy")
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(content[:half] + bytes(len(content) - half))  # as after a failure of power
    assert np.array_equal(data.open(lambda: arrays)["numbers"], arrays["numbers"])


def test_of_two_processes_one_builds(data):
    start, results = FORK.Barrier(3), FORK.Queue()

    def slow():
        time.sleep(0.3)
        return data.build()

    def work():
        start.wait()
        results.put(data.open(slow)["numbers"].tolist())

    workers = [FORK.Process(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    assert [results.get(timeout=20) for _ in workers] == [[3, 4, 5]] * 3
    for worker in workers:
        worker.join()
    assert data.builds == 1


def test_a_process_that_stands_still_is_not_waited_for_without_end(data, caplog, monkeypatch):
    for name in ("HEARTBEAT", "LONGEST_WAIT"):
        monkeypatch.setattr(cache, name, 0.1)
    data.open(data.build)
    header = data.file("*.json")
    with cache._locked(header):
        header.unlink()
        assert data.open(data.build)["numbers"].tolist() == [3, 4, 5]
    assert "another process has worked on" in caplog.text


def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("victim", ["build", "save", "replace"])
def test_a_build_that_is_killed_leaves_nothing_wrong(data, caplog, monkeypatch, victim):
    data.open(part=1)
    save, names = np.save, []

    def save_one(*arguments, **options):
        names.append(1)
        save(*arguments, **options) if len(names) < 2 else kill()

    def work():
        with monkeypatch.context() as patch:
            if victim == "save":
                patch.setattr(np, "save", save_one)
            elif victim == "replace":  # before the header is at its place
                patch.setattr(type(data.root), "replace", kill)
            data.open(kill if victim == "build" else None)

    worker = FORK.Process(target=work)
    worker.start()
    worker.join(20)
    assert worker.exitcode == -signal.SIGKILL
    left = set(data.kept.glob("list-*-*"))
    assert len(left) == 1 + (victim != "build")  # that of part 1 and what was cut off
    assert sound(data.open())
    assert sound(data.open(part=1))
    assert data.builds == 2 + (victim != "build")
    assert not caplog.messages
    assert len(left & set(data.kept.glob("list-*-*"))) == 1


def test_all_is_on_the_disk_before_the_header_takes_its_place(data, monkeypatch):
    synced, path = [], type(data.root)
    sync, replace = os.fsync, path.replace

    def noted(file):
        synced.append(os.fstat(file).st_ino)
        sync(file)

    def replaced(header, target):
        assert {file.stat().st_ino for file in (header, *data.kept.rglob("*.npy"))} == {*synced}
        return replace(header, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(path, "replace", replaced)
    assert sound(data.open())
    assert len(synced) == 4


def test_folders_that_cannot_be_written(data, home, caplog, monkeypatch):
    data.kept.write_text("in the way")
    for _ in range(2):
        assert sound(data.open())
    assert data.builds == 1
    assert list(home.rglob("numbers.npy"))
    assert not caplog.messages
    (data.root.parent / "other").mkdir()
    other = Data(data.root.parent / "other")  # of the same name
    other.kept.write_text("in the way")
    other.source.write_text("7")
    assert sound(other.open(), (7,))
    with monkeypatch.context() as patch:
        patch.delenv("HOME")
        patch.setattr("os.path.expanduser", lambda path: path)  # as in some containers
        refused(DataError, data.open, "PROBSEG_CACHE", data.kept)
    shutil.rmtree(home)
    home.write_text("in the way")
    refused(DataError, data.open, "PROBSEG_CACHE", data.kept, "'list'")


def full_disk():
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk(data, home, monkeypatch):
    save = np.save

    def full(file, *arguments, **options):
        full_disk() if str(data.kept) in file.name else save(file, *arguments, **options)

    monkeypatch.setattr(np, "save", full)
    assert sound(data.open())
    assert not list(data.kept.glob("list-*-*"))
    assert list(home.rglob("numbers.npy"))


def test_without_locks_one_of_several_results_is_kept(data, monkeypatch):
    monkeypatch.setattr(cache.FileLock, "acquire", lambda self, **_: full_disk())
    first = []

    def slow():
        first.append(data.open())  # of a process that is done before
        return data.build()

    last = data.open(slow)
    assert sound(last)
    assert data.builds == 2
    assert last["numbers"].path == first[0]["numbers"].path
    assert len(list(data.kept.glob("list-*-*"))) == 1


def test_a_build_that_fails(data):
    with pytest.raises(ZeroDivisionError):
        data.open(lambda: 1 // 0)
    with pytest.raises(ValueError, match="pickle"):  # nothing is ever pickled
        data.open(lambda: {"numbers": np.array([object()])})
    assert not list(data.kept.glob("list-*-*"))
    assert sound(data.open())
    data.source.unlink()
    with pytest.raises(FileNotFoundError, match=r"list\.txt"):
        data.open()


def test_copies_are_the_same_file(data):
    arrays = data.open(lambda: {"numbers": np.arange(10**5)})
    sent = pickle.dumps(arrays)
    assert len(sent) < 1000
    assert np.array_equal(pickle.loads(sent)["numbers"], np.arange(10**5))
    assert copy.deepcopy(arrays)["numbers"] is arrays["numbers"]
    part = arrays["numbers"][10:20]  # parts are not
    assert pickle.loads(pickle.dumps(part)).tolist() == list(range(10, 20))
    assert not np.shares_memory(copy.deepcopy(part), part)


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
        raise DataError(f"{number}.png: is odd")
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
