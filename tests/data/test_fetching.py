"""Unpacking archives that may be damaged or malicious, and fetching data sets."""

import io
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
import zipfile
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from probseg.data import BSDS500, DAVIS585, GrabCut
from probseg.data.archives import unpack
from probseg.data.fetch import fetch
from probseg.data.published import MEGABYTE, PUBLISHED
from probseg.errors import ChecksumError, DataError, DownloadError, UsageError
from probseg.paths import digest
from support.fakes import (
    draw_scene,
    save,
    with_source,
    write_bsds500,
    write_grabcut,
    write_lvis,
)
from support.fakes import write_sbd as write_sbd_folder
from support.refusals import refused
from support.rows import each
from support.runs import command
from support.sites import serving

CONTENT = random.Random(0).randbytes(300_000)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def site():
    with serving() as site:
        yield site


def accept(path):
    """Check nothing."""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def zipped(files, path):
    """Write an archive of the files `{name: content}`; zip or tar by the suffix."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for name, content in files.items():
                file.writestr(name, content)
    else:
        with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as file:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                file.addfile(entry, io.BytesIO(content))
    return path


def content_of(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@given(
    files=st.dictionaries(
        st.tuples(st.sampled_from(["", "in/", "in/deep/"]), st.text("abcé .", max_size=4)).map(
            lambda pair: f"{pair[0]}f{pair[1]}x"
        ),
        st.binary(max_size=200),
        max_size=6,
    ),
    suffix=st.sampled_from([".zip", ".tgz", ".tar"]),
)
def test_unpacking_is_the_inverse_of_packing(files, suffix):
    with TemporaryDirectory() as place:
        archive = zipped(files, Path(place) / f"a{suffix}")
        unpack(archive, Path(place) / "out", 10_000)
        assert content_of(Path(place) / "out") == files


OUTSIDE = ["../x", "a/../../x", "/tmp/probseg_x", "C:/x", "a/.."]
OUTSIDE += ["..\\x", "..\\..\\x", "a\\x", "a/C:\\x", "a/C:x", "a/x:stream"]  # on Windows


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_entries_that_lead_out_of_the_folder(suffix, tmp_path):
    for number, name in enumerate(OUTSIDE):
        place = tmp_path / str(number)
        place.mkdir()
        archive = zipped({"good": b"1", name: b"2"}, place / f"a{suffix}")
        refused(
            DataError, lambda a=archive, to=place / "in" / "out": unpack(a, to, 10_000),
            "leads out of the folder",
        )  # fmt: skip
        assert content_of(place) == {archive.name: archive.read_bytes(), "in/out/good": b"1"}


def special(path, kind, target):
    """An archive with a file and a link or device."""
    with tarfile.open(path, "w") as file:
        entry = tarfile.TarInfo("a/real")
        entry.size = 4
        file.addfile(entry, io.BytesIO(b"real"))
        entry = tarfile.TarInfo("a/link")
        entry.type, entry.linkname = kind, target
        file.addfile(entry)
    return path


@each(
    ("kind", "target", "reason"),
    [
        (tarfile.SYMTYPE, "/etc/passwd", "leads out"),
        (tarfile.SYMTYPE, "../../x", "leads out"),
        (tarfile.SYMTYPE, "..\\..\\x", "leads out"),
        (tarfile.LNKTYPE, "../x", "leads out"),
        (tarfile.SYMTYPE, "nowhere", "damaged or incomplete"),
        (tarfile.SYMTYPE, "link", "damaged or incomplete"),
        (tarfile.FIFOTYPE, "", "device"),
        (tarfile.CHRTYPE, "", "device"),
        (tarfile.SYMTYPE, "real", None),
        (tarfile.LNKTYPE, "a/real", None),
    ],
)
def test_links_become_copies_unless_they_lead_out(kind, target, reason, tmp_path):
    archive, out = special(tmp_path / "a.tar", kind, target), tmp_path / "out"
    if reason is None:
        unpack(archive, out, 10_000)
        assert content_of(out) == {"a/real": b"real", "a/link": b"real"}
        assert not (out / "a" / "link").is_symlink()
    else:
        refused(DataError, lambda: unpack(archive, out, 10_000), archive, reason)
        assert content_of(out) == {"a/real": b"real"}


def test_links_of_zip_files_and_of_the_folder_are_refused(tmp_path):
    entry = zipfile.ZipInfo("link")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    path, out = tmp_path / "a.zip", tmp_path / "out"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(entry, "/etc/passwd")
    refused(DataError, lambda: unpack(path, out, 10_000), "link or device")
    zipped({"in/x": b"1"}, path)
    (tmp_path / "elsewhere").mkdir()
    (out / "in").symlink_to(tmp_path / "elsewhere")
    refused(DataError, lambda: unpack(path, out, 10_000), "in/x, which leads out of the folder")
    assert names(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("suffix", [".zip", ".tgz"])
def test_bombs_and_damaged_archives(suffix, tmp_path):
    big = zipped({"zeros": bytes(300_000)}, tmp_path / f"big{suffix}")
    assert big.stat().st_size < 1_000
    many = zipped({f"{i}": b"" for i in range(300)}, tmp_path / f"many{suffix}")
    for path in (big, many):
        out = tmp_path / path.stem
        words = "unpacks to more than 0.1 MB"
        refused(DataError, lambda path=path, out=out: unpack(path, out, 100_000), words)
    whole = zipped({"x": CONTENT, "y": CONTENT}, path).read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 255
    for number, content in enumerate((whole[: len(whole) // 2], bytes(flipped), b"<html>sorry")):
        path.write_bytes(content)
        out = tmp_path / f"out{number}"
        words = (path, "fetch it again")
        refused(DataError, lambda path=path, out=out: unpack(path, out, MEGABYTE), *words)


def test_strange_archives(tmp_path):
    path = zipped({"x": b"1"}, tmp_path / "a.tar")
    path.write_bytes(path.read_bytes() + bytes(2 * MEGABYTE))
    refused(DataError, lambda: unpack(path, tmp_path / "1", MEGABYTE), "goes on after its end")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("x", "1")
        file.writestr("./x", "2")
    words = ("two entries of the name", "x")
    refused(DataError, lambda: unpack(tmp_path / "a.zip", tmp_path / "2", MEGABYTE), *words)
    files = {"__MACOSX/a/._x.jpg": b"", ".DS_Store": b"", "a/._x.jpg": b"", "a/Thumbs.db": b""}
    unpack(zipped({**files, "a/x.jpg": b"1"}, tmp_path / "b.zip"), tmp_path / "3", 10_000)
    assert content_of(tmp_path / "3") == {"a/x.jpg": b"1"}


def packed(folder, archive, prefix):
    return zipped({f"{prefix}{k}": v for k, v in content_of(folder).items()}, archive)


def pack_grabcut(place):
    return [packed(write_grabcut(place / "x"), place / "GrabCut.zip", "GrabCut/")]


def pack_sbd(place):
    folder = write_sbd_folder(place / "x")
    (folder / "train_noval.txt").replace(place / "train_noval.txt")
    prefix = "benchmark_RELEASE/dataset/"
    return [packed(folder, place / "benchmark.tgz", prefix), place / "train_noval.txt"]


def pack_bsds500(place):
    folder = write_bsds500(place / "x")
    for split in ("train", "val", "test"):
        (folder / "groundTruth" / split).mkdir(parents=True)
        for image in (folder / "images" / split).iterdir():
            maps = sorted((folder / "labels" / split).glob(f"{image.stem}_a*.png"))
            cells = np.empty((1, len(maps)), dtype=object)
            for k, path in enumerate(maps):
                regions = np.asarray(Image.open(path)).astype(np.uint16)
                cells[0, k] = {"Segmentation": regions, "Boundaries": regions > 1}
            savemat(folder / "groundTruth" / split / f"{image.stem}.mat", {"groundTruth": cells})
    shutil.rmtree(folder / "labels")
    shutil.rmtree(folder / "splits")
    (folder / "images" / "train" / "Thumbs.db").write_bytes(b"junk")
    return [packed(folder, place / "BSR_bsds500.tgz", "BSR/BSDS500/data/")]


def pack_lvis(place):
    folder = write_lvis(place / "x")
    archives = []
    for split in ("train", "val"):
        file = folder / f"lvis_v1_{split}.json"
        archives.append(zipped({file.name: file.read_bytes()}, place / f"{file.name}.zip"))
        name = f"{split}2017"
        archives.append(packed(folder / name, place / f"{name}.zip", f"{name}/"))
    return archives


PACKED = {
    "GrabCut": (pack_grabcut, [3]),
    "SBD": (pack_sbd, [6, 6]),
    "BSDS500": (pack_bsds500, [12, 12, 12]),
    "LVIS": (pack_lvis, [5, 5]),
}


def without_sums(name):
    """A data set as drawn archives have it, whose checksums are not the published ones."""
    kind = PUBLISHED[name]
    archives = tuple(archive._replace(md5=None) for archive in kind.source.archives)
    return with_source(kind, archives=archives)


@pytest.mark.parametrize("name", PACKED)
def test_what_is_fetched_is_what_the_data_set_reads(name, site, tmp_path, monkeypatch):
    monkeypatch.setenv("PROBSEG_DATA", str(tmp_path / "data"))
    roomy = shutil.disk_usage(tmp_path)._replace(free=10**12)  # for the real archives' sizes
    monkeypatch.setattr(shutil, "disk_usage", lambda path: roomy)
    kind, (pack, lengths) = without_sums(name), PACKED[name]
    source = kind.source
    archives = pack(tmp_path)
    site.files = {f"/mirror/{path.name}": path.read_bytes() for path in archives}
    lines = []
    root = fetch(kind, address=f"{site.url}/mirror/", say=lines.append)
    assert root == source.folder()
    assert not source.missing(root)
    for split, length in zip(source.splits or (None,), lengths, strict=True):
        data = kind.complete(root, split)
        assert len(data) == length
        assert all((sample.mask == 1).any() for sample in data)
    assert all("not verified" in line for line in lines if "sha256" in line)
    for path in archives:
        record = (root.parent / f"{path.name}.sha256").read_text()
        assert record == f"{digest(path, 'sha256')}  {path.name}\n"
    asked = len(site.asked)
    fetch(kind, address=f"{site.url}/mirror/", say=lines.append)
    assert len(site.asked) == asked
    assert "already" in lines[-1]
    expected = {root.name, *(p.name for p in archives), *(f"{p.name}.sha256" for p in archives)}
    assert set(names(root.parent)) == expected


def test_fetched_bsds500_has_the_list_of_photographs_of_test_sets(tmp_path):
    archive = pack_bsds500(tmp_path)[0]
    root = fetch(BSDS500, tmp_path / "bsds", address=str(archive), say=accept)
    assert len(BSDS500("train", root)) == 12
    lines = (root / "splits" / "exclude_from_training.tsv").read_text().splitlines()
    rows = np.array([line.split("\t") for line in lines[1:]], dtype=int)
    assert [len(rows), *rows[:, 1:].sum(axis=0)] == [99, 20, 96]  # all, GrabCut, Berkeley
    assert 124084 in rows[:, 0]


@pytest.fixture
def grabcut(site, tmp_path):
    """A function that fetches GrabCut from the site, whose archive is in place."""
    site.files["/GrabCut.zip"] = pack_grabcut(tmp_path)[0].read_bytes()
    lines = []
    address = f"{site.url}/GrabCut.zip"
    run = partial(fetch, GrabCut, tmp_path / "data" / "gc", address=address)
    return partial(run, say=lines.append), tmp_path / "data", lines


def test_checksums(site, grabcut, tmp_path):
    run, place, lines = grabcut
    refused(ChecksumError, lambda: run(sha256="0" * 64), "GrabCut.zip: sha256 is", "expected 000")
    stated = GrabCut.source.archives[0]._replace(md5="0" * 32)
    kind = with_source(GrabCut, archives=(stated,))
    address = f"{site.url}/GrabCut.zip"
    refused(ChecksumError, lambda: fetch(kind, place / "gc", address=address), "md5 is", "000")
    assert names(place) == []
    run(sha256=digest(tmp_path / "GrabCut.zip", "sha256").upper())
    assert any("as expected" in line for line in lines)
    assert len(GrabCut(place / "gc")) == 3


def test_an_archive_that_was_replaced_since_the_last_download(site, grabcut):
    run, _, lines = grabcut
    run()
    assert "not verified" in lines[0]
    run(force=True)
    assert "as in an earlier download" in lines[-2]
    site.files["/GrabCut.zip"] += b"x"
    refused(ChecksumError, lambda: run(force=True), "GrabCut.zip.sha256 has", "earlier")


def test_files_of_another_content_are_not_overwritten(site, grabcut):
    run, place, _ = grabcut
    (place / "gc" / "data_GT").mkdir(parents=True)
    mine = place / "gc" / "data_GT" / "banana.jpg"
    mine.write_bytes(b"mine")
    (place / "gc" / "notes.txt").write_text("mine")
    refused(DataError, run, "1 files", "banana.jpg", "--force")
    assert content_of(place / "gc") == {"data_GT/banana.jpg": b"mine", "notes.txt": b"mine"}
    run(force=True)
    assert len(GrabCut(place / "gc")) == 3
    assert (place / "gc" / "notes.txt").read_text() == "mine"


def test_nothing_half_done_is_left(site, grabcut, tmp_path, monkeypatch):
    run, place, _ = grabcut
    usage = shutil.disk_usage(tmp_path)._replace(free=100_000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage)
        refused(DownloadError, run, "GrabCut.zip, unpacked, needs 61.0 MB", "--root")
    assert site.asked == []
    wrong = zipped({"a/b": b"1"}, tmp_path / "a.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "GrabCut.zip", "a") as file:
        file.writestr("../x", "evil")
    for content, words in (
        (wrong, "expected an archive with data_GT, boundary_GT, got one with"),
        ((tmp_path / "GrabCut.zip").read_bytes(), "leads out"),
    ):
        site.files["/GrabCut.zip"] = content
        refused(DataError, run, words)
        assert names(place) == ["GrabCut.zip", "GrabCut.zip.sha256"]
        for path in place.iterdir():
            path.unlink()
    (place / ".gc.unpacking" / "old").mkdir(parents=True)
    site.files["/GrabCut.zip"] = packed(tmp_path / "x", tmp_path / "fine.zip", "").read_bytes()
    run()
    assert "old" not in names(place / "gc")


def test_sets_behind_a_browser(tmp_path):
    image, labels = draw_scene(seed=1)
    save(image, tmp_path / "x" / "video" / "00009.jpg")
    save(labels * 255, tmp_path / "x" / "video" / "object1_00009.png")
    archive = packed(tmp_path / "x", tmp_path / "D.zip", "DAVIS585/")
    root = tmp_path / "data" / "D585"
    words = ("DAVIS585 cannot be fetched", "ClickSEG", "--source")
    refused(UsageError, lambda: fetch(DAVIS585, root), *words)
    assert fetch(DAVIS585, root, address=str(archive), say=accept) == root
    assert len(DAVIS585.complete(root)) == 1
    assert archive.is_file()


@each(
    ("name", "options", "told"),
    [
        ("SBD", {"sha256": "0" * 64}, "2 archives"),
        ("SBD", {"address": "http://127.0.0.1/benchmark.tgz"}, "with / at its end"),
        ("GrabCut", {"address": "nowhere.zip"}, "neither an http"),
        ("GrabCut", {"address": "ftp://127.0.0.1/GrabCut.zip"}, "neither an http"),
    ],
)
def test_arguments_that_do_not_fit(name, options, told, tmp_path):
    refused(UsageError, lambda: fetch(PUBLISHED[name], tmp_path / "data", **options), told)


def test_a_killed_download_goes_on(site, grabcut, tmp_path):
    """The process is killed in the middle of the file; the same command completes it."""
    with zipfile.ZipFile(tmp_path / "GrabCut.zip", "a") as file:
        file.writestr("GrabCut/padding", CONTENT)
    site.files["/GrabCut.zip"] = (tmp_path / "GrabCut.zip").read_bytes()
    site.pause = 0.05
    root = tmp_path / "data" / "gc"
    arguments = ["data", "fetch", "GrabCut", "--root", str(root)]
    arguments += ["--source", f"{site.url}/GrabCut.zip"]
    program = "import sys; from probseg.cli import main; sys.exit(main(sys.argv[1:]))"
    part = root.parent / "GrabCut.zip.part"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    deadline = time.monotonic() + 120
    while not (part.is_file() and part.stat().st_size >= 50_000):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = part.stat().st_size
    assert 0 < left < len(site.files["/GrabCut.zip"])
    assert not root.exists()
    site.pause = 0.0
    assert command(*arguments) == 0
    assert site.asked[-1][1] == f"bytes={left}-"
    assert len(GrabCut(root)) == 3
    assert (root / "padding").read_bytes() == CONTENT
