"""What is left of an evaluation that was killed."""

import hashlib
import json
import multiprocessing
import os
import time
from importlib import metadata

import pytest
import torch

from probseg.evaluation import Journal, ObjectRecord, find_unfinished
from probseg.evaluation.journal import fingerprint
from probseg.evaluation.versions import _git, environment
from support.result_folders import step

SUBJECT = {"model": "m", "protocol": {"max_clicks": 2}, "seed": 0}


def runs(*names, trial=0, dataset="Toy, set", clicks=2):
    places = [(k or None, k or None, bool(k) or None) for k in range(clicks + 1)]
    steps = tuple(
        step(k, places[k], 1e-9, iou=k / 3, brier=0.1, ece=1 / 3) for k in range(clicks + 1)
    )
    return [ObjectRecord(dataset, name, trial, steps, f"photo of {name}") for name in names]


def place(root, run="run1", test="test [a]", protocol="ritm"):
    return root / run / test / protocol


def test_a_killed_evaluation_is_found_again(tmp_path):
    folder = place(tmp_path)
    journal = Journal(folder, SUBJECT)
    assert find_unfinished(folder, SUBJECT) == (folder, [])
    journal.add(runs("b", "a"))
    journal.add([])
    journal.add(runs("c"))
    assert find_unfinished(folder, SUBJECT) == (folder, runs("a", "b", "c"))
    again = place(tmp_path, "run2")
    assert find_unfinished(again, SUBJECT, tmp_path) == (folder, runs("a", "b", "c"))
    assert find_unfinished(again, SUBJECT) == (again, []), "no other runs are looked at"
    for other in (place(tmp_path, "run2", "val"), place(tmp_path, "run2", protocol="human")):
        assert find_unfinished(other, SUBJECT, tmp_path) == (other, [])
    turned = dict(reversed(SUBJECT.items()))
    assert find_unfinished(folder, turned)[1] == runs("a", "b", "c"), "whatever its order"
    about = json.loads((folder / "evaluation.json").read_text())
    assert about == {"fingerprint": fingerprint(SUBJECT), "subject": SUBJECT}


def test_another_subject_is_not_taken_over(tmp_path):
    Journal(place(tmp_path), SUBJECT).add(runs("a", "b"))
    for change in ({"seed": 0.5}, {"protocol": {"max_clicks": 3}}, {"more": None}):
        assert find_unfinished(place(tmp_path), {**SUBJECT, **change}) == (place(tmp_path), [])


def test_a_process_killed_before_its_first_record_leaves_nothing(tmp_path):
    Journal(place(tmp_path), SUBJECT).add(runs("a", "b"))
    path = place(tmp_path) / "evaluation.json"
    text = path.read_text()
    for cut in range(0, len(text) - 2, 7):
        path.write_text(text[:cut])
        assert find_unfinished(place(tmp_path), SUBJECT) == (place(tmp_path), [])


def test_results_stay_whole_until_the_next_evaluation_is_finished(tmp_path):
    folder = place(tmp_path)
    folder.mkdir(parents=True)
    finished = {name: f"earlier {name}" for name in ("results.json", "objects.csv", "report.html")}
    for name, text in finished.items():
        (folder / name).write_text(text)
    journal = Journal(folder, SUBJECT)  # which fails, or is killed, after its first batch
    journal.add(runs("a", "b"))
    again = Journal(folder, SUBJECT, records=find_unfinished(folder, SUBJECT)[1])
    again.add(runs("c"))
    assert {name: (folder / name).read_text() for name in finished} == finished
    assert find_unfinished(folder, SUBJECT) == (folder, runs("a", "b", "c"))
    again.close()
    assert {path.name for path in folder.iterdir()} == finished.keys()
    assert find_unfinished(folder, SUBJECT) == (folder, [])


def test_the_newest_journal_counts(tmp_path):
    for age, run in ((50, "run1"), (10, "run2"), (99, "run3")):
        Journal(place(tmp_path, run), SUBJECT).add(runs(run, "b"))
        then = time.time() - age
        os.utime(place(tmp_path, run) / "evaluation.json", (then, then))
    Journal(place(tmp_path, "run4"), {}).add(runs("x", "y"))  # newer, but of something else
    found = find_unfinished(place(tmp_path, "run5"), SUBJECT, tmp_path)
    assert found == (place(tmp_path, "run2"), runs("b", "run2"))
    (place(tmp_path, "run2") / "evaluation.json").unlink()
    assert find_unfinished(place(tmp_path, "run1"), SUBJECT)[0] == place(tmp_path, "run1")


def test_files_of_all_processes_are_read_and_removed(tmp_path):
    folder = place(tmp_path)
    journals = [Journal(folder, SUBJECT, rank) for rank in range(3)]
    for journal, names in zip(journals, ("adg", "beg", "cf"), strict=True):
        journal.add(runs(*names))
    assert len(list(folder.glob("objects*.csv"))) == 3
    assert find_unfinished(folder, SUBJECT) == (folder, runs(*"abcdefg"))  # g was sampled twice
    journals[0].add([])
    for _ in range(2):
        journals[0].close()
    assert find_unfinished(folder, SUBJECT) == (folder, [])
    assert list(folder.iterdir()) == []


def test_a_process_that_has_not_written_its_header_holds_nobody_up(tmp_path):
    Journal(place(tmp_path), SUBJECT).add(runs("a", "b"))
    Journal(place(tmp_path), SUBJECT, rank=1)
    (path,) = place(tmp_path).glob("objects.rank1*.csv")
    header = path.read_bytes()
    for cut in range(len(header) + 1):
        path.write_bytes(header[:cut])
        assert find_unfinished(place(tmp_path), SUBJECT)[1] == runs("a", "b")


def test_files_of_another_subject_are_not_mixed_in(tmp_path):
    other = {**SUBJECT, "seed": 1}
    for rank, names in enumerate(("ab", "cd")):
        Journal(place(tmp_path), other, rank).add(runs(*names))
    Journal(place(tmp_path), SUBJECT).add(runs("e", "f"))  # one process alone, in the same folder
    assert find_unfinished(place(tmp_path), SUBJECT)[1] == runs("e", "f")


def _write_for_ever(folder, started):
    journal = Journal(folder, SUBJECT)
    started.set()
    for batch in range(10**6):
        journal.add(runs(*(f"{batch:06} {n}" for n in range(200)), clicks=20))


def test_a_process_killed_while_it_writes_leaves_whole_runs(tmp_path):
    folder, size = place(tmp_path), 300_000
    context = multiprocessing.get_context("fork")  # a new interpreter would take seconds to begin
    started = context.Event()
    process = context.Process(target=_write_for_ever, args=(folder, started), daemon=True)
    process.start()
    try:
        assert started.wait(60)
        deadline = time.monotonic() + 60
        (journal,) = folder.glob("objects.rank0.*.csv")
        while journal.stat().st_size < size:
            assert time.monotonic() < deadline
    finally:
        process.kill()
        process.join()
    assert process.exitcode == -9
    _, found = find_unfinished(folder, SUBJECT)
    names = [run.name for run in found]
    first = [f"{batch:06} {n}" for batch in range(len(found) // 200 + 1) for n in range(200)]
    assert sorted(first[: len(found)]) == names, "all from the beginning, none left out"
    assert found == sorted(runs(*names, clicks=20), key=lambda run: run.key)
    assert len(found) >= size // 5_000
    again = Journal(folder, SUBJECT)
    again.add(found)
    again.add(runs("last", clicks=20))
    assert find_unfinished(folder, SUBJECT)[1] == [*found, *runs("last", clicks=20)]


def test_environment_is_json_and_names_the_versions():
    found = json.loads(json.dumps(environment()))
    assert found["versions"]["torch"] == torch.__version__
    assert found["device"] == "cpu"
    assert found["commit"] is None or len(found["commit"]) == 40
    assert {"python", "platform", "dirty"} <= found.keys()
    for name in ("scikit-image", "scipy"):  # baselines depend on them
        assert found["versions"][name] == metadata.version(name)


@pytest.mark.parametrize("diff", [None, b"", b"- old\n+ \xff\n"])
def test_environment_tells_changes_apart(monkeypatch, diff):
    answers = {"rev-parse": b"ab" * 20 + b"\n", "status": diff and b" M x\n", "diff": diff}
    monkeypatch.setattr(
        "probseg.evaluation.versions._git", lambda *arguments: answers[arguments[0]]
    )
    if diff is None:  # no git
        monkeypatch.setenv("PATH", "")
        monkeypatch.setattr("probseg.evaluation.versions._git", _git.__wrapped__)  # no cache
    found = environment()
    assert found["commit"] == (None if diff is None else "ab" * 20)
    assert found["dirty"] == (None if diff is None else bool(diff))
    assert found["changes_sha256"] == (hashlib.sha256(diff).hexdigest() if diff else None)
