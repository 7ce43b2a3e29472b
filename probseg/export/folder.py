"""Writing a network as graphs into a folder, after a check of their answers."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import metadata as packages
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import probseg
from probseg import geometry
from probseg.errors import UnknownNameError, UsageError
from probseg.export.graphs import trace
from probseg.export.parity import Parity, measure
from probseg.export.targets import TARGETS
from probseg.geometry import RECOMMENDED_ZOOM, ZOOMS
from probseg.models import Segmenter
from probseg.paths import digest, replacing
from probseg.zoo.trained import weights_digest

ABOUT = "export.json"
"""File with the settings of the graphs, for runners."""

TOLERANCE = 1e-3
"""Largest difference of two logits, relative to the largest logit where that is above 1."""


def export_model(
    model: Segmenter,
    folder: Path | str,
    to: str = "onnx",
    size: int | None = None,
    name: str = "",
    tell: Callable[[str], object] = lambda step: None,
) -> Parity:
    """Write a network as graphs, with a description and what goes with the target.

    Args:
        model: The network, with the settings that the graphs shall have; it is left as it is.
        folder: The graphs, `export.json` and what goes with them; must not exist yet.
        to: Name in `TARGETS`.
        size: Longest side in pixels that the graphs work at; the network's `working_size` by
            default.
        name: Of the model, for the description.
        tell: Called with the name of each step as it begins.

    Returns:
        Differences between the answers of the written graphs and of the network.

    Raises:
        UnknownNameError: If there is no such target.
        UsageError: If packages are missing, the folder exists, there is no size, the network
            computes on the host, npm cannot fetch ONNX Runtime Web for a page, or the graphs do not
            answer as the network does; nothing is written then.
    """
    folder = Path(folder)
    if to not in TARGETS:
        raise UnknownNameError(kind="target", name=to, known=TARGETS)
    target = TARGETS[to]
    if missing := [package for package in target.packages if find_spec(package) is None]:
        raise UsageError(
            f'{", ".join(missing)} not installed; in a checkout run: pip install -e ".[export]"'
        )
    if folder.exists() or not folder.absolute().parent.is_dir():
        raise UsageError(f"`output` must be a new folder in one that exists, got {str(folder)!r}")
    if model.sizing != "reduce":
        raise UsageError(
            f"`model` must leave small images at their size, as sizing='reduce' does, got "
            f"sizing={model.sizing!r}; the runners of exported graphs know no other way"
        )
    size = model.working_size if size is None else size
    if size is None or size < 1:
        raise UsageError(
            f"`size` must be a positive number of pixels for a network without working size, got "
            f"{size}; 320 is a good compromise between contours and time"
        )
    model = copy.deepcopy(model).cpu().float().eval()
    model.working_size = size
    model.cell *= -(-size // model.cell)  # one cell is the whole square: all images are padded so
    with replacing(folder) as draft:
        draft.mkdir()
        tell("writing what goes with the graphs")
        target.accompany(draft)
        tell(f"tracing the network at {model.cell} x {model.cell} pixels")
        graphs = trace(model, model.cell)
        files = {part: f"{part}{target.suffix}" for part in graphs}
        for part, graph in graphs.items():
            tell(f"writing {files[part]}")
            target.write(graph, draft / files[part])
        about = _description(model, name, target.packages)
        about["graphs"] = {
            part: {
                "file": files[part],
                "sha256": digest(draft / files[part]),
                "inputs": _tensors(graph.inputs),
                "outputs": _tensors(graph.outputs),
            }
            for part, graph in graphs.items()
        }
        _write_json(draft / ABOUT, about)
        tell("comparing answers of graphs and network")
        parity = measure(model, target.runner(draft))
        if parity.logit_difference > TOLERANCE * max(1.0, parity.largest_logit):
            raise UsageError(
                f"the graphs must give the network's logits up to {TOLERANCE:g} of the largest, "
                f"{parity.largest_logit:.3g}, got a difference of {parity.logit_difference:.3g}; "
                "nothing was written. Other versions of torch, onnxscript or onnxruntime may help"
            )
        _write_json(draft / ABOUT, {**about, "parity": parity._asdict()})
    return parity


def _description(model: Segmenter, name: str, needed: Sequence[str]) -> dict[str, Any]:
    """Return the description of the graphs, without their inputs and outputs."""
    versions = {package: packages.version(package) for package in needed}
    return {
        "model": name,
        "weights_sha256": weights_digest(model.state_dict()),
        "settings": {k: v for k, v in asdict(model.adaptation()).items() if v is not None},
        "versions": {"probseg": probseg.__version__, "torch": str(torch.__version__), **versions},
        "working_size": model.working_size,
        "side": model.cell,
        "mean": model.mean.flatten().tolist(),
        "std": model.std.flatten().tolist(),
        "temperature": model.temperature,
        **geometry_settings(),
    }


def geometry_settings() -> dict[str, Any]:
    """Return the constants of `probseg.geometry`, which pages in JavaScript read from the file."""
    zoom = {"smallest_side": geometry.SMALLEST_SIDE, "rim": geometry.RIM, "cut": geometry.CUT}
    kept = ("MARGIN", "LENGTH", "REACH", "JITTER", "NEGLIGIBLE", "CLAMPED")
    return {
        "crop_margin": [geometry.CROP_PADDING, geometry.MIN_PADDING],
        "zoom": asdict(ZOOMS[RECOMMENDED_ZOOM]) | zoom,
        "kept": {name.lower(): getattr(geometry, name) for name in kept},
        "large": {"copies": geometry.LEVELS, "shown": geometry.SHOWN},
    }


def _tensors(named: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
    """Describe inputs or outputs; the number of clicks is free."""
    described = []
    for name, tensor in named.items():
        shape: list[int | str] = list(tensor.shape)
        if name in ("points", "labels"):
            shape[1] = "clicks"
        dtype = str(tensor.dtype).removeprefix("torch.")
        described.append({"name": name, "dtype": dtype, "shape": shape})
    return described


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
