"""One folder, one run: whatever is started at the same moment."""

import multiprocessing
import os

import lightning as L
import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger

from probseg import paths
from probseg.callbacks.run_folder import STARTS, own_folder, run_folder
from probseg.errors import UsageError
from support.fakes import write_folder
from support.rows import each
from support.runs import folder_fit, started

pytestmark = pytest.mark.process

LOGGERS = {
    "TensorBoardLogger": (TensorBoardLogger, CSVLogger),
    "CSVLogger": (CSVLogger, CSVLogger),
    "WandbLogger": (WandbLogger,),
    "false": (),
}


def decide(kinds, root, pairs, together, answers):
    """Take the folders of trainings as `fit` does, each until the other process has one."""
    for number in range(pairs):
        options = {"offline": True} if WandbLogger in kinds else {}
        loggers = [kind(save_dir=root, name="probseg", **options) for kind in kinds]
        place = root if kinds else root / str(number)
        trainer = L.Trainer(logger=loggers or False, default_root_dir=place, accelerator="cpu")
        together.wait()
        try:
            with own_folder(trainer, "fit"):
                assert all(logger.experiment for logger in loggers)  # which makes W&B's identifier
                assert len({logger.version for logger in loggers}) <= 1, "of one run"
                folder = run_folder(trainer)
                folder.mkdir(parents=True, exist_ok=True)
                (folder / STARTS).touch(exist_ok=False)
                answers.put(str(folder))
                together.wait()
        except UsageError as error:
            answers.put(f"refused: {error}")
            together.wait()
        if options:
            loggers[0].experiment.finish()


@pytest.mark.parametrize(
    "logger",
    [
        *[n for n in LOGGERS if n != "WandbLogger"],
        pytest.param("WandbLogger", marks=pytest.mark.slow),
    ],
)
def test_pairs_of_runs_that_begin_at_one_moment(logger, tmp_path, monkeypatch):
    """What `fit` does before it trains, of two processes, fifty times."""
    monkeypatch.setattr(paths, "PATIENCE", 0.1)
    monkeypatch.setenv("WANDB_MODE", "offline")
    fork, pairs = multiprocessing.get_context("fork"), 50
    together, answers = fork.Barrier(2), fork.Queue()
    given = (LOGGERS[logger], tmp_path, pairs, together, answers)
    processes = [fork.Process(target=decide, args=given) for _ in "ab"]
    for process in processes:
        process.start()
    taken = [answers.get(timeout=300) for _ in range(2 * pairs)]
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    assert len(set(taken)) == 2 * pairs, taken
    refused = [answer for answer in taken if answer.startswith("refused")]
    assert len(refused) == (pairs if logger == "false" else 0), refused
    assert all("`probseg fit`, process" in answer for answer in refused)


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
        *(pytest.param(name, 5, marks=pytest.mark.slow) for name in LOGGERS),
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
    arguments, trained = folder_fit(root, *options), 0
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
            trained += not refused
    starts = [len(path.read_text().splitlines()) for path in runs.rglob(STARTS)]
    # Without a logger, trainings share a folder, one at a time: a short one is waited for.
    assert starts == ([trained] if logger == "false" else [1] * 2 * pairs)
