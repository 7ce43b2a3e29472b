"""All backends against the float64 reference: results and gradients."""

from dataclasses import dataclass
from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from probseg.errors import UnknownNameError
from probseg.lab.gauges import timed_with_peak
from probseg.ops import Assigned, Attended, assign, attend
from probseg.ops.attention import BackendError
from probseg.ops.backends import chunked
from probseg.ops.backends.interface import Block, PairwisePrior
from probseg.ops.priors import DistancePrior
from support.ops_cases import (
    CPU_BACKENDS,
    PRIMITIVES,
    PRIORS,
    Case,
    Derived,
    assert_identical,
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
    ("backend", "primitive", "scale", "which", "names"),
    pairwise(
        FAST, PRIMITIVES, [0.7, 0.0], [[0], [1]], ["queries", "keys", "payload", "unit", "all"]
    ),
)
def test_any_output_and_tensor_may_take_part(backend, primitive, scale, which, names):
    case = Case(primitive, kinds=("unit",), hidden="some", scale=scale, seed=3)
    tensors = case.tensors()
    names = list(tensors) if names == "all" else [names]
    which = [0] if names == ["payload"] else which  # no log evidence depends on it

    def gradients(backend: str) -> tuple[Tensor, ...]:
        leaves = {n: t.clone().requires_grad_(n in names) for n, t in tensors.items()}
        outputs = case.call(backend, leaves)
        weights = case.upstream(outputs)
        return torch.autograd.grad(
            [outputs[i] for i in which],
            [leaves[n] for n in names],
            [weights[i] for i in which],
            allow_unused=True,
            materialize_grads=True,
        )

    torch.testing.assert_close(gradients(backend), gradients("reference"))


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


def transposed(tensor: Tensor) -> Tensor:
    return tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor


def strided(tensor: Tensor) -> Tensor:
    wide = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1]), torch.nan)
    wide[..., ::2] = tensor
    return wide[..., ::2]


def expanded(tensor: Tensor) -> Tensor:
    return tensor if tensor.ndim < 4 else tensor[:, :1].expand(tensor.shape)


@pytest.mark.parametrize(
    ("backend", "primitive", "layout", "kinds"),
    pairwise(
        CPU_BACKENDS, PRIMITIVES, [transposed, strided, expanded], [(), ("pair", "heads", "full")]
    ),
)
def test_the_layout_in_memory_changes_nothing(backend, primitive, layout, kinds):
    case = Case(primitive, (2, 2, 5, 6), 3, 3, kinds, "lines")
    views = {name: layout(tensor) for name, tensor in case.tensors().items()}
    assert not views["queries"].is_contiguous()
    dense = {name: view.contiguous() for name, view in views.items()}
    with tiles_of(12):
        got, wanted = derive(case, backend, views), derive(case, backend, dense)
    assert_same(got, wanted, case, dense, 1e-13)


@pytest.mark.parametrize(
    ("backend", "primitive", "prior"), pairwise(CPU_BACKENDS, PRIMITIVES, PRIORS)
)
def test_arguments_stay_as_they_are(backend, primitive, prior):
    case = served(Case(primitive, kinds=PRIORS[prior], hidden="lines"), backend)
    tensors = case.tensors()
    versions = {name: tensor._version for name, tensor in tensors.items()}
    derived = derive(case, backend, tensors)
    torch.testing.assert_close(tensors, case.tensors(), rtol=0, atol=0)
    assert {name: tensor._version for name, tensor in tensors.items()} == versions
    # Nor does the backward pass overwrite the results or what flows back.
    outputs = [output.detach().clone() for output in derived.outputs]
    again = derive(case, backend, tensors)
    torch.testing.assert_close([o.detach() for o in again.outputs], outputs, rtol=0, atol=0)


@each(("dtype", "bound"), [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("primitive", PRIMITIVES)
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_half_precision_rounds_only_what_comes_in_and_out(backend, primitive, dtype, bound):
    case = Case(primitive, (1, 2, 64, 48), 16, 8, ("unit",), "some", scale=0.25, size=2.0)
    tensors = case.tensors(dtype)
    got = derive(case, backend, tensors)
    wanted = case.derive("reference", double(tensors))
    assert got.outputs[0].dtype == dtype
    assert got.outputs[1].dtype == torch.float32
    torch.testing.assert_close(got.outputs[1].double(), wanted.outputs[1], rtol=0, atol=1e-4)
    assert {gradient.dtype for gradient in got.gradients.values()} == {dtype}
    for name, gradient in got.gradients.items():
        expected = wanted.gradients[name]
        # The weights of the first output were drawn in half precision.
        assert (gradient.double() - expected).norm() < 2 * bound * expected.norm()
    error = (got.outputs[0].double() - wanted.outputs[0]).norm() / wanted.outputs[0].norm()
    assert error < bound


# The plain products of "reference" are differentiated under the autocast of where backward() is
# called, as all of PyTorch's are.
@pytest.mark.parametrize(
    ("primitive", "prior", "backend", "around"),
    pairwise(PRIMITIVES, PRIORS, CPU_BACKENDS, ["forward", "both"]),
)
def test_autocast_changes_no_bit(backend, primitive, prior, around):
    if backend == "reference":
        around = "forward"
    case = served(Case(primitive, (1, 2, 8, 9), 8, 4, PRIORS[prior], "some"), backend)
    tensors = case.tensors(torch.float32)

    def call(name: str, leaves: dict[str, Tensor]) -> Attended | Assigned:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return case.call(name, leaves)

    constant = without_gradient(case, backend)
    plain = case.derive(backend, tensors, constant=constant)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=around == "both"):
        assert_identical(case.derive(backend, tensors, constant=constant, call=call), plain)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_inference_mode_gives_the_same(backend):
    case = Case("assign", kinds=("unit", "pair"), hidden="lines")
    tensors = case.tensors()
    wanted = case.call("reference", tensors)
    with torch.inference_mode():
        torch.testing.assert_close(case.call(backend, tensors), wanted)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@each("dtype", [torch.float64, torch.bfloat16])
def test_a_prior_of_another_dtype_gets_its_gradient_in_its_own(backend, dtype):
    case = Case("attend", kinds=("unit",))
    tensors = case.tensors(torch.float32)
    tensors["unit"] = tensors["unit"].to(dtype)
    got = derive(case, backend, tensors)
    wanted = case.derive("reference", double(tensors))
    assert got.outputs.values.dtype == torch.float32
    assert got.gradients["unit"].dtype == dtype
    error = 1e-2 if dtype == torch.bfloat16 else 1e-5
    assert_same(got, wanted, case, double(tensors), error)


@pytest.mark.parametrize(
    ("backend", "whole"),
    [
        ("reference", True),
        ("chunked", False),
        ("sdpa", True),
        pytest.param("auto", False, marks=pytest.mark.slow),  # one of the others
    ],
)
def test_compiled_calls_give_the_same(backend, whole):
    def both(queries: Tensor, keys: Tensor, prior: Tensor) -> tuple[Tensor, ...]:
        means, log_mass = assign(queries, keys, queries, log_prior=prior, backend=backend)
        attended, evidence = attend(queries, means, keys, log_prior=log_mass, backend=backend)
        return means, log_mass, attended, evidence

    def derived(function) -> list[Tensor]:
        leaves = [draw(1, 2, 5, 3), draw(1, 2, 4, 3, seed=1), draw(4, seed=2)]
        for leaf in leaves:
            leaf.requires_grad_()
        outputs = function(*leaves)
        weights = [draw(*output.shape, seed=3) for output in outputs]
        return [*outputs, *torch.autograd.grad(outputs, leaves, weights)]

    torch.compiler.reset()
    compiled = torch.compile(both, backend="aot_eager", fullgraph=whole)
    torch.testing.assert_close(derived(compiled), derived(both), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", ["chunked", "sdpa"])
def test_memory_does_not_hold_all_pairs(backend, monkeypatch):
    monkeypatch.setattr("probseg.ops.backends.interface.TILE", 2**18)

    def run(n: int) -> None:
        for primitive in (attend, assign):
            queries, keys, payload = (
                torch.randn(1, 1, n, channels, requires_grad=True) for channels in (32, 32, 40)
            )
            first, second = primitive(queries, keys, payload, scale=0.1, backend=backend)
            (first.sum() + second.sum()).backward()

    run(64)
    _, peak = timed_with_peak(lambda: run(3072), "cpu")
    # All pairs would take 36 MiB; the reference takes that six times.
    assert peak is None or peak < 36


def test_sdpa_names_what_it_cannot_do_and_who_can():
    q, k = draw(1, 1, 3, 2), draw(1, 1, 4, 2, seed=1)
    pairs = draw(3, 4, seed=2).requires_grad_()
    distances = DistancePrior(draw(3, 2), draw(4, 2, seed=1), torch.tensor(2.0))
    able = r"choose one of \['reference', 'chunked'.*\], or 'auto'"
    for primitive, payload in ((attend, k), (assign, q)):
        named = f"`backend` 'sdpa' cannot serve this call of {primitive.__name__}"
        with pytest.raises(BackendError, match=f"{named}.*gradient.*prior of pairs; {able}"):
            primitive(q, k, payload, log_prior=pairs, backend="sdpa")
        with pytest.raises(BackendError, match=f"{named}.*pairs of a DistancePrior; {able}"):
            primitive(q, k, payload, log_prior=distances, backend="sdpa")
        with pytest.raises(BackendError, match=f"{named}.*empty.*{able}"):
            primitive(q[:, :, :0], k, payload[:, :, : 4 if payload is k else 0], backend="sdpa")
        with torch.no_grad():  # nobody will ask for the gradient
            got = primitive(q, k, payload, log_prior=pairs, backend="sdpa")
            torch.testing.assert_close(got, primitive(q, k, payload, log_prior=pairs))


@pytest.mark.parametrize("primitive", PRIMITIVES.values(), ids=PRIMITIVES)
def test_unknown_backends_are_named_with_the_known_ones(primitive):
    q = draw(1, 1, 3, 2)
    with pytest.raises(UnknownNameError, match=r"unknown backend 'referense'.*'reference'"):
        primitive(q, q, q, backend="referense")
    with pytest.raises(UnknownNameError, match=r"unknown backend 'best'.*'auto'.*'sdpa'"):
        primitive(q, q, q, backend="best")
