"""A test that is killed goes on where it was, with the same command."""

import io
import signal
import time
from contextlib import redirect_stderr
from pathlib import Path
from typing import NamedTuple

import pytest

import probseg.callbacks.evaluation as evaluation
from support.fakes import write_folder
from support.runs import TEST, clicks, command, figures, started

pytestmark = pytest.mark.usefixtures("undrawn")

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


class Killings(NamedTuple):
    """A test in three parts.

    Attributes:
        place: Working directory.
        first: Objects that were done when it was killed.
        second: Those that were done at the second kill.
        finished: Output of the last part, and the objects that it clicked through.
    """

    place: Path
    first: set[str]
    second: set[str]
    finished: tuple[str, list[str]]


def folder_of(place, number):
    return place / "runs" / "grabcut" / f"version_{number}" / "test" / "ritm"


def run():
    """Run the command here; return its output and the objects that it clicks through."""
    names = []
    original = evaluation.run_objects

    def recording(model, samples, *given, **options):
        names.extend(sample.name for sample in samples)
        return original(model, samples, *given, **options)

    text = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(text):
        patch.setattr(evaluation, "run_objects", recording)
        assert command(*COMMAND) == 0
    return text.getvalue(), names


def killed(place, number, runs):
    """Run the command until its table has so many whole runs, then kill it; return their keys."""
    process = started(place, COMMAND)  # whose commit is the one that was looked up before
    table = folder_of(place, number) / "objects.csv"
    end = time.monotonic() + PATIENCE
    try:
        while not table.exists() or table.read_bytes().count(b"\n") <= runs * RUN_LINES:
            assert process.is_alive(), (place / "output.txt").read_text()
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
    place = tmp_path_factory.mktemp("killed")
    (place / "data").symlink_to(undisturbed.parents[4] / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        first = killed(place, 0, OBJECTS // 4)
        second = killed(place, 1, len(first) + OBJECTS // 4)
        return Killings(place, first, second, run())


def test_what_was_done_is_taken_over_and_not_done_again(killings):
    place, first, second, (text, evaluated) = killings
    assert OBJECTS // 4 <= len(first) < len(second) < OBJECTS
    assert first < second, "the second test wrote down what it took over"
    assert f"{len(second)} runs are taken over from runs/grabcut/version_1/test/ritm" in text
    again = second & set(evaluated)
    assert len(again) <= PICTURED < len(second)
    assert len(second | set(evaluated)) == OBJECTS
    assert len(evaluated) == OBJECTS - len(second - again)
    taken, final = (set(rows(folder_of(place, n) / "objects.csv")) for n in (1, 2))
    kept = [line.split(",")[1] for line in taken & final]
    for name in second - again:
        assert kept.count(name) == RUN_LINES, "with its times"


def test_the_result_is_that_of_an_undisturbed_test(undisturbed, killings):
    folder = folder_of(killings.place, 2)
    expected = clicks(undisturbed)
    assert len(expected) == OBJECTS * RUN_LINES
    assert len({row["iou"] for row in expected}) > 10, "the scores must differ"
    assert clicks(folder) == expected
    assert figures(folder) == figures(undisturbed)
    assert {path.name for path in folder.iterdir()} == {path.name for path in undisturbed.iterdir()}
    assert not list(killings.place.rglob("evaluation.json")), "nothing is left to go on from"
