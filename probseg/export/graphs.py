"""A network as graphs of tensors of a fixed size, traced by `torch.export`.

Networks whose prompts enter at the head are two graphs, "encode" for an image and "click" for its
prompts; the others are one, "whole", which takes both. EM iterations are unrolled.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from probseg.errors import UsageError
from probseg.export.operators import Replaced
from probseg.heads.base import DecoderMaps, Units
from probseg.models import Encoded, Segmenter
from probseg.types import Prompts

COARSER = "coarser_"
"""Beginning of the names of the decoder's further levels, finest first."""


class Graph(NamedTuple):
    """A traced part of a network.

    Args:
        program: Of positional tensors. The number of clicks is free, but at least 2.
        inputs: An example of each input by name.
        outputs: An example of each output by name.
    """

    program: ExportedProgram
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


class Encode(nn.Module):
    """The part of the network that needs no prompts.

    Args:
        model: Network whose prompts enter at the head.
    """

    def __init__(self, model: Segmenter) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Return the features of a normalised image `(1, 3, S, S)`; see `named_features`."""
        return tuple(named_features(self.model.features(image)).values())


class Click(nn.Module):
    """The logits for all prompts on an image.

    Args:
        model: Any network.
        names: Of the inputs.
    """

    def __init__(self, model: Segmenter, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: Tensor) -> Tensor:
        """Return logits `(1, 1, S, S)`."""
        given = dict(zip(self.names, tensors, strict=True))
        image = given["image"]
        size = (image.shape[2], image.shape[3])
        prompts = Prompts(given["points"], given["labels"], given["box"], given.get("previous"))
        return self.model.raw_logits(
            Encoded(size, size, image, decoder_maps_of(given)), prompts
        ).main


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
def trace(model: Segmenter, side: int) -> dict[str, Graph]:
    """Trace the graphs of a network, in the order in which they run.

    Args:
        model: In evaluation mode, on the CPU.
        side: Height and width `S` of the padded images in pixels, whole cells of the network.

    Raises:
        UsageError: If a part of the network computes on the host.
    """
    if model.refinement is not None:
        msg = (
            f"`model` must have no refinement, which no graph can hold, got a "
            f"{type(model.refinement).__name__}; set model.refinement = None, and export that"
        )
        raise UsageError(msg)
    known = {"image": torch.zeros(1, 3, side, side)}
    features = named_features(model.features(known["image"]))
    graphs, answering = {}, copy.deepcopy(model)
    answering.quality = None
    if features:
        # A program holds all weights of its module, also those that it does not use.
        encoding = copy.deepcopy(model)
        del encoding.head, encoding.quality, answering.backbone, answering.decoder
        graphs["encode"] = _graph(Encode(encoding), known, list(features))
    known |= features
    known |= {
        "points": torch.zeros(1, 3, 2),
        "labels": torch.tensor([[1, 0, -1]]),
        "box": torch.full((1, 4), torch.nan),
    }
    if model.previous_mask:
        known["previous"] = torch.zeros(1, 1, side, side)
    click = Click(answering, list(known))
    graphs["click" if features else "whole"] = _graph(click, known, ["logits"])
    return graphs


def _graph(module: nn.Module, inputs: Mapping[str, Tensor], names: list[str]) -> Graph:
    """Trace a module with these inputs, and with names for its outputs."""
    clicks = Dim("clicks", min=2)  # PyTorch takes a size of 1 for one that never changes
    free = tuple({1: clicks} if name in ("points", "labels") else {} for name in inputs)
    arguments = tuple(inputs.values())
    with Replaced():
        program = torch.export.export(
            module, arguments, dynamic_shapes=(free,) if isinstance(module, Click) else free
        )
    outputs = module(*arguments)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return Graph(program, dict(inputs), dict(zip(names, outputs, strict=True)))
