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
from torch._dynamo.exc import UserError

import probseg
from probseg import geometry
from probseg.errors import UsageError, check_name
from probseg.export.cases import record
from probseg.export.graphs import trace, trace_classes
from probseg.export.parity import Parity, measure, measure_classes
from probseg.export.runner import ClassRunner, Runner
from probseg.export.targets import ONNX, TARGETS, store_halves, write_licences
from probseg.formats.colours import distinct_colours
from probseg.geometry import RECOMMENDED_ZOOM, ZOOMS
from probseg.models import Network, Segmenter
from probseg.paths import digest, replacing
from probseg.zoo.trained import weights_digest

ABOUT = "export.json"
"""File with the settings of the graphs, for runners."""

PRECISIONS = ("float32", "float16")

LEAST_IOU = 0.99
"""Smallest mean IoU of masks by halved weights with those of the network."""

TOLERANCE = 1e-3
"""Largest difference of two logits, relative to the largest logit where that is above 1."""


def export_model(
    model: Network,
    folder: Path | str,
    to: str = "onnx",
    size: int | None = None,
    fixed: bool = False,
    name: str = "",
    classes: Sequence[str] | None = None,
    cases: bool = False,
    precision: str = "float32",
    tell: Callable[[str], object] = lambda step: None,
) -> Parity:
    """Write a network as graphs, with a description and what goes with the target.

    Args:
        model: The network, with the settings that the graphs shall have; it is left as it is.
        folder: The graphs, `export.json` and what goes with them; must not exist yet.
        to: Name in `TARGETS`.
        size: Longest side in pixels that the graphs work at; the network's `working_size` by
            default. Networks for semantic segmentation work at the size of each image.
        fixed: Whether images are padded to one square, for runtimes that know no other sizes; their
            masks are slightly worse.
        name: Of the model, for the description.
        classes: Names of the classes of a network for semantic segmentation; numbers by default.
        cases: Whether to write answers to drawn pictures into `cases.json`, by which a runner in
            another language can check itself.
        precision: Of the weights in the files, "float32" or, with ONNX, "float16", half as large.
        tell: Called with the name of each step as it begins.

    Returns:
        Differences between the answers of the written graphs and of the network.

    Raises:
        UnknownNameError: If there is no such target or precision.
        UsageError: If packages are missing, the folder exists, there is no size, the network
            computes on the host, npm cannot fetch ONNX Runtime Web for a page, or the graphs do not
            answer as the network does; nothing is written then. With float16, the mean IoU of the
            masks must be 0.99; else the logits must be those of the network.
    """
    folder = Path(folder)
    check_name("target", to, TARGETS)
    target = TARGETS[to]
    if missing := [package for package in target.packages if find_spec(package) is None]:
        raise UsageError(
            f'{", ".join(missing)} not installed; in a checkout run: pip install -e ".[export]"'
        )
    check_name("precision", precision, PRECISIONS)
    if precision != "float32" and target.packages != ONNX:
        raise UsageError(f"`precision` is for files of ONNX, got {precision!r} with to={to!r}")
    if folder.exists() or not folder.absolute().parent.is_dir():
        raise UsageError(f"`output` must be a new folder in one that exists, got {str(folder)!r}")
    model = copy.deepcopy(model).cpu().float().eval()
    if isinstance(model, Segmenter):
        if classes is not None:
            raise UsageError("`classes` are names for a network for semantic segmentation alone")
        about = _prepare_clicks(model, size, fixed)
    else:
        about = _describe_classes(model, classes, size is not None or fixed or cases)
    with replacing(folder) as draft:
        draft.mkdir()
        tell("writing what goes with the graphs")
        target.accompany(draft)
        write_licences(draft)
        if isinstance(model, Segmenter):
            side = about["working_size"]
            tell(f"tracing the network for {side} pixels")
            try:
                graphs = trace(model, side, fixed)
            except UserError as error:  # of the tracer
                raise UsageError(
                    "`model` must compute alike for images of all sizes, got code that depends on "
                    "the size; write graphs of one square, with --fixed or fixed=True"
                ) from error
        else:
            tell("tracing the network")
            graphs = trace_classes(model)
        files = {part: f"{part}{target.suffix}" for part in graphs}
        for part, graph in graphs.items():
            tell(f"writing {files[part]}")
            target.write(graph, draft / files[part])
            if precision == "float16":
                store_halves(draft / files[part])
        versions = {package: packages.version(package) for package in target.packages}
        about |= {
            "model": name,
            "precision": precision,
            "weights_sha256": weights_digest(model.state_dict()),
            "versions": {
                "probseg": probseg.__version__,
                "torch": str(torch.__version__),
                **versions,
            },
            "mean": model.mean.flatten().tolist(),
            "std": model.std.flatten().tolist(),
        }
        about["graphs"] = {
            part: {
                "file": files[part],
                "sha256": digest(draft / files[part]),
                "inputs": [{"name": n, **one._asdict()} for n, one in graph.inputs.items()],
                "outputs": [{"name": n, **one._asdict()} for n, one in graph.outputs.items()],
            }
            for part, graph in graphs.items()
        }
        _write_json(draft / ABOUT, about)
        tell("comparing answers of graphs and network")
        if isinstance(model, Segmenter):
            runner = Runner(draft)
            parity = measure(model, runner)
            if cases:
                tell("recording cases")
                (draft / "cases.json").write_text(json.dumps(record(runner)), encoding="utf-8")
        else:
            parity = measure_classes(model, ClassRunner(draft))
        if precision == "float16":
            if parity.mean_iou < LEAST_IOU:
                raise UsageError(
                    f"`precision` float16 must leave masks as they are, with a mean IoU of "
                    f"{LEAST_IOU}, got {parity.mean_iou:.4f}, and logits that differ by up to "
                    f"{parity.logit_difference:.3g}; nothing was written. Leave it out"
                )
        elif parity.logit_difference > TOLERANCE * max(1.0, parity.largest_logit):
            raise UsageError(
                f"the graphs must give the network's logits up to {TOLERANCE:g} of the largest, "
                f"{parity.largest_logit:.3g}, got a difference of {parity.logit_difference:.3g}; "
                "nothing was written. Other versions of torch, onnxscript or onnxruntime may help"
            )
        _write_json(draft / ABOUT, {**about, "parity": parity._asdict()})
    return parity


def _prepare_clicks(model: Segmenter, size: int | None, fixed: bool) -> dict[str, Any]:
    """Give the network its working size; return what runners must know."""
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
    model.working_size = size
    if fixed:
        model.cell *= -(-size // model.cell)  # one square, in whole cells, becomes one
    return {
        "settings": {k: v for k, v in asdict(model.adaptation()).items() if v is not None},
        "working_size": size,
        "cell": model.cell,
        "temperature": model.temperature,
        **geometry_settings(),
    }


def _describe_classes(
    model: Any,  # noqa: ANN401 (of a wing)
    classes: Sequence[str] | None,
    clicked: bool,
) -> dict[str, Any]:
    """Return what runners must know of a network for semantic segmentation."""
    if clicked:
        raise UsageError(
            "`size`, `fixed` and `cases` are for networks for clicks; one for semantic "
            "segmentation works at the size of each image: leave them out"
        )
    number = model.num_classes
    names = [str(n) for n in range(number)] if classes is None else list(classes)
    if len(names) != number:
        raise UsageError(f"`classes` must have {number} names for this network, got {len(names)}")
    colours = ["#" + bytes(colour).hex() for colour in distinct_colours(number)]
    return {"classes": names, "colours": colours, "cell": model.backbone.features.strides[-1]}


def geometry_settings() -> dict[str, Any]:
    """Return the constants of `probseg.geometry`, which pages in JavaScript read from the file."""
    zoom = {"smallest_side": geometry.SMALLEST_SIDE, "rim": geometry.RIM, "cut": geometry.CUT}
    kept = ("MARGIN", "LENGTH", "REACH", "JITTER", "NEGLIGIBLE", "CLAMPED")
    return {
        "least_of_a_box": geometry.LEAST_OF_A_BOX,
        "crop_margin": [geometry.CROP_PADDING, geometry.MIN_PADDING],
        "zoom": asdict(ZOOMS[RECOMMENDED_ZOOM]) | zoom,
        "kept": {name.lower(): getattr(geometry, name) for name in kept},
        "large": {"copies": geometry.LEVELS, "shown": geometry.SHOWN},
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
