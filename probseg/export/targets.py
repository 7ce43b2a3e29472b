"""The formats that `probseg export` writes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from probseg.export import runner
from probseg.export.graphs import Graph
from probseg.export.parity import TorchRunner
from probseg.export.runner import Runner
from probseg.export.web import write_page

ONNX = ("onnx", "onnxscript", "onnxruntime")


class Target(NamedTuple):
    """A format of exported graphs.

    Args:
        help: Half a sentence for `probseg export --help`.
        suffix: End of the names of the graphs.
        packages: That it needs beyond the dependencies of probseg.
        write: Writes a graph to a file.
        runner: Answers clicks with the graphs of a folder.
        accompany: Writes to the folder what goes with the graphs, before they are traced.
    """

    help: str
    suffix: str
    packages: tuple[str, ...]
    write: Callable[[Graph, Path], None]
    runner: Callable[[Path], Runner]
    accompany: Callable[[Path], object]


def write_onnx(graph: Graph, path: Path) -> None:
    """Write a graph for ONNX Runtime."""
    with torch.no_grad():
        program = torch.onnx.export(
            graph.program,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamo=True,
            verbose=False,
        )
    assert program is not None, "a program for dynamo=True"
    program.save(path, external_data=False)


def write_torch(graph: Graph, path: Path) -> None:
    """Write a graph for `torch.export.load`."""
    torch.export.save(graph.program, path)


def copy_runner(folder: Path) -> None:
    """Copy the module that answers clicks without probseg."""
    shutil.copyfile(runner.__file__, folder / "runner.py")


TARGETS: dict[str, Target] = {
    "onnx": Target("for ONNX Runtime", ".onnx", ONNX, write_onnx, Runner, copy_runner),
    "torch": Target(
        "files of torch.export", ".pt2", (), write_torch, TorchRunner, lambda folder: None
    ),
    "page": Target(
        "ONNX with a web page that runs them in the browser",
        ".onnx",
        ONNX,
        write_onnx,
        Runner,
        write_page,
    ),
}
"""Targets by the value of `--to`."""
