"""Two processes: the command line starts the second one, and the evaluation counts objects once."""

import json
import os
import subprocess
import sys

import pytest
import torch
from fakes import write_folder
from runs import folder_fit


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory, repository):
    place = tmp_path_factory.mktemp("ddp")
    root = write_folder(place / "data", images=9, size=(24, 32))
    # An odd number of objects: the sampler repeats one to keep both processes busy.
    fit = folder_fit(
        root, "--trainer.max_epochs=1", "--data.val_objects=3", "--data.val_fraction=0.4"
    )
    ddp = ("--trainer.strategy=ddp", "--trainer.devices=2")
    done = subprocess.run(
        [sys.executable, str(repository / "cli.py"), *fit, *ddp],
        cwd=place,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "runs" / "probseg" / "version_0", done.stdout + done.stderr


def test_both_processes_train(two_processes):
    run, told = two_processes
    assert "GLOBAL_RANK: 1, MEMBER: 2/2" in told
    stored = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    assert stored["epoch"] == 0
    assert stored["global_step"] >= 1


def test_each_object_counts_once(two_processes):
    run, _ = two_processes
    results = json.loads((run / "val" / "results.json").read_text())
    assert results["datasets"]["folder"]["n_objects"] == 3
