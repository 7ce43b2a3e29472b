"""Two processes: the command line starts the second one, and a test counts each object once.

Trainings by two processes are tested in test_distributed_training.py.
"""

import json
import os
import subprocess
import sys

import pytest
from evaluation_runs import TEST, clicks, figures
from fakes import write_folder
from runs import command

pytestmark = pytest.mark.usefixtures("undrawn")

DDP = ("--trainer.strategy=ddp", "--trainer.devices=2")
PROTOCOLS = ("gabbur2021", "ritm")


def run_in_two_processes(place, repository, *arguments):
    """Run a command line with two processes; return what both of them say."""
    done = subprocess.run(
        [sys.executable, str(repository / "cli.py"), *arguments, *DDP],
        cwd=place,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GLOBAL_RANK: 1, MEMBER: 2/2" in done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def tested(tmp_path_factory, repository):
    """Folders of the same test by one process and by two.

    Seven objects make blocks of 3, 3 and 1: the sampler repeats the first for the second process.
    """
    place = tmp_path_factory.mktemp("ddp_test")
    write_folder(place / "data", images=7, size=(24, 32))
    blocks = ("--data.eval_batch_size=3", "--evaluation.max_clicks=3", "--evaluation.trials=2")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert command(*TEST, *blocks) == 0
    told = run_in_two_processes(place, repository, *TEST, *blocks)
    runs = place / "runs" / "grabcut"
    assert {path.name for path in runs.iterdir()} == {"version_0", "version_1"}
    assert "taken over" not in told
    return runs / "version_0" / "test", runs / "version_1" / "test"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_test_gives_the_same_with_two_processes(protocol, tested):
    alone, shared = (folder / protocol for folder in tested)
    expected = clicks(alone)
    assert len({row["iou"] for row in expected}) > 7, "the scores must say something"
    assert clicks(shared) == expected
    assert figures(shared) == figures(alone)
    assert figures(shared)["folder"]["n_objects"] == 7


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_of_the_second_process_is_left(protocol, tested):
    alone, shared = ({path.name for path in (folder / protocol).iterdir()} for folder in tested)
    assert shared == alone
    assert "results.json" in shared
    assert "evaluation.json" not in shared
    assert not any("rank" in name for name in shared)


def test_the_weights_were_the_same(tested):
    alone, shared = (
        json.loads((folder / "ritm" / "results.json").read_text())["metadata"] for folder in tested
    )
    assert alone["weights_sha256"] == shared["weights_sha256"]
    assert alone["data"] == shared["data"]
