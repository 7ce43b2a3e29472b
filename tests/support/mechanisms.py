"""Random calls of probabilistic_attention with all that it can do at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from math import inf
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from probseg.ops import (
    DirichletPrior,
    DistancePrior,
    GammaPrior,
    KeyAdaptation,
    ProbabilisticAttention,
    ValuePropagation,
    probabilistic_attention,
)
from support.ops_cases import draw

NAMED = ("magnitude", "key_magnitude", "uniform")
PAIRWISE = ("pair", "full", "distance", "several")
PRIORS = (*NAMED, "unit", "heads", *PAIRWISE)
PRECISIONS = ("float", "scalar", "unit", "heads")
FIXED = ("ragged", "none", "all", "one")


def problem(b: int = 2, g: int = 2, n: int = 6, m: int = 6, d: int = 3, v: int = 2) -> list[Tensor]:
    """Draw queries, keys and values."""
    return [draw(b, g, n, d), draw(b, g, m, d, seed=1), draw(b, g, m, v, seed=2)]


def mapped(item: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to the tensors of a call that may have gradients, however deep they are."""
    if isinstance(item, Tensor):
        return function(item) if item.is_floating_point() else item
    if isinstance(item, dict):
        return {name: mapped(value, function) for name, value in item.items()}
    if isinstance(item, tuple):
        return tuple(mapped(value, function) for value in item)
    if isinstance(item, DistancePrior):  # its positions are constants
        return replace(item, length=function(item.length))
    if is_dataclass(item):
        return replace(
            item, **{f.name: mapped(getattr(item, f.name), function) for f in fields(item)}
        )
    return item


def tensors_of(arguments: dict[str, Any]) -> list[Tensor]:
    """List the tensors of a call in the order of `mapped`."""
    found: list[Tensor] = []
    mapped(arguments, lambda tensor: found.append(tensor) or tensor)
    return found


def with_tensors(arguments: dict[str, Any], tensors: list[Tensor] | tuple[Tensor, ...]) -> Any:
    """Replace the tensors of a call."""
    remaining = iter(tensors)
    return mapped(arguments, lambda _: next(remaining))


def results(result: ProbabilisticAttention) -> dict[str, Tensor]:
    """The outputs that are tensors, without those that hold a given prior."""
    return {
        name: value
        for name, value in result._asdict().items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }


@dataclass(frozen=True)
class Mechanism:
    """A call, drawn from a seed."""

    sizes: tuple[int, int, int, int] = (2, 2, 5, 4)  # (B, G, N, M)
    channels: tuple[int, int] = (3, 2)  # (D, V)
    prior: str = "uniform"  # one of `PRIORS`
    alpha: str = "float"  # one of `PRECISIONS`, or "default"
    beta: str = "float"  # one of `PRECISIONS`
    theta: float | str = 0.7  # prior precision of the means, "tensor" or a float
    gamma: str = "float"  # "none", "float", "one" (smallest shape of alpha's prior) or "tensor"
    dirichlet: str = "none"  # "none", "float", "one" (the smallest concentration) or "tensor"
    mean: str = "initial"
    iterations: tuple[int, int, int] = (2, 2, 2)  # of keys (-1: none), values (same) and read-out
    fixed: str = "ragged"  # one of `FIXED`
    initial: bool = False
    masked: bool = False
    clamp: bool = False
    seed: int = 0
    given: str = "queries_and_values"

    def call(self, backend: str = "reference", **changes: Any) -> ProbabilisticAttention:
        """Call `probabilistic_attention`."""
        return probabilistic_attention(**{**self.arguments(), **changes}, backend=backend)

    def arguments(self) -> dict[str, Any]:
        """Draw the arguments in float64."""
        b, g, n, m = self.sizes
        d, v = self.channels
        arguments: dict[str, Any] = {
            "queries": self._draw(0, b, g, n, d),
            "keys": self._draw(1, b, g, m, d),
            "values": self._draw(2, b, g, m, v),
            "query_precision": self._precision(self.alpha, 0.8, 3),
            "value_precision": self._precision(self.beta, 0.4, 4),
            "log_prior": self._prior(),
            "value_iterations": self.iterations[2],
        }
        if self.masked:
            hidden = self._draw(5, n, m) > 0.8
            hidden = hidden & hidden.mT if n == m else hidden  # a causal one would be refused
            arguments["log_mask"] = torch.zeros(n, m).double().masked_fill(hidden, -inf)
        if self.initial:
            arguments["initial_values"] = self._draw(6, b, g, n, v)
        theta = 0.5 + self._draw(7, g, 1).square() if self.theta == "tensor" else float(self.theta)
        if self.iterations[0] >= 0:
            gamma = self._gamma(8, 1.0)
            arguments["key_adaptation"] = KeyAdaptation(self.iterations[0], theta, self.mean, gamma)
        if self.iterations[1] >= 0:
            # With a shape of 1, a unit that no fixed token sees has no precision at all.
            arguments["value_propagation"] = ValuePropagation(
                self.iterations[1],
                theta,
                self.mean,
                self._gamma(10, 1.3),
                self._dirichlet(),
                self.given,
            )
            arguments["fixed_values"] = self._draw(13, b, g, n, v)
            arguments["fixed_mask"] = self._fixed_mask()
            arguments["clamp_fixed"] = self.clamp
        return arguments

    def _draw(self, offset: int, *shape: int) -> Tensor:
        return draw(*shape, seed=20 * self.seed + offset)

    def _precision(self, kind: str, size: float, offset: int) -> float | Tensor | None:
        b, g, _, m = self.sizes
        if kind == "default":
            return None
        if kind == "float":
            return size
        shape = {"scalar": (), "unit": (m,), "heads": (b, g, m)}[kind]
        return size * (self._draw(offset, *shape) / 2).exp()

    def _prior(self) -> Any:
        b, g, n, m = self.sizes
        if self.prior in NAMED:
            return self.prior
        shapes = {"unit": (m,), "heads": (b, g, m), "pair": (n, m), "full": (b, g, n, m)}
        if self.prior in shapes:
            return self._draw(14, *shapes[self.prior])
        distance = DistancePrior(
            self._draw(15, n, 2), self._draw(16, m, 2), (self._draw(17, g) / 2).exp()
        )
        return distance if self.prior == "distance" else (distance, self._draw(14, m))

    def _gamma(self, offset: int, smallest: float) -> GammaPrior | None:
        if self.gamma == "none":
            return None
        if self.gamma == "tensor":
            b, g, _, m = self.sizes
            shape = smallest + 0.1 + self._draw(offset, b, g, m).square()
            return GammaPrior(shape, 0.5 + self._draw(offset + 1, b, g, m).square())
        return GammaPrior(smallest if self.gamma == "one" else 2.0, 1.5)

    def _dirichlet(self) -> DirichletPrior | None:
        if self.dirichlet == "none":
            return None
        b, g, _, m = self.sizes
        tensor = 1.1 + self._draw(12, b, g, m).square()
        theta = {"float": 1.5, "one": 1.0, "tensor": tensor}[self.dirichlet]
        return DirichletPrior(theta)

    def _fixed_mask(self) -> Tensor:
        b, _, n, _ = self.sizes
        mask = self._draw(18, b, n) > 0.0
        if self.fixed == "ragged":
            mask[-1] = False  # none at all in the last item, or not even one in the batch
            mask[0, 0] = True
            return mask
        if self.fixed == "one":
            return torch.arange(n).eq(n // 2).expand(b, n)
        return torch.full_like(mask, self.fixed == "all")


@st.composite
def mechanisms(draw_from: st.DrawFn, **given: Any) -> Mechanism:
    """Mechanisms of all kinds, but for the fields that are given."""
    drawn = {
        "sizes": st.tuples(*(st.integers(1, high) for high in (2, 2, 5, 5))),
        "channels": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "prior": st.sampled_from(PRIORS),
        "alpha": st.sampled_from(("default", *PRECISIONS)),
        "beta": st.sampled_from(PRECISIONS),
        "theta": st.sampled_from((0.0, 0.7, "tensor")),
        "gamma": st.sampled_from(("none", "float", "one", "tensor")),
        "dirichlet": st.sampled_from(("none", "float", "one", "tensor")),
        "mean": st.sampled_from(("initial", "previous")),
        "iterations": st.tuples(st.integers(-1, 3), st.integers(-1, 3), st.integers(1, 3)),
        "fixed": st.sampled_from(FIXED),
        "initial": st.booleans(),
        "masked": st.booleans(),
        "clamp": st.booleans(),
        "seed": st.integers(0, 999),
        "given": st.sampled_from(("queries_and_values", "queries")),
    }
    return Mechanism(
        **{name: draw_from(strategy) for name, strategy in drawn.items() if name not in given},
        **given,
    )
