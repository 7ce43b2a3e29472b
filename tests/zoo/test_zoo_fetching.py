"""Models from mirrors, which are a web server on this machine or a folder."""

import errno
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from sites import serving
from zoos import add_model, ship

import probseg.transfer.downloads as downloads
import probseg.zoo.fetching as fetching
from probseg.errors import ChecksumError, DownloadError, UnknownNameError, UsageError, ZooError
from probseg.models import SemanticSegmenter
from probseg.zoo import create_model, list_models
from probseg.zoo.index import CONFIG, INDEX, WEIGHTS, read_index
from probseg.zoo.places import fetch, find, verify

REMOTE, SEMANTIC = "micro_csa.remote", "micro_emanet.remote"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A zoo that can be a mirror."""
    root = tmp_path_factory.mktemp("elsewhere")
    for name in (REMOTE, SEMANTIC):
        add_model(root, name)
    return root


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A shipped zoo and an empty cache; no mirror yet. Returns the folder of the cache."""
    add_model(tmp_path / "shipped", "micro_conv.own")
    ship(monkeypatch, tmp_path / "shipped")
    monkeypatch.setenv("PROBSEG_CACHE", str(tmp_path / "cache"))
    for variable in ("PROBSEG_ZOO", "PROBSEG_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "cache" / "zoo"


@pytest.fixture
def site(elsewhere, here, monkeypatch):
    """A web server that is the mirror."""
    with serving() as site:
        publish(site, elsewhere)
        monkeypatch.setenv("PROBSEG_ZOO", f"{site.url}/zoo/")
        yield site


def publish(site, root):
    for path in root.rglob("*"):
        if path.is_file():
            site.files[f"/zoo/{path.relative_to(root).as_posix()}"] = path.read_bytes()


def asked(site):
    return [path.removeprefix("/zoo/") for path, _ in site.asked]


def held(cache):
    """What the cache has beside locks."""
    return sorted(p.name for p in cache.iterdir() if not p.name.endswith(".lock"))


def test_a_model_is_fetched_once_and_then_needs_no_mirror(site, here, monkeypatch, capsys):
    model = create_model("micro_csa", pretrained=True)
    assert not model.training
    assert asked(site) == [INDEX, f"{REMOTE}/{WEIGHTS}", f"{REMOTE}/{CONFIG}"]
    assert held(here) == [INDEX, REMOTE]
    told = capsys.readouterr().err
    assert f"fetching {REMOTE} (" in told
    assert f"from {site.url}/zoo into {here}" in told
    monkeypatch.setenv("PROBSEG_OFFLINE", "1")
    for _ in range(2):
        again = create_model(REMOTE, pretrained=True)
        assert str(again.state_dict()) == str(model.state_dict())
        monkeypatch.delenv("PROBSEG_ZOO", raising=False)
    assert len(site.asked) == 3
    assert capsys.readouterr().err == ""


def test_what_is_shipped_asks_no_mirror(site):
    create_model("micro_conv", pretrained=True)
    verify("micro_conv.own")
    assert find("micro_conv").kind == "shipped"
    assert fetch("micro_conv").name == "micro_conv.own"
    assert site.asked == []


def test_semantic_models_are_fetched_as_well(site):
    assert isinstance(create_model(SEMANTIC, pretrained=True), SemanticSegmenter)


def test_a_name_with_a_tag_says_what_the_network_is_without_its_weights(site):
    assert create_model(SEMANTIC).num_classes == 3
    assert asked(site) == [INDEX]
    with pytest.raises(UnknownNameError, match=r"micro_emanet\.nothing"):
        create_model("micro_emanet.nothing")


def test_a_folder_is_a_mirror_even_offline(elsewhere, here, monkeypatch):
    monkeypatch.setenv("PROBSEG_ZOO", str(elsewhere))
    monkeypatch.setenv("PROBSEG_OFFLINE", "1")
    assert verify(REMOTE) == here / REMOTE
    assert (here / REMOTE / WEIGHTS).read_bytes() == (elsewhere / REMOTE / WEIGHTS).read_bytes()


def test_a_cache_can_be_a_mirror(site, here, tmp_path, monkeypatch):
    fetch(REMOTE)
    here.rename(tmp_path / "stick")
    monkeypatch.setenv("PROBSEG_ZOO", str(tmp_path / "stick"))
    assert fetch(REMOTE) == here / REMOTE


def test_several_mirrors_are_asked_in_order(site, here, tmp_path, monkeypatch):
    add_model(tmp_path / "first", "micro_fast.one")
    monkeypatch.setenv("PROBSEG_ZOO", f" {tmp_path}/first , {site.url}/zoo")
    fetch("micro_fast")
    assert site.asked == []
    fetch(SEMANTIC)
    assert held(here) == [INDEX, SEMANTIC, "micro_fast.one"]
    expected = ["micro_conv.own", "micro_csa.remote", "micro_emanet.remote", "micro_fast.one"]
    assert list_models(pretrained=True) == expected
    assert list_models(pretrained=True, task="semantic") == ["micro_emanet.remote"]


@pytest.mark.parametrize("value", ["ftp://host/zoo", "no/such/folder", "file:///tmp"])
def test_mirrors_of_other_kinds_are_refused(here, monkeypatch, value):
    monkeypatch.setenv("PROBSEG_ZOO", value)
    with pytest.raises(UsageError, match=r"PROBSEG_ZOO: .* neither an http\(s\) address nor a fol"):
        find(REMOTE)


@pytest.mark.parametrize("variable", ["PROBSEG_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_nothing_is_fetched_and_it_says_how_to(site, here, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    told = rf"{REMOTE} is neither shipped nor in the cache .*{variable}.*zoo fetch {REMOTE}`"
    with pytest.raises(DownloadError, match=told):
        create_model(REMOTE, pretrained=True)
    with pytest.raises(DownloadError, match="not fetched, because PROBSEG_OFFLINE"):
        fetch(REMOTE)
    with pytest.warns(UserWarning, match="not fetched, because"):
        assert list_models(pretrained=True) == ["micro_conv.own"]
    assert site.asked == []
    assert not here.exists()


def test_unknown_names_list_those_of_the_mirror_too(site):
    with pytest.raises(UnknownNameError, match=r"micro_csa\.remot'.*micro_csa\.remote"):
        find("micro_csa.remot")


def test_no_network_is_told_in_words(here, monkeypatch):
    monkeypatch.setenv("PROBSEG_ZOO", "http://127.0.0.1:9/zoo")  # nobody listens there
    told = r"could not be looked for on every mirror: http://127\.0\.0\.1:9/zoo/index\.json: no con"
    with pytest.raises(DownloadError, match=told):
        find(REMOTE)
    with pytest.raises(DownloadError, match="check the connection, or set PROBSEG_ZOO"):
        fetch(REMOTE)


def test_a_mirror_that_is_away_hides_no_other(elsewhere, here, monkeypatch):
    monkeypatch.setenv("PROBSEG_ZOO", f"http://127.0.0.1:9/zoo,{elsewhere}")
    assert find(REMOTE).zoo == str(elsewhere)


@pytest.mark.parametrize("code", [403, 404, 500])
def test_errors_of_the_server_are_told_with_the_address(site, here, code):
    site.failures = [code]
    with pytest.raises(DownloadError, match=rf"{site.url}/zoo/index\.json: HTTP {code} "):
        find(REMOTE)
    del site.files[f"/zoo/{REMOTE}/{CONFIG}"]
    with pytest.raises(DownloadError, match=rf"{REMOTE}/config\.json: HTTP 404 .*whole zoo"):
        verify(REMOTE)
    assert held(here) == []


def test_folders_that_are_no_whole_zoo_are_told(here, tmp_path, monkeypatch):
    (tmp_path / "half").mkdir()
    monkeypatch.setenv("PROBSEG_ZOO", str(tmp_path / "half"))
    with pytest.raises(DownloadError, match=r"half/index\.json: No such file .*whole zoo"):
        find(REMOTE)


def test_damaged_indices_are_told_with_the_address(site, here):
    site.files["/zoo/index.json"] = b"<html>welcome</html>"
    with pytest.raises(ZooError, match=rf"{site.url}/zoo/index\.json: is not JSON"):
        find(REMOTE)
    fetched = here / INDEX
    fetched.parent.mkdir(parents=True)
    fetched.write_text("{}")
    with pytest.raises(ZooError, match=rf"{fetched}: schema .*the folder {here} may also be del"):
        find(REMOTE)


def longer(content):
    return content + bytes(100_000)


def flipped(content):
    return content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]


@pytest.mark.parametrize("file", [WEIGHTS, CONFIG])
@pytest.mark.parametrize("change", [longer, flipped])
def test_other_files_than_the_index_lists_are_not_kept(site, here, file, change):
    path = f"/zoo/{REMOTE}/{file}"
    right, site.files[path] = site.files[path], change(site.files[path])
    with pytest.raises(ChecksumError, match=rf"{site.url}{path}: is not the file that .*index"):
        create_model(REMOTE, pretrained=True)
    assert held(here) == []
    site.files[path] = right
    assert fetch(REMOTE) == here / REMOTE


@pytest.mark.parametrize("sized", [True, False])
def test_a_connection_that_breaks_leaves_nothing(site, here, sized, monkeypatch):
    monkeypatch.setattr(downloads, "ATTEMPTS", 0)
    site.sized = sized
    assert find(REMOTE).kind == "mirror"
    site.cuts = [1 << 30, 5000]
    with pytest.raises((DownloadError, ChecksumError), match=r"model\.safetensors: "):
        verify(REMOTE)
    assert held(here) == []
    assert fetch(REMOTE) == here / REMOTE


def test_a_download_resumes_after_a_broken_connection(site, here):
    site.cuts = [1 << 30, 5000]
    assert fetch(REMOTE) == here / REMOTE
    wanted = [span for path, span in site.asked if path.endswith(WEIGHTS)]
    assert wanted == [None, "bytes=5000-"]


def test_a_full_disk_is_told_and_leaves_nothing(site, here, monkeypatch):
    full = type("Full", (), {"free": 10})
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: full)
        with pytest.raises(DownloadError, match=r"needs 0\.\d MB, but only 0\.0 MB are free"):
            fetch(REMOTE)

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetching, "download", refuse)
    told = rf"{here}: {REMOTE} cannot be stored \(.*No space left.*set PROBSEG_CACHE"
    with pytest.raises(DownloadError, match=told):
        fetch(REMOTE)
    assert held(here) == []


def test_a_cache_that_cannot_be_made_is_told(site, here, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PROBSEG_CACHE", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match=r"cannot be stored .*set PROBSEG_CACHE to a folder"):
        fetch(REMOTE)


def test_without_a_home_there_is_no_cache(site, monkeypatch):
    def homeless():
        msg = "Could not determine home directory."
        raise RuntimeError(msg)

    monkeypatch.delenv("PROBSEG_CACHE")
    monkeypatch.setattr(Path, "home", homeless)
    assert find("micro_conv").kind == "shipped"
    with pytest.raises(DownloadError, match="no place for fetched models; set PROBSEG_CACHE"):
        verify(REMOTE)


def test_damage_in_the_cache_is_noticed_and_mended_by_fetching(site, here, capsys):
    path = fetch(REMOTE) / CONFIG
    path.write_text(path.read_text().replace("Segmenter", "Tegmenter"))
    told = rf"{path}: has .* was replaced: fetch it again with `probseg zoo fetch {REMOTE}`"
    with pytest.raises(ChecksumError, match=told):
        create_model(REMOTE, pretrained=True)
    assert fetch(REMOTE) == here / REMOTE
    assert "it is fetched again" in capsys.readouterr().err
    create_model(REMOTE, pretrained=True)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"this file of .* is missing; fetch it again"):
        create_model(REMOTE, pretrained=True)
    shutil.rmtree(here / REMOTE)  # by hand
    assert verify(REMOTE) == here / REMOTE


def test_another_version_replaces_the_old_one_when_it_is_fetched(site, here, tmp_path):
    fetch(REMOTE)
    before = read_index(here)[REMOTE]
    torch.manual_seed(20)  # other weights, whatever ran before
    newer = add_model(tmp_path / "newer", REMOTE, description="Better.")
    assert newer.files != before.files
    publish(site, tmp_path / "newer")
    verify(REMOTE)
    assert read_index(here)[REMOTE] == before
    fetch(REMOTE)
    assert read_index(here)[REMOTE] == newer
    verify(REMOTE)
    assert held(here) == [INDEX, REMOTE]


def test_what_a_killed_process_left_is_no_model(site, here):
    left = here / f".{REMOTE}.part"
    left.mkdir(parents=True)
    (left / WEIGHTS).write_bytes(b"half of")
    (here / SEMANTIC).mkdir()  # in place, but not yet listed
    assert find(SEMANTIC).kind == "mirror"
    for name in (REMOTE, SEMANTIC):
        fetch(name)
    assert held(here) == [INDEX, REMOTE, SEMANTIC]


def process(root, *names):
    """Start a process that fetches models from a slow mirror."""
    program = f"""
import sys
import probseg.zoo.places as places
from pathlib import Path
places.zoo_dir = lambda: Path({str(root)!r})
print("ready", flush=True)
sys.stdin.readline()
for name in {names!r}:
    print(places.verify(name), flush=True)
"""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def ready(*processes):
    for one in processes:
        assert one.stdout.readline() == "ready\n"
    for one in processes:
        one.stdin.write("go\n")
        one.stdin.flush()


def wait_until(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def test_two_processes_fetch_a_model_once(site, here, tmp_path):
    site.pause = 0.03  # some 20 blocks: long enough for both to want it
    both = [process(tmp_path / "shipped", REMOTE) for _ in range(2)]
    ready(*both)
    told = [one.communicate(timeout=600) for one in both]
    assert [one.returncode for one in both] == [0, 0], told
    assert {out for out, _ in told} == {f"{here / REMOTE}\n"}
    assert asked(site).count(f"{REMOTE}/{WEIGHTS}") == 1
    assert asked(site).count(f"{REMOTE}/{CONFIG}") == 1
    assert sum("fetching" in err for _, err in told) >= 1
    assert held(here) == [INDEX, REMOTE]


def test_a_killed_process_leaves_no_model_and_no_lock(site, here, tmp_path):
    site.pause = 0.05
    one = process(tmp_path / "shipped", REMOTE)
    ready(one)
    part = here / f".{REMOTE}.part" / f"{WEIGHTS}.part"
    wait_until(lambda: (part.is_file() and part.stat().st_size > 0) or one.poll() is not None)
    one.kill()
    one.communicate()
    assert part.is_file()
    assert not (here / REMOTE).exists()
    site.pause = 0.0
    assert find(REMOTE).kind == "mirror"
    assert verify(REMOTE) == here / REMOTE
    assert held(here) == [INDEX, REMOTE]
    assert json.loads((here / INDEX).read_text())["schema"] == 2
