"""All backends against the float64 reference: results and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from probseg.ops import assign
from probseg.ops.backends import chunked
from probseg.ops.backends.interface import Block, PairwisePrior
from support.ops_cases import (
    CPU_BACKENDS,
    PRIMITIVES,
    Case,
    Derived,
    assert_same,
    cases,
    derive,
    double,
    draw,
    served,
    tiles_of,
    without_gradient,
)
from support.rows import each, pairwise

FAST = ("chunked", "sdpa", "auto")  # those that are not the reference itself


@pytest.mark.parametrize("backend", FAST)
@given(data=st.data())
def test_results_and_gradients_are_those_of_the_reference(backend, data):
    case = served(data.draw(cases(empty=backend != "sdpa")), backend)
    tensors = case.tensors()
    wanted = case.derive("reference", tensors)
    error = case.rounding(tensors, torch.float64)
    assert_same(derive(case, backend, tensors), wanted, case, tensors, error)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@given(data=st.data())
def test_single_precision_loses_what_the_size_of_the_logits_explains(backend, data):
    case = served(data.draw(cases(empty=backend != "sdpa")), backend)
    tensors = case.tensors(torch.float32)
    exact = double(tensors)
    got = derive(case, backend, tensors)
    assert {output.dtype for output in got.outputs} == {torch.float32}
    assert {gradient.dtype for gradient in got.gradients.values()} <= {torch.float32}
    error = case.rounding(tensors, torch.float32)
    assert_same(got, case.derive("reference", exact), case, exact, error)


@pytest.mark.parametrize("tile", [1, 6, 40])
@given(case=cases(empty=True))
def test_tiles_change_nothing(tile, case):
    tensors = case.tensors()
    whole = case.derive("chunked", tensors)
    with tiles_of(tile):
        assert_same(case.derive("chunked", tensors), whole, case, tensors, 1e-12)


@dataclass(frozen=True, eq=False)
class BandPrior(PairwisePrior):
    """Comes in bands of three rows, and does not use all that it holds."""

    table: Tensor
    unused: Tensor
    asked: list[tuple[int, int]]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (1, 1, *self.table.shape)

    @property
    def numbers_per_pair(self) -> int:
        return 2

    @property
    def row_multiple(self) -> int:
        return 3

    def block(self, block: Block) -> Tensor:
        self.asked.append(block.rows.indices(len(self.table))[:2])
        return self.table[block.rows][:, block.columns][None, None]


@each("tile", [1, 40, 80, 1000])
@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_a_prior_is_asked_for_whole_bands_of_rows(primitive, tile):
    case = Case(primitive, (2, 2, 8, 5), kinds=("pair",))
    tensors = case.tensors()
    wanted = case.derive("reference", tensors)
    leaves = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
    unused = draw(3).requires_grad_()
    asked: list[tuple[int, int]] = []
    with tiles_of(tile):
        outputs = PRIMITIVES[primitive](
            leaves["queries"],
            leaves["keys"],
            leaves["payload"],
            log_prior=BandPrior(leaves["pair"], unused, asked),
            scale=case.scale,
            backend="chunked",
        )
        gradients = torch.autograd.grad(
            outputs,
            [*leaves.values(), unused],
            case.upstream(outputs),
            allow_unused=True,
            materialize_grads=True,
        )
    assert (gradients[-1] == 0).all()
    got = Derived(outputs, dict(zip(leaves, gradients, strict=False)))
    assert_same(got, wanted, case, tensors, 1e-13)
    # Bands are cut, if at all, at multiples of three; half of the tile is left for other numbers.
    assert all(start % 3 == 0 and (stop % 3 == 0 or stop == 8) for start, stop in asked)
    assert max(stop - start for start, stop in asked) == {1: 3, 40: 3, 80: 8, 1000: 8}[tile]


@pytest.mark.parametrize("primitive", PRIMITIVES)
@pytest.mark.parametrize("backend", ["chunked", "sdpa"])
def test_a_second_derivative_is_refused_and_the_way_out_named(backend, primitive):
    case = Case(primitive)
    tensors = case.tensors()
    queries = tensors["queries"].requires_grad_()
    outputs = case.call(backend, tensors)
    with pytest.raises(RuntimeError, match=f"'{backend}'.*twice.*backend='reference'"):
        torch.autograd.grad(outputs[0].sum(), queries, create_graph=True)


@pytest.mark.parametrize(
    ("which", "backend", "primitive"), pairwise([0, 1], CPU_BACKENDS, PRIMITIVES)
)
def test_each_output_has_a_gradient_of_its_own(which, backend, primitive):
    case = Case(primitive, kinds=("heads",), hidden="some", seed=3)
    tensors = case.tensors()

    def gradients(name: str) -> list[Tensor]:
        leaves = {n: tensor.clone().requires_grad_() for n, tensor in tensors.items()}
        output = case.call(name, leaves)[which]
        finite = output.where(output > -inf, 0.0)
        weights = draw(*output.shape, seed=9)
        return list(
            torch.autograd.grad(
                (finite * weights).sum(),
                list(leaves.values()),
                allow_unused=True,
                materialize_grads=True,
            )
        )

    torch.testing.assert_close(gradients(backend), gradients("reference"))


@pytest.mark.parametrize(
    ("backend", "primitive", "scale", "name"),
    pairwise(FAST, PRIMITIVES, [0.7, 0.0], ["queries", "keys", "payload", "unit"]),
)
def test_a_single_tensor_may_ask_for_its_gradient(backend, primitive, scale, name):
    case = Case(primitive, kinds=("unit",), scale=scale)
    tensors = case.tensors()

    def gradient(backend: str) -> Tensor:
        leaf = tensors[name].clone().requires_grad_()
        outputs = case.call(backend, {**tensors, name: leaf})
        weights = case.upstream(outputs)
        total = sum((output * w).sum() for output, w in zip(outputs, weights, strict=True))
        return torch.autograd.grad(total, leaf)[0]

    got = gradient(backend)
    torch.testing.assert_close(got, gradient("reference"))


@pytest.mark.parametrize(
    ("backend", "primitive", "kinds"),
    pairwise(CPU_BACKENDS, PRIMITIVES, [("unit",), ("pair",), ("heads", "rows")]),
)
def test_what_sees_nothing_takes_no_gradient_whatever_flows_back(backend, primitive, kinds):
    case = Case(primitive, kinds=kinds, hidden="lines", seed=4)
    tensors = case.tensors()

    def gradients(name: str, dead: float) -> dict[str, Tensor]:
        constant = without_gradient(case, backend)
        leaves = {n: t.clone().requires_grad_(n not in constant) for n, t in tensors.items()}
        outputs = case.call(name, leaves)
        weights = case.upstream(outputs)
        weights[1] = weights[1].masked_fill(outputs[1] == -inf, dead)
        wanted = [n for n in leaves if n not in constant]
        found = torch.autograd.grad(outputs, [leaves[n] for n in wanted], weights)
        return dict(zip(wanted, found, strict=True))

    torch.testing.assert_close(gradients(backend, 5.0), gradients("reference", 0.0))


@pytest.mark.parametrize("primitive", PRIMITIVES)
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a_graph_can_be_walked_again(backend, primitive):
    case = Case(primitive, kinds=("unit",))
    leaves = {name: tensor.requires_grad_() for name, tensor in case.tensors().items()}
    outputs = case.call(backend, leaves)
    walks = [
        torch.autograd.grad(
            outputs, list(leaves.values()), case.upstream(outputs), retain_graph=True
        )
        for _ in range(2)
    ]
    torch.testing.assert_close(walks[0], walks[1], rtol=0, atol=0)


FAR = {"one": [4], "a third": [1, 4, 7]}


@each("far", FAR)
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_far_keys_keep_their_means_though_their_masses_underflow(backend, far):
    """A Gaussian mixture whose far components have masses below 1e-200."""
    queries, keys = draw(1, 2, 50, 4), draw(1, 2, 9, 4, seed=1)
    directions = draw(len(FAR[far]), 4, seed=2)
    keys[:, :, FAR[far]] = 40 * directions / directions.norm(dim=-1, keepdim=True)
    tensors = {"queries": queries, "keys": keys, "payload": draw(1, 2, 50, 3, seed=3)}
    tensors["heads"] = -keys.square().sum(-1) / 2
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    case = Case("assign", (1, 2, 50, 9), 4, 3, ("heads",), scale=1.0)
    wanted = case.derive("reference", double(tensors))
    assert (wanted.outputs.log_mass[:, :, FAR[far]] < -200).all()
    got = derive(case, backend, tensors)
    for output, expected in zip(got.outputs, wanted.outputs, strict=True):
        torch.testing.assert_close(output.double(), expected, rtol=1e-4, atol=1e-4)
    for name, gradient in got.gradients.items():
        assert gradient.isfinite().all()
        expected = wanted.gradients[name]
        error = 1e-3 * float(expected.abs().max())
        torch.testing.assert_close(gradient.double(), expected, rtol=0, atol=error)
    # The means of the far keys are themselves not small: a lost one would be zero.
    assert (wanted.outputs.means[:, :, FAR[far]].norm(dim=-1) > 0.1).all()


def test_keys_that_a_mask_of_pairs_hides_are_not_recovered(monkeypatch):
    queries, keys, values = (
        torch.randn(6, 1, 5, 4),
        torch.randn(6, 1, 7, 4),
        torch.randn(6, 1, 5, 2),
    )
    mask = torch.zeros(6, 1, 5, 7)
    mask[:4] = -inf  # as in lines without a fixed token
    mask[4:, :, :, 5:] = -inf
    expected = assign(queries, keys, values, log_prior=mask, backend="reference")
    monkeypatch.setattr(chunked, "_in_the_log", lambda *_: pytest.fail("nothing to recover"))
    found = assign(queries, keys, values, log_prior=mask, backend="chunked")
    torch.testing.assert_close(found.log_mass, expected.log_mass)
    seen = expected.log_mass > -inf
    torch.testing.assert_close(found.means[seen], expected.means[seen])
