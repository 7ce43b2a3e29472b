"""Models pushed to a hub on this machine, and loaded from there.

huggingface_hub reads its settings when it is imported, so each hub has a process of its own.
"""

import json
import os
import subprocess
import sys

import pytest

from probseg.zoo.index import CARD
from support.hubs import hub_on_this_machine
from support.zoos import add_model

PROGRAM = """
import contextlib, io, json, os, sys
from probseg.cli import main
told = []
for arguments, variables in json.loads(sys.argv[1]):
    os.environ.update(variables)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        with contextlib.redirect_stderr(io.StringIO()) as err:
            status = main(["zoo", "push", *arguments])
    told.append([status, out.getvalue(), err.getvalue()])
if len(sys.argv) > 2:
    import torch
    import probseg
    loaded = probseg.create_model("hf-hub:someone/mine", pretrained=True).state_dict()
    own = probseg.create_model(sys.argv[2], pretrained=True).state_dict()
    assert loaded.keys() == own.keys()
    assert all(torch.equal(loaded[name], own[name]) for name in own)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    root = tmp_path_factory.mktemp("zoo")
    add_model(root, "micro_csa.mine")
    card = 'Use: from_pretrained("micro_csa.mine"), or probseg zoo verify micro_csa.mine\n'
    (root / "micro_csa.mine" / CARD).write_text(card)
    return root


@pytest.fixture
def push(zoo, tmp_path):
    """Run `probseg zoo push` several times, and load what was pushed if that is asked for."""

    def run(hub, *pushes, load=None):
        home = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub"), "HF_TOKEN": hub.token}
        # Files in blocks go to servers of their own, which there are none of here.
        quiet = {"HF_HUB_OFFLINE": "", "PROBSEG_OFFLINE": "", "HF_HUB_DISABLE_XET": "1"}
        wanted = [
            [[*arguments, *(() if "--zoo" in arguments else ("--zoo", str(zoo)))], variables]
            for arguments, variables in pushes
        ]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(wanted), *([load] if load else [])],
            env={**os.environ, **home, **quiet, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


MINE = ("micro_csa.mine", "someone/mine")


def test_a_model_is_pushed_in_one_commit_and_loads_from_there(zoo, push):
    folder = zoo / "micro_csa.mine"
    with hub_on_this_machine() as hub:
        once, again = push(hub, ((*MINE, "--private"), {}), (MINE, {}), load=str(folder))
        assert once[0] == again[0] == 0, (once, again)
        assert f"pushed micro_csa.mine: {hub.url}/someone/mine/commit/" in once[1]
        assert hub.private == {"someone/mine": True}, "which the second push does not change"
        names = sorted(path.name for path in folder.iterdir())
        assert hub.commits == [("Publish micro_csa.mine", names)] * 2
        there = hub.files["someone/mine"]
        for name in set(names) - {CARD}:
            assert there[name] == (folder / name).read_bytes(), name
        card = there[CARD].decode()
        assert 'from_pretrained("hf-hub:someone/mine")' in card
        assert "zoo verify micro_csa.mine" in card, "which is what a zoo calls it"


def test_refusals_are_told_in_words(push, tmp_path):
    add_model(tmp_path / "damaged", "micro_csa.mine")
    weights = tmp_path / "damaged" / "micro_csa.mine" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with hub_on_this_machine() as hub:
        told = push(
            hub,
            (("micro_csa.mine", "a/b/c"), {}),
            ((*MINE, "--zoo", str(tmp_path / "damaged")), {}),
            (MINE, {"HF_TOKEN": "hf_wrong"}),
            (MINE, {"HF_HUB_OFFLINE": "1"}),
            (MINE, {"HF_HUB_OFFLINE": "", "PROBSEG_OFFLINE": "1"}),
        )
        assert hub.files == {}
    for (status, _, err), expected in zip(
        told,
        (
            "could not be pushed to a/b/c (",
            "model.safetensors: sha256 must be",
            "micro_csa.mine could not be pushed to someone/mine (",
            "PROBSEG_OFFLINE or HF_HUB_OFFLINE is set",
            "PROBSEG_OFFLINE or HF_HUB_OFFLINE is set",
        ),
        strict=True,
    ):
        assert status == 2
        assert expected in err
