"""A network as graphs of tensors, traced by `torch.export`, for images of any whole cells.

Networks whose prompts enter at the head are two graphs, "encode" for an image and "click" for its
prompts; the others are one, "whole", which takes both. EM iterations are unrolled. Operators that
ONNX does not have are made of others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.overrides import TorchFunctionMode

from probseg.errors import UsageError
from probseg.heads.base import DecoderMaps, Units
from probseg.models import Segmenter
from probseg.types import Prompts

COARSER = "coarser_"
"""Beginning of the names of the decoder's further levels, finest first."""


Axes = Mapping[int, Any]
"""What is free of a tensor: dimensions of `torch.export` by axis."""


class Shape(NamedTuple):
    """Type and shape of a tensor; free dimensions have names."""

    dtype: str
    shape: list[int | str]


class Graph(NamedTuple):
    """A traced part of a network."""

    program: ExportedProgram  # Of positional tensors; at least 2 clicks
    inputs: dict[str, Shape]  # Type and shape by name; free dimensions have names
    outputs: dict[str, Shape]


class Encode(nn.Module):
    """The part of the network that needs no prompts."""

    def __init__(self, model: Segmenter) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Return the features of a normalised image `(1, 3, H, W)`; see `named_features`."""
        return tuple(named_features(self.model.image_features(image)).values())


class Click(nn.Module):
    """The logits for all prompts on an image."""

    def __init__(self, model: Segmenter, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: Tensor) -> Tensor:
        """Return logits `(1, 1, H, W)`."""
        inputs = dict(zip(self.names, tensors, strict=True))
        previous = inputs.get("previous")
        image = inputs["image"] if previous is None else inputs.get("image", previous)  # its size
        prompts = Prompts(inputs["points"], inputs["labels"], inputs["box"], previous)
        return self.model.padded_logits(image, decoder_maps_of(inputs), prompts).main


class Classes(nn.Module):
    """The logits of all classes."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401 (of a wing)
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        """Return logits `(1, C, H, W)` of a normalised image of one pixel more than whole cells."""
        logits: Tensor = self.model.decode(self.model.backbone(image), image.shape[-2:])
        return logits


def named_features(decoder_maps: DecoderMaps | None) -> dict[str, Tensor]:
    """Return what inference needs of a decoder's result, by name; nothing of None."""
    if decoder_maps is None:
        return {}
    named = {"features": decoder_maps.features}
    named |= {f"{COARSER}{n}": level for n, level in enumerate(decoder_maps.coarser)}
    return named if decoder_maps.units is None else named | decoder_maps.units._asdict()


def decoder_maps_of(named: Mapping[str, Tensor]) -> DecoderMaps | None:
    """Return the decoder's result that `named_features` took apart; None without features."""
    if "features" not in named:
        return None
    coarser = tuple(level for name, level in named.items() if name.startswith(COARSER))
    units = Units(named["queries"], named["keys"]) if "queries" in named else None
    return DecoderMaps(named["features"], coarser=coarser, units=units)


@torch.no_grad()
def trace(model: Segmenter, size: int, fixed: bool = False) -> dict[str, Graph]:
    """Trace the graphs of a network, in the order in which they run.

    Images have any whole cells. Where the size is fixed, they have one cell, a square.
    """
    if model.refinement is not None:
        raise UsageError(
            f"`model` must have no refinement, which no graph can hold, got a "
            f"{type(model.refinement).__name__}; set model.refinement = None, and export that"
        )
    # Two sizes that neither are one cell nor equal, which PyTorch takes for what never changes
    cell, cells = model.cell, max(2, size // model.cell)
    rows, columns = (1, 1) if fixed else (cells, cells + 1)
    known = {"image": torch.zeros(1, 3, rows * cell, columns * cell)}
    axes = {2: Dim("rows", min=1), 3: Dim("columns", min=1)}
    free: dict[str, Axes] = {} if fixed else {"image": {n: cell * axes[n] for n in axes}}
    model = copy.deepcopy(model)
    _fix_padding(model, corners=False)
    features = named_features(model.image_features(known["image"]))
    graphs, answering = {}, copy.deepcopy(model)
    answering.quality = None
    if features:
        # A program holds all weights of its module, also those that it does not use.
        encoding = copy.deepcopy(model)
        del encoding.head, encoding.quality, answering.backbone, answering.decoder
        graphs["encode"] = _graph(Encode(encoding), known, list(features), free)
        if model.propagated_clicks is None and model.previous_mask:
            del known["image"]
        if not fixed:
            for name in features.keys() - set(Units._fields):
                sides = zip(features[name].shape[2:], (rows, columns), axes.items(), strict=True)
                free[name] = {axis: side // n * dim for side, n, (axis, dim) in sides}
            free["queries"] = {2: Dim.AUTO}  # as many as a level has pixels
    known |= features
    known |= {
        "points": torch.zeros(1, 3, 2),
        "labels": torch.tensor([[1, 0, -1]]),
        "box": torch.full((1, 4), torch.nan),
    }
    if model.previous_mask:
        known["previous"] = torch.zeros(1, 1, rows * cell, columns * cell)
        free["previous"] = free.get("image", {})
    click = Click(answering, list(known))
    graphs["click" if features else "whole"] = _graph(click, known, ["logits"], free)
    return graphs


@torch.no_grad()
def trace_classes(model: Any) -> dict[str, Graph]:  # noqa: ANN401 (of a wing)
    """Trace the graph of a network for semantic segmentation, for images of any whole cells."""
    stride, classes = model.backbone.features.strides[-1], Classes(copy.deepcopy(model))
    _fix_padding(classes, corners=True)
    cells = {2: Dim("rows", min=1), 3: Dim("columns", min=1)}
    free = {axis: stride * number + 1 for axis, number in cells.items()}
    image = torch.zeros(1, 3, 10 * stride + 1, 11 * stride + 1)
    return {"classes": _graph(classes, {"image": image}, ["logits"], {"image": free})}


def _fix_padding(module: nn.Module, corners: bool) -> None:
    """Give timm's convolutions with "same" padding that of images of whole cells.

    They compute it from the size of the map, which no tracer simplifies. With one pixel more, the
    `corners` of cells are pixels.
    """
    for part in module.modules():
        if type(part).__name__ == "Conv2dSame":
            assert isinstance(part, nn.Conv2d), "a convolution"
            sides = zip(part.kernel_size, part.dilation, part.stride, strict=True)
            rows, columns = (
                max(0, (kernel - 1) * dilation + 1 - (1 if corners else stride))
                for kernel, dilation, stride in sides
            )
            around = (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
            part.forward = partial(_convolve, part, around)  # type: ignore[method-assign]


def _convolve(conv: nn.Conv2d, around: tuple[int, int, int, int], maps: Tensor) -> Tensor:
    return F.conv2d(
        F.pad(maps, around), conv.weight, conv.bias, conv.stride, 0, conv.dilation, conv.groups
    )


def _graph(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    names: list[str],
    free: Mapping[str, Axes],
) -> Graph:
    """Trace a module with these inputs, with their free axes, and with names for outputs."""
    clicks = Dim("clicks", min=2)  # PyTorch takes a size of 1 for one that never changes
    free = {"points": {1: clicks}, "labels": {1: clicks}, **free}
    dims = tuple(free.get(name, {}) for name in inputs)
    with Replaced():
        program = torch.export.export(
            module,
            tuple(inputs.values()),
            dynamic_shapes=(dims,) if isinstance(module, Click) else dims,
        )
    for node in program.graph.nodes:
        # Paths of this machine; where there is none, each later pass records its own, for minutes
        node.meta["stack_trace"] = "-"
    values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    signature = program.graph_signature
    return Graph(
        program,
        {n: _shape(n, values[v]) for n, v in zip(inputs, signature.user_inputs, strict=True)},
        {n: _shape(n, values[v]) for n, v in zip(names, signature.user_outputs, strict=True)},
    )


def _shape(name: str, value: Tensor) -> Shape:
    """Describe an input or output; the names of its free dimensions are documented."""
    beginning = "" if name in ("image", "previous", "logits") else f"{name}_"
    named = {1: "clicks", 2: f"{beginning}height", 3: f"{beginning}width"}
    sides: list[int | str] = [
        n if isinstance(n, int) else named[axis] for axis, n in enumerate(value.shape)
    ]
    return Shape(str(value.dtype).removeprefix("torch."), sides)


def adaptive_avg_pool2d(maps: Tensor, output_size: Sequence[int] | int) -> Tensor:
    """Average maps over a grid of cells that may overlap, as products with two matrices."""
    grid = (output_size, output_size) if isinstance(output_size, int) else output_size
    rows, columns = (
        _shares(side, cells, maps) for side, cells in zip(maps.shape[2:], grid, strict=True)
    )
    return rows @ maps @ columns.mT


def adaptive_max_pool2d(
    maps: Tensor, output_size: list[int], return_indices: Literal[False] = False
) -> Tensor:
    """Return the largest values in a grid: of whole cells, whose number may be free."""
    sides = list(zip(maps.shape[2:], output_size, strict=True))
    if any(side % cells for side, cells in sides):
        return F.adaptive_max_pool2d(maps, output_size, return_indices)
    return F.max_pool2d(maps, [side // cells for side, cells in sides])


def _shares(length: int, cells: int, like: Tensor) -> Tensor:
    """Return the weights of the pixels of a line in the mean of each cell, `(cells, length)`."""
    cell, pixel = torch.arange(cells)[:, None], torch.arange(length)
    first, last = cell * length // cells, -(-(cell + 1) * length // cells)
    inside = (pixel >= first) & (pixel < last)
    return (inside / (last - first)).to(like)


def solve(matrix: Tensor, target: Tensor) -> Tensor:
    """Solve positive definite systems by elimination, which needs no pivots there."""
    rows = torch.cat([matrix, target[..., None]], dim=-1)  # (B, D, D + 1)
    others = 1 - torch.eye(matrix.shape[-1])[..., None]  # (D, D, 1)
    for step in range(matrix.shape[-1]):
        pivot = rows[:, step : step + 1]
        share = pivot / pivot[..., step : step + 1]
        rows = rows - others[step] * rows[:, :, step : step + 1] * share
    return rows[..., -1] / rows[..., :-1].diagonal(dim1=-2, dim2=-1)


class Replaced(TorchFunctionMode):
    """Context in which the functions of this module take the place of PyTorch's."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Call a function of PyTorch, or its replacement."""
        return _REPLACEMENTS.get(func, func)(*args, **(kwargs or {}))


_REPLACEMENTS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.adaptive_avg_pool2d: adaptive_avg_pool2d,
    F.adaptive_max_pool2d: adaptive_max_pool2d,
    torch.linalg.solve: solve,
}
