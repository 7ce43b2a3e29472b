"""The formats that `probseg export` writes."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from skimage.data import coffee

from probseg import geometry
from probseg.errors import UsageError
from probseg.export import runner
from probseg.export.graphs import Graph
from probseg.export.parity import TorchRunner
from probseg.export.runner import Runner
from probseg.page import SHARED

ONNX = ("onnx", "onnxscript", "onnxruntime")

RUNTIME = "onnxruntime-web@1.30.0"
"""npm package of ONNX Runtime Web, MIT licence."""

RUNTIME_FILES = (
    "ort.wasm.min.mjs",
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
)
"""Its files for graphs on the processor."""

PAGE = Path(__file__).parent / "page"

OWN_FILES = (
    *(PAGE / name for name in ("index.html", "page.js", "runner.js", "geometry.js")),
    *(SHARED / name for name in ("canvas.js", "page.css", "icon.svg")),
)


class Target(NamedTuple):
    """A format of exported graphs."""

    help: str  # Half a sentence for `probseg export --help`
    suffix: str  # End of the names of the graphs
    packages: tuple[str, ...]  # That it needs beyond the dependencies of probseg
    write: Callable[[Graph, Path], None]  # Writes a graph to a file
    runner: Callable[[Path], Runner]  # Answers clicks with the graphs of a folder
    # Writes to the folder what goes with the graphs, before they are traced
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
    content = io.BytesIO()  # torch aborts the process where it cannot write a file to its end
    torch.export.save(graph.program, content)
    path.write_bytes(content.getbuffer())


def copy_runner(folder: Path) -> None:
    """Copy the modules that answer clicks without probseg."""
    shutil.copyfile(geometry.__file__, folder / "geometry.py")
    text = (
        Path(runner.__file__).read_text(encoding="utf-8").replace("from probseg import", "import")
    )
    text = text.replace("from probseg.geometry", "from geometry")
    (folder / "runner.py").write_text(text, encoding="utf-8")


def write_page(folder: Path) -> None:
    """Write the page, ONNX Runtime Web and a photograph into a folder."""
    npm = shutil.which("npm")
    if npm is None:
        raise UsageError(
            f"npm, which fetches {RUNTIME}, must be installed, got none; install Node.js"
        )
    with tempfile.TemporaryDirectory() as temporary:
        command = [npm, "pack", RUNTIME, "--pack-destination", temporary]
        fetched = subprocess.run(command, capture_output=True, text=True, check=False)
        if fetched.returncode:
            raise UsageError(
                f"`npm pack {RUNTIME}` must succeed, got status {fetched.returncode}: "
                f"{fetched.stderr.strip()[-500:]}; check the network and npm's settings"
            )
        (packed,) = Path(temporary).glob("*.tgz")
        with tarfile.open(packed) as archive:
            for name in RUNTIME_FILES:
                content = archive.extractfile(f"package/dist/{name}")
                assert content is not None, "a file"
                (folder / name).write_bytes(content.read())
    for path in OWN_FILES:
        shutil.copyfile(path, folder / path.name)
    Image.fromarray(coffee()).save(folder / "photo.png")


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
