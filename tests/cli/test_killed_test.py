"""A test that is killed goes on where it was, with the same command."""

import io
import multiprocessing
import os
import signal
import sys
import time
from contextlib import redirect_stdout
from typing import NamedTuple

import pytest
from evaluation_runs import TEST, clicks, figures
from fakes import write_folder
from runs import command

import probseg.callbacks.evaluation as evaluation

OBJECTS, BLOCK, CLICKS = 40, 2, 10
COMMAND = (
    *TEST,
    "--evaluation.protocols=[ritm]",
    "--evaluation.pictures=0",
    f"--evaluation.max_clicks={CLICKS}",
    f"--data.eval_batch_size={BLOCK}",
)
ONE_BLOCK = "--trainer.limit_test_batches=1"
RUN_LINES = CLICKS + 1
PICTURED = 8 * BLOCK
"""Most objects done again for the sheet of the best and the worst, with what shares their block."""
PATIENCE = 120


class Told(NamedTuple):
    """What a command says, and the names of the objects that it clicks through."""

    text: str
    evaluated: list[str]


class Killings(NamedTuple):
    """A test killed twice, in the order of the folders: keys of whole runs, or what was told."""

    first: set[str]
    other_seed: Told
    second: set[str]
    finished: Told
    again: Told


def folder_of(place, number):
    return place / "runs" / "grabcut" / f"version_{number}" / "test" / "ritm"


def run(*more):
    """Run the command in this process."""
    names = []
    original = evaluation.run_objects

    def recording(model, samples, *given, **options):
        names.extend(sample.name for sample in samples)
        return original(model, samples, *given, **options)

    text = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(text):
        patch.setattr(evaluation, "run_objects", recording)
        assert command(*COMMAND, *more) == 0
    return Told(text.getvalue(), names)


def child(log):
    """Run the command in a process that is about to be killed."""
    with log.open("w") as sys.stdout:
        sys.stderr = sys.stdout
        os._exit(command(*COMMAND))


def killed(place, number, runs):
    """Run the command until its table has so many whole runs, then kill it; return their keys."""
    log = place / "told.txt"
    # A fork has loaded everything already, and its commit is the one that was looked up before.
    process = multiprocessing.get_context("fork").Process(target=child, args=(log,))
    process.start()
    table = folder_of(place, number) / "objects.csv"
    end = time.monotonic() + PATIENCE
    try:
        while not table.exists() or table.read_bytes().count(b"\n") <= runs * RUN_LINES:
            assert process.is_alive(), log.read_text()
            assert time.monotonic() < end, f"{runs} runs were not done within {PATIENCE} s"
            time.sleep(0.01)
    finally:
        process.kill()
        process.join()
    assert process.exitcode == -signal.SIGKILL, "it came to its end before it was killed"
    assert not (table.parent / "results.json").exists()
    names = [line.split(",")[1] for line in rows(table)]
    return {name for name in names if names.count(name) == RUN_LINES}


def rows(table):
    """Whole lines of a table."""
    return [line for line in table.read_text().splitlines(True)[1:] if line.endswith("\n")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Folder of the same test in another place, which nobody killed."""
    place = tmp_path_factory.mktemp("undisturbed")
    write_folder(place / "data", images=OBJECTS, size=(24, 32))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        run()
    return folder_of(place, 0)


@pytest.fixture(scope="module")
def killings(undisturbed, tmp_path_factory):
    """The place, and what happened there."""
    place = tmp_path_factory.mktemp("killed")
    (place / "data").symlink_to(undisturbed.parents[4] / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        first = killed(place, 0, OBJECTS // 4)
        other_seed = run("--evaluation.seed=1", ONE_BLOCK)
        second = killed(place, 2, len(first) + OBJECTS // 4)
        return place, Killings(first, other_seed, second, run(), run(ONE_BLOCK))


def test_the_runs_of_the_killed_test_are_taken_over(killings):
    _, (first, _, second, finished, _) = killings
    assert OBJECTS // 4 <= len(first) < len(second) < OBJECTS
    assert first < second, "the second test wrote down what it took over"
    assert (
        f"{len(second)} runs are taken over from runs/grabcut/version_2/test/ritm" in finished.text
    )


def test_what_was_done_is_not_done_again(killings):
    place, (_, _, second, finished, _) = killings
    again = second & set(finished.evaluated)
    assert len(finished.evaluated) == len(second | set(finished.evaluated)) - len(second - again)
    assert len(second | set(finished.evaluated)) == OBJECTS
    assert len(again) <= PICTURED < len(second)
    before = rows(folder_of(place, 2) / "objects.csv")
    kept = set(before) & set(rows(folder_of(place, 3) / "objects.csv"))
    assert {line.split(",")[1] for line in kept} >= second - again, "with their times"


def test_the_result_is_that_of_an_undisturbed_test(undisturbed, killings):
    place, _ = killings
    folder = folder_of(place, 3)
    expected = clicks(undisturbed)
    assert len(expected) == OBJECTS * RUN_LINES
    assert len({row["iou"] for row in expected}) > OBJECTS, "the scores must say something"
    assert clicks(folder) == expected
    assert figures(folder) == figures(undisturbed)
    assert {path.name for path in folder.iterdir()} == {path.name for path in undisturbed.iterdir()}


def test_another_test_takes_nothing_over(killings):
    _, (_, other_seed, _, _, again) = killings
    for told in (other_seed, again):  # and nothing is left once a test came to its end
        assert "taken over" not in told.text
        assert len(told.evaluated) == BLOCK
