import random
import shutil
import sys
import time
from pathlib import Path

import pytest

from probseg.data.fetch import download
from probseg.errors import ChecksumError, DownloadError
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


def get(site, folder, **options):
    download(f"{site.url}/a.bin", folder / "a.bin", accept, wait=0.0, **options)
    return (folder / "a.bin").read_bytes()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


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
    ],
)
def test_another_file_is_fetched_as_a_whole(site, tmp_path, heeds_if_range, length, name):
    """One that changed at its address, or one of another address."""
    site.cuts = [100_000] + [0] * 5
    with pytest.raises(DownloadError):
        get(site, tmp_path)
    site.files[f"/{name}"] = random.Random(1).randbytes(length)
    site.tag, site.heeds_if_range = '"2"' if name == "a.bin" else '"1"', heeds_if_range
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
    with pytest.raises(DownloadError, match=r"HTTP 503 .*given up after 5 more attempts"):
        download(f"{site.url}/a.bin", tmp_path / "b.bin", accept)


def test_nobody_answers(tmp_path):
    with serving() as site:
        pass
    with pytest.raises(DownloadError, match="no connection"):
        get(site, tmp_path)


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


def test_full_disks_are_noticed_before_the_download(site, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=100_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DownloadError, match=r"needs 0\.3 MB.*another disk"):
        get(site, tmp_path)
    assert len(site.asked) == 1


def test_a_wrong_file_is_not_kept(site, tmp_path):
    def refuse(path):
        raise ChecksumError(path.name)

    with pytest.raises(ChecksumError, match=r"a\.bin\.part"):
        download(f"{site.url}/a.bin", tmp_path / "a.bin", refuse)
    assert names(tmp_path) == []
