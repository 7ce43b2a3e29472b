"""Unpacking archives that may be damaged or malicious, and fetching data sets."""

import io
import random
import shutil
import stat
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

from probseg.data import DAVIS585, GrabCut
from probseg.data.archives import unpack
from probseg.data.fetch import download, fetch
from probseg.data.published import MEGABYTE, PUBLISHED
from probseg.errors import ChecksumError, DataError, DownloadError, UsageError
from probseg.paths import digest
from support.fakes import draw_scene, save, with_source, write_bsds500, write_grabcut
from support.fakes import write_sbd as write_sbd_folder
from support.refusals import refused
from support.rows import each
from support.sites import serving

CONTENT = random.Random(0).randbytes(300_000)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def site():
    with serving() as site:
        site.files["/a.bin"] = CONTENT
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
        return path
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as file:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            if isinstance(content, tuple):  # a link or device
                entry.type, entry.linkname = content
            else:
                entry.size = len(content)
            file.addfile(entry, None if isinstance(content, tuple) else io.BytesIO(content))
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
    files, out = {"a/real": b"real", "a/link": (kind, target)}, tmp_path / "out"
    archive = zipped(files, tmp_path / "a.tar")
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
    refused(DataError, lambda: unpack(path, tmp_path / "1", MEGABYTE), "continues after its end")
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


PACKED = {
    "GrabCut": (pack_grabcut, [3]),
    "SBD": (pack_sbd, [6, 6]),
    "BSDS500": (pack_bsds500, [12, 12, 12]),
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
    source, archives, lines = kind.source, pack(tmp_path), []
    site.files = {f"/mirror/{path.name}": path.read_bytes() for path in archives}
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
    if name == "BSDS500":
        text = (root / "splits" / "exclude_from_training.tsv").read_text()
        rows = np.array([line.split("\t") for line in text.splitlines()[1:]], dtype=int)
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
    refused(ChecksumError, lambda: run(force=True), "GrabCut.zip.sha256 has the sum", "earlier")


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


def get(site, folder, **options):
    download(f"{site.url}/a.bin", folder / "a.bin", accept, wait=0.0, **options)
    return (folder / "a.bin").read_bytes()


def test_a_download(site, tmp_path):
    seen = []
    content = get(site, tmp_path / "new", progress=lambda *step: seen.append(step))
    assert content == CONTENT
    assert names(tmp_path / "new") == ["a.bin"]
    assert {what for what, _, _ in seen} == {"a.bin"}
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})
    assert seen[-1] == ("a.bin", len(CONTENT), len(CONTENT))


def test_broken_connections_are_mended_by_asking_for_the_rest(site, tmp_path):
    site.cuts = [100_000, 50_000]
    assert get(site, tmp_path) == CONTENT
    assert [wanted for _, wanted in site.asked] == [None, "bytes=100000-", "bytes=150000-"]


def test_another_call_goes_on_from_what_the_first_one_left(site, tmp_path):
    site.cuts = [70_000] + [0] * 5
    with pytest.raises(DownloadError, match=r"a\.bin: .*70000 of 300000 bytes.*another address"):
        get(site, tmp_path)
    assert names(tmp_path) == ["a.bin.part", "a.bin.part.json"]
    assert get(site, tmp_path) == CONTENT
    assert site.asked[-1] == ("/a.bin", "bytes=70000-")
    assert names(tmp_path) == ["a.bin"]
    with serving() as silent:
        pass
    silent.files["/a.bin"] = CONTENT
    with pytest.raises(DownloadError, match="no connection"):
        get(silent, tmp_path)


def test_a_complete_part_is_not_asked_for_again(site, tmp_path):
    def stop(path):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(f"{site.url}/a.bin", tmp_path / "a.bin", stop)
    (tmp_path / "a.bin.part.json").write_text(
        f'{{"url": "{site.url}/a.bin", "validator": "\\"1\\"", "size": {len(CONTENT)}}}'
    )
    assert get(site, tmp_path) == CONTENT
    assert len(site.asked) == 1


@pytest.mark.parametrize("behaviour", ["no ranges", "no mark", "no length"])
def test_servers_that_know_less(site, tmp_path, behaviour):
    site.ranges = behaviour != "no ranges"
    site.sized = behaviour != "no length"
    site.tag = None if behaviour == "no mark" else '"1"'
    site.cuts = [] if behaviour == "no length" else [100_000]
    assert get(site, tmp_path) == CONTENT
    expected = {"no ranges": 2, "no mark": 2, "no length": 1}[behaviour]
    assert len(site.asked) == expected


@pytest.mark.parametrize(
    ("heeds_if_range", "length", "name"),  # every pair of two values
    [
        (True, 200_000, "a.bin"),
        (False, 200_000, "b.bin"),
        (False, 300_000, "a.bin"),
        (True, 300_000, "b.bin"),
        (True, 50_000, "b.bin"),
        (False, 50_000, "a.bin"),
        (None, 200_000, "a.bin"),  # without a mark of the version, the length says so
    ],
)
def test_another_file_is_fetched_as_a_whole(site, tmp_path, heeds_if_range, length, name):
    """One that changed at its address, or one of another address."""
    site.tag = None if heeds_if_range is None else '"1"'
    site.cuts = [100_000] + [0] * 5
    with pytest.raises(DownloadError):
        get(site, tmp_path)
    site.files[f"/{name}"] = random.Random(1).randbytes(length)
    site.heeds_if_range = heeds_if_range
    if site.tag and name == "a.bin":
        site.tag = '"2"'
    download(f"{site.url}/{name}", tmp_path / "a.bin", accept, wait=0.0)
    assert (tmp_path / "a.bin").read_bytes() == site.files[f"/{name}"]


def test_a_missing_file_is_asked_for_once(site, tmp_path):
    with pytest.raises(DownloadError, match=rf"^{site.url}/b\.bin: HTTP 404 .*another address"):
        download(f"{site.url}/b.bin", tmp_path / "b.bin", accept)
    assert len(site.asked) == 1
    assert names(tmp_path) == []


def test_a_busy_server_is_asked_again(site, tmp_path, monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", lambda s: s >= 1 and slept.append(s))
    site.failures = [503, 429, 500]
    download(f"{site.url}/a.bin", tmp_path / "a.bin", accept)
    assert slept == [1, 2, 4]
    site.failures = [503] * 9
    with pytest.raises(DownloadError, match=r"HTTP 503 .*gave up after 5 more attempts"):
        download(f"{site.url}/a.bin", tmp_path / "b.bin", accept)


@pytest.mark.skipif(sys.platform == "win32", reason="no locks of this kind")
def test_two_processes_do_not_write_to_one_part(site, tmp_path):
    import fcntl

    with (tmp_path / "a.bin.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DownloadError, match="another process"):
            get(site, tmp_path)
    assert get(site, tmp_path) == CONTENT


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_disks_that_fill_up_meanwhile(site, tmp_path):
    (tmp_path / "a.bin.part").symlink_to("/dev/full")
    with pytest.raises(DownloadError, match=r"a\.bin\.part: cannot be written .*another disk"):
        get(site, tmp_path)
