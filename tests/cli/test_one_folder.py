"""One folder, one run: whatever is started at the same moment."""

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import lightning as L
import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger

from probseg import paths
from probseg.callbacks.run_folder import claim_folders, own_folder, run_folder
from probseg.errors import UsageError
from support.fakes import write_folder
from support.rows import each
from support.runs import folder_fit, started

pytestmark = pytest.mark.process

AT_ONCE = 50


@each("kind", [TensorBoardLogger, CSVLogger])
def test_runs_that_begin_at_one_moment_have_folders_of_their_own(kind, tmp_path):
    together = Barrier(AT_ONCE)

    def claimed(_):
        loggers = [kind(tmp_path, "probseg"), CSVLogger(tmp_path, "probseg")]
        together.wait()
        claim_folders(loggers)
        assert loggers[0].version == loggers[1].version, "of one run"
        return loggers[0].version

    with ThreadPoolExecutor(AT_ONCE) as pool:
        numbers = list(pool.map(claimed, range(AT_ONCE)))
    assert sorted(numbers) == list(range(AT_ONCE))


@each("logger", [None, CSVLogger, WandbLogger])
def test_a_folder_in_use_is_refused_by_the_name_of_its_owner(logger, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "PATIENCE", 0.1)
    options = {"default_root_dir": tmp_path, "accelerator": "cpu"}
    given = {CSVLogger: {"version": 3}, WandbLogger: {"id": "abc", "offline": True}}.get(logger, {})
    trainers = [
        L.Trainer(logger=logger(save_dir=tmp_path, **given) if logger else False, **options)
        for _ in range(2)
    ]
    with own_folder(trainers[0], "fit"):
        message = rf"{run_folder(trainers[0])}: `probseg fit`, process {os.getpid()} on"
        with pytest.raises(UsageError, match=message), own_folder(trainers[1], "fit"):
            pass
    with own_folder(trainers[1], "test"):
        pass


def test_a_killed_owner_leaves_no_lock(tmp_path):
    def own(ready):
        with paths.alone_in(tmp_path, "fit"):
            ready.set()
            os.pause()

    fork = multiprocessing.get_context("fork")
    ready = fork.Event()
    process = fork.Process(target=own, args=[ready])
    process.start()
    assert ready.wait(60)
    process.kill()
    process.join()
    with paths.alone_in(tmp_path, "test"):
        assert "`probseg test`" in (tmp_path / paths.LOCK).read_text()


@pytest.mark.parametrize(
    ("logger", "pairs"),
    [
        ("TensorBoardLogger", 1),
        *(
            pytest.param(name, 50, marks=pytest.mark.slow)
            for name in ("TensorBoardLogger", "CSVLogger", "WandbLogger", "false")
        ),
    ],
)
def test_pairs_of_trainings_started_at_once(logger, pairs, tmp_path):
    root, runs = write_folder(tmp_path / "data", images=4, size=(24, 32)), tmp_path / "runs"
    options = ["--trainer.max_steps=1", "--evaluation.pictures=0", f"--trainer.logger={logger}"]
    if logger == "false":
        options.append(f"--trainer.default_root_dir={runs}")
    else:
        options.append(f"--trainer.logger.save_dir={runs}")
    if logger == "WandbLogger":
        options.append("--trainer.logger.offline=true")
    arguments = folder_fit(root, *options)
    for number in range(pairs):
        places = [tmp_path / f"{number}{name}" for name in "ab"]
        for place in places:
            place.mkdir()
        processes = [started(place, arguments, WANDB_MODE="offline") for place in places]
        for process, place in zip(processes, places, strict=True):
            process.join(300)
            output = (place / "output.txt").read_text()
            refused = logger == "false" and "is at work in this folder" in output
            assert process.exitcode == (2 if refused else 0), output
    folders = {path.parent: path.read_text().splitlines() for path in runs.rglob("starts.jsonl")}
    assert logger == "false" or len(folders) == 2 * pairs, sorted(folders)
    assert all(len(lines) == 1 for lines in folders.values()), folders
