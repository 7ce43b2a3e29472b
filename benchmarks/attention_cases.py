"""The cases of attention.py, and who computes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from probseg.ops.axial import axial_attention, span_mask, to_lines
from probseg.ops.probabilistic import probabilistic_attention
from probseg.ops.settings import InferenceSettings
from probseg.ops.updates import KeyAdaptation, ValuePropagation

CHANNELS = 64
WIDTH = 256
"""Of the map of the axial cases, whose lines are its rows."""

WARM_UP = 768
"""Tokens of the warm-up: enough for "auto" to choose the backend of the larger problems."""

_SPAN = 64
_CLICKS = 20
_SIZES = (1024, 4096, 16384, 65536)
_ADAPTATION = KeyAdaptation(iterations=1, prior_precision=0.0)
_PROPAGATION = ValuePropagation(iterations=5, prior_precision=1.0)
_BETA = 0.1
_VALUE_OPTIONS: dict[str, Any] = {"value_precision": _BETA, "log_prior": "key_magnitude"}

Forward = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """What is computed.

    Args:
        name: For the command line and the tables.
        options: Arguments of `probabilistic_attention`.
        sizes: Numbers of tokens.
        clicks: Number of fixed values.
        spread: Standard deviation of queries and keys.
        axial: Whether the tokens are a map of width 256 whose lines are mixtures of their own.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    sizes: tuple[int, ...] = _SIZES
    clicks: int = 0
    spread: float = 1.0
    axial: bool = False

    @property
    def contestants(self) -> tuple[str, ...]:
        """Who computes the case."""
        if self.name == "standard":
            return ("pytorch",)
        return ("probseg", "materialised")

    def pairs(self, tokens: int) -> int:
        """Number of logits."""
        return tokens * (WIDTH if self.axial else tokens)


CASES = {
    case.name: case
    for case in (
        Case("standard"),
        Case("probabilistic"),
        Case("key adaptation", {"key_adaptation": _ADAPTATION}),
        Case(
            "value propagation",
            {**_VALUE_OPTIONS, "value_propagation": _PROPAGATION},
            clicks=_CLICKS,
        ),
        Case(
            "everything",
            {**_VALUE_OPTIONS, "key_adaptation": _ADAPTATION, "value_propagation": _PROPAGATION},
            clicks=_CLICKS,
        ),
        Case("axial", sizes=(65536,), axial=True),
        Case("axial, key adaptation", {"key_adaptation": _ADAPTATION}, sizes=(65536,), axial=True),
        # Keys that no query is near to: their masses underflow float32.
        Case(
            "key adaptation, far keys",
            {"key_adaptation": _ADAPTATION, "log_prior": "uniform"},
            sizes=(4096, 16384),
            spread=8.0,
        ),
    )
}


class Problem(NamedTuple):
    """A contestant and the yardstick with what they are given.

    Args:
        contestant: Computes the case from `inputs`.
        inputs: Queries, keys and values.
        yardstick: Fused attention of PyTorch, from `yardstick_inputs`.
        yardstick_inputs: The same numbers as tokens.
        reference: The case with all its logits written out, from `inputs`.
    """

    contestant: Forward
    inputs: tuple[Tensor, Tensor, Tensor]
    yardstick: Forward
    yardstick_inputs: tuple[Tensor, Tensor, Tensor]
    reference: Forward


def build(
    case: Case, contestant: str, tokens: int, device: str, dtype: torch.dtype, seed: int
) -> Problem:
    """Draw the inputs of a case, the same for all contestants, and set up who computes it."""
    generator = torch.Generator().manual_seed(seed)
    shape = (1, 1, CHANNELS, tokens // WIDTH, WIDTH) if case.axial else (1, 1, tokens, CHANNELS)

    def draw(spread: float) -> Tensor:
        return (spread * torch.randn(shape, generator=generator)).to(device, dtype)

    inputs = (draw(case.spread), draw(case.spread), draw(1.0))
    clicks: dict[str, Tensor] = {}
    if case.clicks:
        mask = torch.zeros(1, tokens, dtype=torch.bool)
        mask[0, torch.randperm(tokens, generator=generator)[: case.clicks]] = True
        clicks = {"fixed_values": draw(1.0), "fixed_mask": mask.to(device)}

    def ours(backend: str) -> Forward:
        def forward(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            if case.axial:
                settings = InferenceSettings(backend=backend, **case.options)
                return axial_attention(
                    queries, keys, values, settings, axis="width", span=_SPAN, **clicks
                )
            return probabilistic_attention(
                queries, keys, values, backend=backend, **case.options, **clicks
            ).values

        return forward

    # A float mask, because the fused kernel of the CPU would make one of a boolean mask each time.
    band = span_mask(WIDTH, _SPAN).to(device, dtype) if case.axial else None

    def yardstick(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=band)

    contestants = {
        "pytorch": yardstick,
        "probseg": ours("auto"),
        "materialised": ours("reference"),
    }
    lines = tuple(to_lines(maps, "width").contiguous() for maps in inputs) if case.axial else inputs
    return Problem(contestants[contestant], inputs, yardstick, lines, ours("reference"))
