"""Tests by clicks that are killed and go on, and those of two processes."""

import json
import signal
import time

import pytest

import probseg.callbacks.evaluation as evaluation
from support.fakes import write_folder
from support.runs import TEST, clicks, command, figures, separately, started

OBJECTS, BLOCK, CLICKS = 40, 2, 8
COMMAND = (
    *TEST,
    "--evaluation.protocols=[ritm]",
    "--evaluation.pictures=0",
    f"--evaluation.max_clicks={CLICKS}",
    f"--data.eval_batch_size={BLOCK}",
)
RUN_LINES = CLICKS + 1
PICTURED = 8 * BLOCK
"""Most objects done again for the sheet of the best and the worst, with what shares their block."""
PATIENCE = 120


def rows(folder):
    """Whole lines of the table."""
    written = [*folder.glob("objects.rank0.*.csv"), folder / "objects.csv"][0]
    lines = written.read_text().splitlines(True)[1:] if written.exists() else []
    return [line for line in lines if line.endswith("\n")]


def killed(place, folder, runs):
    """Run the command until its table has so many whole runs, then kill it; return their keys."""
    process = started(place, COMMAND)
    end = time.monotonic() + PATIENCE
    while len(rows(folder)) < runs * RUN_LINES:
        assert process.is_alive(), (place / "output.txt").read_text()
        assert time.monotonic() < end, f"{runs} runs were not done within {PATIENCE} s"
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL, "it came to its end before it was killed"
    assert not (folder / "results.json").exists()
    names = [line.split(",")[1] for line in rows(folder)]
    return {name for name in names if names.count(name) == RUN_LINES}


@pytest.mark.usefixtures("undrawn")
def test_a_test_that_was_killed_twice_is_that_of_an_undisturbed_one(tmp_path, monkeypatch, capsys):
    write_folder(tmp_path / "data", images=OBJECTS, size=(24, 32))
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs" / "grabcut"
    whole, one, two, last = (runs / f"version_{n}" / "test" / "ritm" for n in range(4))
    assert command(*COMMAND) == 0
    first = killed(tmp_path, one, OBJECTS // 4)
    second = killed(tmp_path, two, len(first) + OBJECTS // 4)
    assert OBJECTS // 4 <= len(first) < len(second) < OBJECTS
    assert first < second, "the second test wrote down what it took over"

    asked = []
    original = evaluation.run_objects

    def recording(model, samples, *rest, **options):
        asked.extend(sample.name for sample in samples)
        return original(model, samples, *rest, **options)

    monkeypatch.setattr(evaluation, "run_objects", recording)
    assert command(*COMMAND) == 0
    taken = f"{len(second)} runs taken over from runs/grabcut/version_2/test/ritm"
    assert taken in capsys.readouterr().err
    again = second & set(asked)
    assert len(again) <= PICTURED < len(second)
    assert len(asked) == OBJECTS - len(second - again)
    same = [line.split(",")[1] for line in set(rows(two)) & set(rows(last))]
    assert all(same.count(name) == RUN_LINES for name in second - again), "with its times"

    assert len(clicks(whole)) == OBJECTS * RUN_LINES
    assert len({row["iou"] for row in clicks(whole)}) > 10, "the scores must differ"
    assert clicks(last) == clicks(whole)
    assert figures(last) == figures(whole)
    assert {path.name for path in last.iterdir()} == {path.name for path in whole.iterdir()}
    assert not list(runs.rglob("evaluation.json")), "nothing is left to go on from"


pytestmark = [pytest.mark.usefixtures("undrawn"), pytest.mark.process]


def test_a_test_gives_the_same_with_two_processes(tmp_path, monkeypatch):
    """Seven objects make blocks of 3, 3 and 1: the second process repeats the first of them."""
    write_folder(tmp_path / "data", images=7, size=(24, 32))
    blocks = ("--data.eval_batch_size=3", "--evaluation.max_clicks=3", "--evaluation.trials=2")
    monkeypatch.chdir(tmp_path)
    assert command(*TEST, *blocks) == 0
    ddp = ("--trainer.strategy=ddp", "--trainer.devices=2")
    output = separately(tmp_path, *TEST, *blocks, *ddp)
    assert "GLOBAL_RANK: 1, MEMBER: 2/2" in output
    assert "taken over" not in output
    runs = tmp_path / "runs" / "grabcut"
    for protocol in ("gabbur2021", "ritm"):
        alone, shared = (runs / f"version_{n}" / "test" / protocol for n in range(2))
        assert len({row["iou"] for row in clicks(alone)}) > 7, "the scores must differ"
        assert clicks(shared) == clicks(alone)
        assert figures(shared) == figures(alone)
        assert figures(shared)["folder"]["n_objects"] == 7
        names = {path.name for path in shared.iterdir()}
        assert names == {path.name for path in alone.iterdir()}
        assert not any("rank" in name or name == "evaluation.json" for name in names)
        ours, theirs = (
            json.loads((place / "results.json").read_text())["metadata"]
            for place in (shared, alone)
        )
        assert ours["weights_sha256"] == theirs["weights_sha256"]
