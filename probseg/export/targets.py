"""The formats that `probseg export` writes."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from importlib import metadata as packages
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from skimage.data import coffee

import probseg
from probseg import geometry
from probseg.errors import UsageError
from probseg.export import runner
from probseg.export.graphs import Graph
from probseg.page import SHARED

ONNX = ("onnx", "onnxscript", "onnxruntime")

OPSET = 18
"""The oldest that PyTorch's exporter writes, for runtimes that are behind."""

SHORT = 256
"""Numbers from which on a tensor is halved."""

RUNTIME = "onnxruntime-web@1.30.0"
"""npm package of ONNX Runtime Web, MIT licence."""

RUNTIME_FILES = (
    "ort.wasm.min.mjs",
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
)
"""Its files for graphs on the processor."""

PAGE = Path(__file__).parent / "page"

PACKAGE = {
    "name": "probseg-runner",
    "version": probseg.__version__,
    "license": "Apache-2.0",
    "type": "module",
    "exports": {".": {"types": "./runner.d.ts", "default": "./runner.js"}, "./*": "./*"},
}
"""The page's folder as a package of JavaScript."""


class Target(NamedTuple):
    """A format of exported graphs."""

    help: str  # Half a sentence for `probseg export --help`
    suffix: str  # End of the names of the graphs
    packages: tuple[str, ...]  # That it needs beyond the dependencies of probseg
    write: Callable[[Graph, Path], None]  # Writes a graph to a file
    # Writes to the folder what goes with the graphs, before they are traced
    accompany: Callable[[Path], object]


def write_onnx(graph: Graph, path: Path) -> None:
    """Write a graph for ONNX Runtime, with documented names, and without traces of this machine."""
    import onnx

    with torch.no_grad():
        program = torch.onnx.export(
            graph.program,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
        )
    assert program is not None, "a program for dynamo=True"
    model = program.model_proto
    _strip(model)
    for value in (*model.graph.input, *model.graph.output):
        for dim, side in zip(
            value.type.tensor_type.shape.dim,
            (graph.inputs | graph.outputs)[value.name].shape,
            strict=True,
        ):
            if isinstance(side, str):
                dim.dim_param = side
    onnx.save(model, path)


def store_halves(path: Path) -> None:
    """Store the weights of an ONNX file as float16; runtimes make float32 of them as they load it.

    Short tensors stay as they are: they are few bytes, and small constants would become 0.
    """
    import onnx

    model = onnx.load(path)
    casts = []
    for tensor in model.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype != np.float32 or values.size < SHORT:
            continue
        name = tensor.name
        halves = values.astype(np.float16)
        tensor.CopyFrom(onnx.numpy_helper.from_array(halves, f"{name}_float16"))
        cast = onnx.helper.make_node("Cast", [tensor.name], [name], to=onnx.TensorProto.FLOAT)
        casts.append(cast)
    for place, cast in enumerate(casts):
        model.graph.node.insert(place, cast)
    onnx.save(model, path)


def _strip(message: Any) -> None:  # noqa: ANN401
    """Remove what the exporter notes about its machine: stack traces, names and paths."""
    for field, value in message.ListFields():
        if field.name in ("metadata_props", "doc_string", "value_info"):
            message.ClearField(field.name)
        elif field.message_type is not None and field.name != "initializer":
            for part in value if isinstance(value, Iterable) else [value]:
                _strip(part)


def write_torch(graph: Graph, path: Path) -> None:
    """Write a graph for `torch.export.load`."""
    content = io.BytesIO()  # torch aborts the process where it cannot write a file to its end
    torch.export.save(graph.program, content)
    path.write_bytes(content.getbuffer())


def write_licences(folder: Path) -> None:
    """Write the licences of what goes with the graphs."""
    licence = packages.distribution("probseg").read_text("licenses/LICENSE")
    assert licence is not None, "in each installation"
    (folder / "LICENSE").write_text(licence, encoding="utf-8")
    shutil.copyfile(Path(__file__).parent / "NOTICE", folder / "NOTICE")


def copy_runner(folder: Path) -> None:
    """Copy the modules that answer clicks without probseg."""
    shutil.copyfile(geometry.__file__, folder / "geometry.py")
    text = Path(runner.__file__).read_text(encoding="utf-8")
    text = text.replace("from probseg import", "import")
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
    shared = (SHARED / name for name in ("canvas.js", "page.css", "icon.svg"))
    for path in (*PAGE.iterdir(), *shared):
        shutil.copyfile(path, folder / path.name)
    (folder / "package.json").write_text(json.dumps(PACKAGE, indent=2) + "\n", encoding="utf-8")
    Image.fromarray(coffee()).save(folder / "photo.png")


TARGETS: dict[str, Target] = {
    "onnx": Target("for ONNX Runtime", ".onnx", ONNX, write_onnx, copy_runner),
    "torch": Target("files of torch.export", ".pt2", (), write_torch, copy_runner),
    "page": Target(
        "ONNX with a web page that runs them in the browser", ".onnx", ONNX, write_onnx, write_page
    ),
}
"""Targets by the value of `--to`."""
