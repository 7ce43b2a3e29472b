"""Models of the Hugging Face hub, which is a web server on this machine.

huggingface_hub reads its settings when it is imported, so it all happens in one other process.
"""

import json
import os
import subprocess
import sys

import pytest

from probseg.zoo.index import CHECKSUMS, CONFIG, WEIGHTS
from support.hubs import COMMIT, hub_on_this_machine
from support.zoos import add_model

MINE = "hf-hub:someone/mine"
STEPS = {
    "trained": (MINE, True, ""),
    "untrained": (f"{MINE}@v1.0", False, ""),
    "nobody": ("hf-hub:nobody/nothing", True, ""),
    "slashes": ("hf-hub:a/b/c", True, ""),
    "text": ("hf-hub:someone/text", False, ""),
    "changed": ("hf-hub:someone/changed", True, ""),
    "unlisted": ("hf-hub:someone/unlisted", True, ""),
    "again": (MINE, True, "1"),
    "unlisted again": ("hf-hub:someone/unlisted", True, "1"),
    "missing": ("hf-hub:someone/unseen", True, "1"),
    "half": (MINE, True, ""),
    "mended": (MINE, True, ""),
}
"""What is created: name, whether with weights, and PROBSEG_OFFLINE."""

PROGRAM = """
import json, os, sys
from pathlib import Path
import probseg
from probseg.errors import user_error
told = {}
for step, (name, pretrained, offline) in json.loads(sys.argv[1]).items():
    os.environ["PROBSEG_OFFLINE"] = offline
    if step == "half":
        (weights,) = Path(os.environ["HF_HOME"]).rglob("models--someone--mine/**/model.safetensors")
        os.truncate(weights, 99)
    elif step == "mended":
        Path(told["half"].partition("remove ")[2].partition(",")[0]).unlink()
    try:
        model = probseg.create_model(name, pretrained=pretrained)
        weights = sum(p.double().sum().item() for p in model.parameters())
        told[step] = [type(model).__name__, model.training, weights]
    except Exception as error:
        assert user_error(error) is error, repr(error)
        told[step] = str(error)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """What each step gave or said, what the hub was asked for, and the folder of its cache."""
    place = tmp_path_factory.mktemp("hub")
    add_model(place, "micro_csa.mine")
    files = {path.name: path.read_bytes() for path in (place / "micro_csa.mine").iterdir()}
    changed = {**files, WEIGHTS: files[WEIGHTS][:-1] + bytes([files[WEIGHTS][-1] ^ 1])}
    unlisted = {name: content for name, content in files.items() if name != CHECKSUMS}
    with hub_on_this_machine() as hub:
        hub.files = {
            "someone/mine": files,
            "someone/changed": changed,
            "someone/unlisted": unlisted,
            "someone/unseen": files,
            "someone/text": {CONFIG: b'{"model_type": "bert"}'},
        }
        place_and_hub = {"HF_ENDPOINT": hub.url, "HF_HOME": str(place / "home")}
        online = {"HF_HUB_OFFLINE": "", "HF_TOKEN": ""}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(STEPS)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **online, **place_and_hub},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout.splitlines()[-1]), hub.asked, place / "home"


def test_models_come_from_the_hub(outcome):
    told, asked, home = outcome
    assert told["trained"][:2] == ["Segmenter", False]
    assert told["untrained"][:2] == ["Segmenter", True]
    assert told["trained"][2] != told["untrained"][2], "the second was to have fresh weights"
    of_weights = [path for path in asked if path.endswith("safetensors") and "mine" in path]
    assert of_weights, "they were fetched"
    assert all(COMMIT in path for path in of_weights), "those of the description's commit"
    assert any(path.startswith("/someone/mine/resolve/v1.0/") for path in asked)
    assert list(home.rglob(WEIGHTS))


def test_offline_they_come_from_its_cache(outcome):
    told, asked, _ = outcome
    assert told["again"] == told["trained"]
    assert told["missing"].startswith("hf-hub:someone/unseen: config.json could not be fetched (")
    assert "PROBSEG_OFFLINE or HF_HUB_OFFLINE is set" in told["missing"]
    assert not any("unseen" in path for path in asked)


def test_half_a_file_in_the_cache_is_refused_and_fetched_again_once_it_is_removed(outcome):
    told = outcome[0]
    assert told["mended"] == told["trained"]


def test_wrong_names_other_models_and_changed_bytes_are_refused(outcome):
    told = outcome[0]
    for step, name in (("nobody", "nobody/nothing"), ("slashes", "a/b/c")):
        assert told[step].startswith(f"hf-hub:{name}: config.json could not be fetched (")
        assert "check the name" in told[step]
    assert "config.json: expected the description of a network" in told["text"]
    assert "got no class_path with init_args" in told["text"]
    assert "model.safetensors: sha256 must be" in told["changed"]
    for step in ("unlisted", "unlisted again"):
        assert told[step].startswith("hf-hub:someone/unlisted: SHA256SUMS could not be fetched (")
