"""The command line inside the test process, on small networks and drawn data."""

from __future__ import annotations

import csv
import faulthandler
import functools
import json
import multiprocessing
import os
import queue
import re
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import distributed

from probseg.cli import main
from probseg.cli.invocation import Invocation
from probseg.cli.trainer import ProbsegCLI, run
from support.fakes import write_folder

MICRO = ("--model.model", "configs/model/micro_csa.yaml")
"""Flags that put a small network into any experiment."""

MICRO_EMANET = ("--model.model.of=micro_emanet", "--model.model.changes={head: {num_classes: 11}}")
"""Flags that put a small network into a recipe for CamVid."""

LAUNCHER = Path(__file__).parents[2] / "cli.py"

QUIET = (
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
)
SMALL = ("--data.num_workers=0", "--data.batch_size=2", "--data.crop_size=32")
"""Flags that make training quick."""


def is_semantic(path: Path) -> bool:
    """Say whether a shipped configuration is one for semantic segmentation."""
    return re.search(r"[Ss]emantic", path.read_text(encoding="utf-8")) is not None


def command(*arguments: object) -> int:
    """Run a command line and return its exit status."""
    return main([str(argument) for argument in arguments])


def folder_fit(root: Path, *more: object) -> list[str]:
    """Arguments of a short training on a folder."""
    experiment = ["fit", "--config", "configs/experiment/scratch.yaml", "--data.root", root]
    experiment.append("--data.val_fraction=0.15")
    return [str(a) for a in (*experiment, *MICRO, *QUIET, *SMALL, *more)]


def camvid_fit(*more: object) -> list[str]:
    """Arguments of a short training on the CamVid of `$PROBSEG_DATA`."""
    experiment = ["fit", "--config", "configs/experiment/emanet_camvid_cpu.yaml"]
    every = "--trainer.check_val_every_n_epoch=1"
    return [str(a) for a in (*experiment, *MICRO_EMANET, *QUIET, *SMALL, every, *more)]


def finished(verb: str, *options: object) -> ProbsegCLI:
    """Run a command line and return its trainer, model and data."""
    return run(Invocation(verb, [str(option) for option in options]))


def only_made(*arguments: object) -> ProbsegCLI:
    """Make trainer, data and network of a command line and no more; weights take no memory."""
    with pytest.MonkeyPatch.context() as patch, torch.device("meta"):
        for method in (L.Trainer.fit, L.Trainer.validate, L.Trainer.test):
            nothing = functools.wraps(method)(lambda *_, **__: None)
            patch.setattr(L.Trainer, method.__name__, nothing)
        return finished(*arguments)


def usage_error(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command line that is refused; return its message."""
    capsys.readouterr()
    assert command(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    for noise in ("Traceback", "usage:", "Namespace("):
        assert noise not in captured.err
    before, message = captured.err.split("probseg: error: ")
    assert before == "" or before.endswith("\n")
    return message


def assert_identical(one: Any, other: Any) -> None:
    """Compare nested containers, and the tensors in them bit by bit."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_identical(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            assert_identical(first, second)
    else:
        assert one == other


@contextmanager
def working_in(place: Path) -> Iterator[None]:
    """Work in a folder, which also has the data sets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("PROBSEG_DATA", str(place))
        yield


def started(
    place: Path,
    arguments: Sequence[object],
    prepare: Callable[[], object] | None = None,
    script: Path = LAUNCHER,
    **variables: str,
) -> BaseProcess:
    """Start a command line in a process of its own, which has loaded everything already.

    It works in `place`, where its output goes into `output.txt`; `prepare` is called before it.
    """

    def child() -> None:
        os.environ.update(OMP_NUM_THREADS="1", PROBSEG_MANY_PROCESSES="1", **variables)
        sys.argv = [str(script), *map(str, arguments)]
        with working_in(place), output.open("w", buffering=1) as file:
            for descriptor in (1, 2):  # also of the processes that it starts
                os.dup2(file.fileno(), descriptor)
            sys.stdout = sys.stderr = file
            faulthandler.enable(file)
            try:
                if prepare is not None:
                    prepare()
                runpy.run_path(str(script), run_name="__main__")
                status = 0
            except SystemExit as stop:
                status = stop.code
            except Exception:
                traceback.print_exc()
                status = 1
            file.flush()
            os._exit(status)

    output = place.resolve() / "output.txt"
    output.unlink(missing_ok=True)  # of an earlier process
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    return process


def separately(place: Path, *arguments: object, script: Path = LAUNCHER, **variables: str) -> str:
    """Run a command line to its end in a process of its own; return its output."""
    process = started(place, arguments, script=script, **variables)
    process.join(600)
    process.kill()
    output = (place / "output.txt").read_text()
    assert process.exitcode == 0, output
    return output


def printed_line(process: BaseProcess, place: Path, start: str) -> str:
    """Wait until a process started in `place` prints a line that begins so; return the line."""
    output = place / "output.txt"
    end = time.monotonic() + 120
    while time.monotonic() < end:
        text = output.read_text() if output.exists() else ""
        for line in text.splitlines(keepends=True):
            if line.startswith(start) and line.endswith("\n"):
                return line.strip()
        assert process.is_alive(), text
        time.sleep(0.02)
    pytest.fail(f"no line {start}... within 120 s: {text}")


def train_two_epochs(place: Path) -> tuple[Path, Path]:
    """Train on a drawn folder inside `place`; return the data and the folder of the run."""
    root = write_folder(place / "data", images=5, size=(24, 32))
    with working_in(place):
        assert command(*folder_fit(root, "--trainer.max_epochs", 2)) == 0
    return root, place / "runs" / "probseg" / "version_0"


TEST = (
    *("test", "--config", "configs/experiment/grabcut.yaml", *MICRO, *QUIET),
    "--seed_everything=2",
    *("--data.test=probseg.data.ImageMaskFolder", "--data.test.root=data"),
)
"""A test of random weights, which the seed fixes, on the folder `data`."""

TIMES = {"first_seconds", "next_seconds"}


def clicks(folder: Path) -> list[dict[str, str]]:
    """Rows of `objects.csv` in their order, all columns but the time."""
    with (folder / "objects.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(row.pop("seconds") is not None for row in rows)
    return rows


def figures(folder: Path) -> dict[str, dict[str, Any]]:
    """Scores of `results.json` by data set, all but the times."""
    datasets = json.loads((folder / "results.json").read_text())["datasets"]
    for scores in datasets.values():
        assert scores.keys() >= TIMES
    return {
        name: {key: value for key, value in scores.items() if key not in TIMES}
        for name, scores in datasets.items()
    }


def in_two_processes(place: Path, work: Callable[..., object], *arguments: object) -> list[Any]:
    """Call `work(rank, *arguments)` in two processes that know each other; return both results."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    def run(rank: int) -> None:
        torch.set_num_threads(1)
        meeting = f"file://{place / 'meeting'}"
        distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
        results.put(work(rank, *arguments))
        distributed.destroy_process_group()

    processes = [context.Process(target=run, args=[rank], daemon=True) for rank in range(2)]
    for process in processes:
        process.start()
    try:
        found = [results.get(timeout=60) for _ in processes]
    except queue.Empty:
        pytest.fail("a process has not answered")
    finally:
        for process in processes:
            process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0, 0]
    return found
