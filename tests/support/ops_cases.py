"""Random calls of attend and assign, and what their results and gradients are compared by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from probseg.ops import Assigned, Attended, assign, attend
from probseg.ops.priors import DistancePrior

PRIMITIVES = {"attend": attend, "assign": assign}
PRIORS = {
    "no prior": (),
    "units": ("unit", "heads"),
    "pairs": ("pair", "rows"),
    "units and pairs": ("heads", "full"),
    "distance": ("distance", "unit"),
}
CPU_BACKENDS = ("reference", "chunked", "sdpa", "auto")

KINDS = ("unit", "constant", "pair", "heads", "one head", "full", "rows", "distance")
"""Log priors by their shapes, see `Case.prior_shape`; "distance" is computed pair by pair."""

HIDDEN = ("nothing", "some", "lines", "everything")
"""What the first tensor of a prior hides; "lines" are a query and a key, as far as it has them."""


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Draw normal numbers, the same ones in each dtype up to its rounding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


class Derived(NamedTuple):
    """Both outputs of a primitive, and the gradients of the tensors that it was given."""

    outputs: Attended | Assigned
    gradients: dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A call of a primitive, drawn from a seed."""

    primitive: str  # "attend" or "assign"
    sizes: tuple[int, int, int, int] = (1, 2, 4, 5)  # (B, G, N, M)
    channels: int = 3  # D
    payload_channels: int | None = 2  # V; None hands over the keys or the queries themselves
    kinds: tuple[str, ...] = ()  # of the terms of the prior, at most one of each
    hidden: str = "nothing"  # what the first tensor of the prior hides
    length_dims: int = 0  # of the length of a `DistancePrior`
    scale: float = 0.7
    size: float = 1.0  # factor of queries and keys
    seed: int = 0

    def prior_shape(self, kind: str) -> tuple[int, ...]:
        """Shape of a term that is a tensor."""
        batch, heads, n, m = self.sizes
        return {
            "unit": (m,),
            "constant": (1,),
            "pair": (n, m),
            "heads": (batch, heads, m),
            "one head": (batch, 1, m),
            "full": (batch, heads, n, m),
            "rows": (batch, 1, n, 1),
        }[kind]

    def tensors(self, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
        """Draw all tensors of the call."""
        batch, heads, n, m = self.sizes
        tensors = {
            "queries": self.size * draw(batch, heads, n, self.channels, seed=self.seed),
            "keys": self.size * draw(batch, heads, m, self.channels, seed=self.seed + 1),
        }
        if self.payload_channels is not None:
            rows = m if self.primitive == "attend" else n
            tensors["payload"] = draw(batch, heads, rows, self.payload_channels, seed=self.seed + 2)
        hidden = self.hidden
        for position, kind in enumerate(self.kinds):
            if kind == "distance":
                shape = (batch, heads)[2 - self.length_dims :]
                tensors["query_positions"] = 3 * draw(n, 2, seed=self.seed + 3)
                tensors["key_positions"] = 3 * draw(m, 2, seed=self.seed + 4)
                tensors["length"] = draw(*shape, seed=self.seed + 5).exp()
                continue
            prior = draw(*self.prior_shape(kind), seed=self.seed + 6 + position)
            tensors[kind], hidden = _hide(prior, hidden), "nothing"
        return {name: tensor.to(dtype) for name, tensor in tensors.items()}

    def prior(self, tensors: Mapping[str, Tensor]) -> Any:
        """Build the argument `log_prior`."""
        terms = [
            DistancePrior(tensors["query_positions"], tensors["key_positions"], tensors["length"])
            if kind == "distance"
            else tensors[kind]
            for kind in self.kinds
        ]
        if len(terms) == 1 and self.seed % 2:
            return terms[0]
        return tuple(terms) if terms else None

    def call(self, backend: str, tensors: Mapping[str, Tensor]) -> Attended | Assigned:
        """Call the primitive."""
        alias = "keys" if self.primitive == "attend" else "queries"
        return PRIMITIVES[self.primitive](
            tensors["queries"],
            tensors["keys"],
            tensors.get("payload", tensors[alias]),
            log_prior=self.prior(tensors),
            scale=self.scale,
            backend=backend,
        )

    def derive(
        self,
        backend: str,
        tensors: Mapping[str, Tensor],
        *,
        constant: Iterable[str] = (),
        call: Callable[..., Attended | Assigned] | None = None,
    ) -> Derived:
        """Call and differentiate, with random weights of the outputs; positions are constant."""
        given = {*constant, "query_positions", "key_positions"}
        wanted = [name for name in tensors if name not in given]
        leaves = {
            name: tensor.detach().requires_grad_(name in wanted) for name, tensor in tensors.items()
        }
        outputs = (call or self.call)(backend, leaves)
        tracked = [
            (output, weights)
            for output, weights in zip(outputs, self.upstream(outputs), strict=True)
            if output.requires_grad
        ]
        gradients = torch.autograd.grad(
            [output for output, _ in tracked],
            [leaves[name] for name in wanted],
            [weights for _, weights in tracked],
            allow_unused=True,
            materialize_grads=True,
        )
        return Derived(outputs, dict(zip(wanted, gradients, strict=True)))

    def upstream(self, outputs: Attended | Assigned) -> list[Tensor]:
        """Draw the gradients of the outputs; nothing flows back from a log of -inf."""
        weights = [
            draw(*output.shape, seed=self.seed + 20 + index, dtype=output.dtype)
            for index, output in enumerate(outputs)
        ]
        weights[1] = weights[1].masked_fill(outputs[1] == -inf, 0.0)
        return weights

    def units_of_error(self, tensors: Mapping[str, Tensor]) -> dict[str, float]:
        """How large the numbers are whose sum a gradient is; they may cancel."""
        _, _, n, m = self.sizes
        largest = {name: _largest(tensor) for name, tensor in tensors.items()}
        payload = largest.get("payload", max(largest["queries"], largest["keys"]))
        of_logits = 4.0 * (1.0 + payload) * max(n, m, 1)
        units = dict.fromkeys(tensors, of_logits)
        # With an aliased payload, its own gradient comes on top.
        own = 4.0 * max(n, m, 1)
        units["queries"] = of_logits * abs(self.scale) * largest["keys"] + own
        units["keys"] = of_logits * abs(self.scale) * largest["queries"] + own
        units["payload"] = own
        if "length" in tensors:
            nearest = float(tensors["length"].detach().min())
            distance = 2 * (largest["query_positions"] + largest["key_positions"])
            units["length"] = of_logits * max(n, 1) * distance / nearest**2
        return units

    def rounding(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> float:
        """Relative error of an exponential of a logit that is computed in a dtype."""
        products = abs(self.scale) * tensors["queries"].abs() @ tensors["keys"].abs().mT
        size = 1.0 + _largest(products)
        size += sum(_largest(tensors[kind]) for kind in self.kinds if kind != "distance")
        if "length" in tensors:
            distance = 2 * (_largest(tensors["query_positions"]) + 9.0)
            size += distance / float(tensors["length"].min())
        return 160.0 * torch.finfo(dtype).eps * size


@st.composite
def cases(draw_from: st.DrawFn, *, empty: bool = False) -> Case:
    """Cases of all shapes and priors; if `empty`, also without queries."""
    sizes = (
        draw_from(st.integers(1, 2)),
        draw_from(st.integers(1, 2)),
        draw_from(st.integers(0 if empty else 1, 9)),
        draw_from(st.integers(1, 9)),
    )
    return Case(
        draw_from(st.sampled_from(sorted(PRIMITIVES))),
        sizes,
        draw_from(st.integers(1, 5)),
        draw_from(st.none() | st.integers(1, 5)),
        tuple(draw_from(st.lists(st.sampled_from(KINDS), max_size=3, unique=True))),
        draw_from(st.sampled_from(HIDDEN)),
        draw_from(st.integers(0, 2)),
        draw_from(st.sampled_from((1.0, 0.3, -0.7, 0.0))),
        draw_from(st.sampled_from((1e-3, 0.3, 1.0, 5.0, 30.0))),
        draw_from(st.integers(0, 999)),
    )


def served(case: Case, backend: str) -> Case:
    """Swap the priors that a backend cannot serve for ones that it can."""
    if backend != "sdpa" or "distance" not in case.kinds:
        return case
    kinds = [kind for kind in case.kinds if kind != "pair"]
    return replace(case, kinds=tuple("pair" if kind == "distance" else kind for kind in kinds))


def without_gradient(case: Case, backend: str) -> tuple[str, ...]:
    """Name the tensors whose gradients a backend cannot give."""
    if backend != "sdpa" or case.sizes[2] == 1:  # with one query every prior is one of the units
        return ()
    return tuple(kind for kind in case.kinds if kind in ("pair", "full", "rows"))


def assert_same(
    got: Derived, wanted: Derived, case: Case, tensors: Mapping[str, Tensor], error: float
) -> None:
    """Compare with a result in float64; `error` is that of an exponential of a logit."""
    payload = _largest(tensors.get("payload", wanted.outputs[0]))
    for output, expected, unit in zip(got.outputs, wanted.outputs, (payload, 1.0), strict=True):
        torch.testing.assert_close(output.double(), expected, rtol=error, atol=error * unit)
    units = case.units_of_error(tensors)
    assert got.gradients.keys() <= wanted.gradients.keys()
    for name, gradient in got.gradients.items():
        torch.testing.assert_close(
            gradient.double(),
            wanted.gradients[name],
            rtol=error,
            atol=error * units[name],
            msg=lambda text, name=name: f"gradient of {name}: {text}",
        )


@contextmanager
def tiles_of(size: int) -> Any:
    """Set the number of pairs in a tile, and let it have any number of rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probseg.ops.backends.interface.ROWS", 1)
        patch.setattr("probseg.ops.backends.interface.TILE", size)
        yield


def _hide(prior: Tensor, hidden: str) -> Tensor:
    if hidden == "some":
        return prior.masked_fill(prior > 0.7, -inf)
    if hidden == "everything":
        return torch.full_like(prior, -inf)
    if hidden == "lines":
        prior = prior.clone()
        if prior.shape[-1] > 1:
            prior[..., prior.shape[-1] // 2] = -inf
        if prior.ndim in (2, 4) and prior.shape[-2] > 1:
            prior[..., prior.shape[-2] // 2, :] = -inf
    return prior


def _largest(tensor: Tensor) -> float:
    finite = tensor.detach()[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def derive(case: Case, backend: str, tensors: dict[str, Tensor]) -> Derived:
    """Call a backend, and differentiate all that it can."""
    return case.derive(backend, tensors, constant=without_gradient(case, backend))


def double(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.double() for name, tensor in tensors.items()}


def assert_identical(got: Derived, wanted: Derived) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)
