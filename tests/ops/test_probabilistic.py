"""probabilistic_attention: arguments, inference against the equations, numerics."""

import math
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from probseg.errors import UnknownNameError
from probseg.ops import (
    DirichletPrior,
    FactoredPosition,
    GammaPrior,
    KeyAdaptation,
    ProbabilisticAttention,
    ValuePropagation,
    assign,
    probabilistic_attention,
)
from support.mechanisms import mapped, problem
from support.ops_cases import draw
from support.rows import each, pairwise

X = torch.zeros(2, 1, 4, 3)
CLICKS = torch.zeros(2, 4, dtype=torch.bool)
FIXED = {"fixed_values": X, "fixed_mask": CLICKS}
PROPAGATE = {"value_propagation": ValuePropagation(), "value_precision": 0.1}
POSITION = {"position": FactoredPosition(torch.zeros(3, 3), torch.zeros(3, 3))}


def propagating(*arguments, **options):
    return {**PROPAGATE, **FIXED, "value_propagation": ValuePropagation(*arguments, **options)}


def adapting(*arguments, **options):
    return {"key_adaptation": KeyAdaptation(*arguments, **options)}


TOO_LARGE = torch.ones(2, 3, 4)
WRONG = [
    ({"query_precision": 0.0}, ValueError, "query_precision"),
    ({"query_precision": inf}, ValueError, "query_precision"),
    ({"query_precision": torch.ones(3)}, ValueError, r"`query_precision` .*\(2, 1, 4\)"),
    ({"value_precision": -1.0}, ValueError, "value_precision"),
    ({"log_prior": "magnitud"}, UnknownNameError, "log prior.*'magnitude'"),
    ({"log_prior": torch.zeros(3)}, ValueError, "log_prior"),
    ({"log_prior": None}, TypeError, "log_prior"),
    ({"log_mask": torch.zeros(3, 4)}, ValueError, "log_mask"),
    ({"log_mask": torch.ones(4, 4, dtype=torch.bool)}, TypeError, "log_mask"),
    ({"value_iterations": 0}, ValueError, "value_iterations"),
    ({"initial_values": X[..., :2]}, ValueError, "initial_values"),
    ({"initial_values": X.half()}, TypeError, "initial_values"),
    ({"fixed_values": X}, ValueError, "belong together"),
    (FIXED, ValueError, "value_propagation"),
    ({"clamp_fixed": True}, ValueError, "fixed_values"),
    (PROPAGATE, ValueError, "fixed_values"),
    ({**FIXED, "value_propagation": ValuePropagation()}, ValueError, "value_precision"),
    ({**propagating(), "fixed_mask": CLICKS[:1]}, ValueError, r"`fixed_mask` .*\(2, 4\)"),
    ({**propagating(), "fixed_mask": CLICKS.float()}, TypeError, "fixed_mask"),
    ({**propagating(), "fixed_values": X[..., :1]}, ValueError, "fixed_values"),
    ({"backend": "fast"}, UnknownNameError, "backend"),
    ({"keys": X[:, :, :0], "values": X[:, :, :0]}, ValueError, "keys"),
    ({**POSITION, "log_prior": "uniform"}, ValueError, "log_prior"),
    ({**POSITION, "log_prior": torch.zeros(4)}, ValueError, "log_prior"),
    ({**POSITION, **propagating(dirichlet_prior=DirichletPrior(2.0))}, ValueError, "dirichlet"),
    # Tensors of updates
    (adapting(1, TOO_LARGE), ValueError, r"`KeyAdaptation.prior_precision` .*\(2, 1, 4\)"),
    (
        adapting(precision_prior=GammaPrior(1.0, TOO_LARGE)),
        ValueError,
        "KeyAdaptation.precision_prior.rate",
    ),
    (propagating(1, TOO_LARGE), ValueError, "ValuePropagation.prior_precision"),
    (
        propagating(dirichlet_prior=DirichletPrior(TOO_LARGE)),
        ValueError,
        "ValuePropagation.dirichlet_prior.concentration",
    ),
]
SETTINGS = [
    (GammaPrior, (0.9, 1.0), "GammaPrior.shape"),
    (GammaPrior, (nan, 1.0), "GammaPrior.shape"),
    (GammaPrior, (1.0, 0.0), "GammaPrior.rate"),
    (GammaPrior, (1.0, inf), "GammaPrior.rate"),
    (DirichletPrior, (0.5,), "DirichletPrior.concentration"),
    (KeyAdaptation, (-1,), "KeyAdaptation.iterations"),
    (KeyAdaptation, (1, inf), "KeyAdaptation.prior_precision"),
    (ValuePropagation, (1, -0.5), "ValuePropagation.prior_precision"),
    (ValuePropagation, (1, 0.5, "initail"), "ValuePropagation.prior_mean.*'initial'"),
]


def test_wrong_arguments_are_named():
    for options, error, message in WRONG:
        with pytest.raises(error, match=message):
            probabilistic_attention(**{"queries": X, "keys": X, "values": X, **options})
    for kind, arguments, message in SETTINGS:
        with pytest.raises((ValueError, UnknownNameError), match=message):
            kind(*arguments)


def test_images_do_not_see_each_other_and_padding_is_inert():
    q, k, v = problem(3)
    fixed = draw(3, 2, 6, 2, seed=4)
    clicked = torch.zeros(3, 6, dtype=torch.bool)
    clicked[0, [1, 4, 5]] = True
    clicked[1, 2] = True  # and none in the third image
    fixed[~clicked[:, None, :, None].expand_as(fixed)] = math.nan  # nobody may read these
    options = {
        "value_precision": 0.3,
        "value_propagation": ValuePropagation(3),
        "clamp_fixed": True,
    }
    whole = probabilistic_attention(q, k, v, fixed_values=fixed, fixed_mask=clicked, **options)
    for i in range(3):
        one = slice(i, i + 1)
        single = probabilistic_attention(
            q[one], k[one], v[one], fixed_values=fixed[one], fixed_mask=clicked[one], **options
        )
        for name, tensor in single._asdict().items():
            torch.testing.assert_close(tensor, getattr(whole, name)[one], msg=name)
    assert torch.equal(whole.unit_values[2], v[2])
    assert (whole.unit_values[1] - v[1]).abs().max() > 1e-3


def visible_as_zero(visible: Tensor) -> Tensor:
    return torch.zeros(visible.shape).double().masked_fill(~visible, -inf)


SEEN = torch.ones(6, 6, dtype=torch.bool)
PADDED = SEEN.clone()
PADDED[:, 4:] = False  # two tokens are padding
BLOCKS = (torch.arange(6)[:, None] // 2) >= (torch.arange(6) // 2)
CAUSAL = [SEEN.tril(), SEEN.triu(), SEEN.tril() & SEEN.triu(-2), BLOCKS, SEEN.tril() & PADDED]


def test_units_that_move_carry_nothing_through_a_mask():
    """Causal masks are refused, and a padded batch is the sequences that it was made of."""
    q, k, v = problem()
    fixed = {
        "value_precision": 0.4,
        "value_propagation": ValuePropagation(1),
        "fixed_values": draw(2, 2, 6, 2),
        "fixed_mask": torch.tensor([[True, False, True, False, False, True]]).expand(2, -1),
    }
    for causal in CAUSAL:
        for mask in (causal, causal.expand(2, 1, 6, 6)):
            for options in (adapting(1, 0.001), fixed):
                with pytest.raises(ValueError, match="causal"):
                    probabilistic_attention(q, k, v, log_mask=visible_as_zero(mask), **options)
        probabilistic_attention(q, k, v, log_mask=visible_as_zero(causal))
        others = {"query_mask": SEEN[:2], **adapting()}
        probabilistic_attention(q, k, v, log_mask=visible_as_zero(causal), **others)
    real = torch.arange(6) < torch.tensor([[4], [6]])  # (B, N)
    for padding in (q, torch.full_like(q, nan)):
        padded = q.where(real[:, None, :, None], padding)
        for options in ({**fixed, **adapting(2, 0.5)}, adapting(1)):
            hides = visible_as_zero(real)[:, None, None]
            whole = probabilistic_attention(
                padded, k, v, log_mask=hides, query_mask=real, **options
            )
            short = {
                name: option[:1, ..., :4, :]
                if name == "fixed_values"
                else option[:1, :4]
                if name == "fixed_mask"
                else option
                for name, option in options.items()
            }
            one = probabilistic_attention(q[:1, :, :4], k[:1, :, :4], v[:1, :, :4], **short)
            torch.testing.assert_close(whole.values[:1, :, :4], one.values)
            torch.testing.assert_close(whole.keys[:1, :, :4], one.keys)
            assert (whole.values[0, :, 4:] == 0).all()


@pytest.mark.parametrize("prior", ["magnitude", "uniform"])
def test_gradients_with_floats_and_dead_units(prior):
    q, k, v = (x.requires_grad_() for x in problem(1, 1, 4, 4, 2, 1))
    mask = torch.zeros(4, 4)
    mask[1] = mask[:, 2] = -inf
    clicked = torch.tensor([[True, True, False, False]])

    def run(q, k, v):
        result = probabilistic_attention(
            q,
            k,
            v,
            value_precision=0.4,
            log_prior=prior,
            log_mask=mask,
            key_adaptation=KeyAdaptation(2),
            value_propagation=ValuePropagation(2, 0.0),
            fixed_values=torch.ones(1, 1, 4, 1).double(),
            fixed_mask=clicked,
        )
        return result.values, result.keys, result.unit_values

    values, keys, unit_values = run(q, k, v)
    assert (values[0, 0, 1] == 0).all()  # sees nothing
    assert torch.equal(keys[0, 0, 2], k[0, 0, 2])  # seen by nobody: keeps its prior mean
    assert torch.equal(unit_values[0, 0, 2], v[0, 0, 2])
    assert gradcheck(run, (q, k, v))


BACKENDS = ("reference", "chunked", "sdpa")
OUTPUTS = ("values", "keys", "unit_values", "query_precision", "value_precision")


def relative_error(got: Tensor, wanted: Tensor) -> float:
    scale = wanted.norm().item()
    return (got.double() - wanted).norm().item() / scale if scale else got.norm().item()


def exact(**arguments: Any) -> ProbabilisticAttention:
    """The result in float64 for the same numbers."""
    return probabilistic_attention(**mapped(arguments, lambda x: x.double()))


def fixed(n: int) -> dict[str, Tensor]:
    return {
        "fixed_values": draw(1, 2, n, 3, seed=4).float(),
        "fixed_mask": (torch.arange(n) % 7 == 0).unsqueeze(0),
    }


def tokens(n: int, m: int, d: int, size: float = 1.0) -> dict[str, Tensor]:
    shapes = {"queries": (n, d), "keys": (m, d), "values": (m, 3)}
    return {
        name: (draw(1, 2, *shape, seed=i) * (1.0 if name == "values" else size)).float()
        for i, (name, shape) in enumerate(shapes.items())
    }


ALL = {
    "value_precision": 0.3,
    "key_adaptation": KeyAdaptation(2, 0.1, precision_prior=GammaPrior(2.0, 1.0)),
    "value_propagation": ValuePropagation(
        2, precision_prior=GammaPrior(2.0, 1.0), dirichlet_prior=DirichletPrior(1.5)
    ),
    "value_iterations": 2,
}


def test_autocast_changes_nothing():
    q, k, v = (4 * x.float() for x in problem())
    options = {
        "log_prior": "uniform",
        "value_precision": 0.2,
        "value_iterations": 2,
        "key_adaptation": KeyAdaptation(2, 0.1),
        "value_propagation": ValuePropagation(2),
        "fixed_values": v + 1,
        "fixed_mask": torch.eye(2, 6) > 0,
    }
    plain = probabilistic_attention(q, k, v, **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = probabilistic_attention(q, k, v, **options)
    torch.testing.assert_close(cast, plain, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("far_and_bound", "theta", "gamma", "backend"),
    pairwise(
        [(30.0, 1e-4), (300.0, 1e-2)],
        [0.5, 0.0],
        [None, GammaPrior(1.5, 1.0), GammaPrior(1.0, 1.0)],
        BACKENDS,
    ),
)
def test_a_far_key_costs_what_its_square_explains(far_and_bound, theta, gamma, backend):
    far, bound = far_and_bound
    arguments = tokens(64, 16, 8)
    arguments["keys"][:, :, 3] += far
    leaves = [x.requires_grad_() for x in arguments.values()]
    options = {
        **arguments,
        "log_prior": "uniform",
        "key_adaptation": KeyAdaptation(2, theta, precision_prior=gamma),
    }
    result, wanted = probabilistic_attention(**options, backend=backend), exact(**options)
    for name in OUTPUTS:
        assert relative_error(getattr(result, name), getattr(wanted, name)) < bound, name
    gradients = torch.autograd.grad(result.values.square().sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize(
    ("offset", "update", "backend"), pairwise([30.0, 100.0, 300.0], [{}, ALL], BACKENDS)
)
def test_a_common_offset_of_queries_and_keys_costs_no_digits(offset, update, backend):
    arguments = tokens(96, 48, 16)
    if update:
        arguments |= fixed(96)
    for name in ("queries", "keys"):
        arguments[name] += offset
    options = {**arguments, **update, "log_prior": "uniform"}
    result, wanted = probabilistic_attention(**options, backend=backend), exact(**options)
    for name in OUTPUTS:
        assert relative_error(getattr(result, name), getattr(wanted, name)) < 1e-4, name


@each("spread", [0.0, 1e-3, 1.0])
@each("theta", [0.0, 1.0])
def test_a_common_offset_of_the_values_costs_propagation_no_digits(theta, spread):
    arguments = {**tokens(96, 48, 16), **fixed(96), **ALL, "value_iterations": 1}
    arguments["values"] = 30.0 + spread * arguments["values"]
    arguments["fixed_values"] = 30.0 + arguments["fixed_values"]
    options = {
        **arguments,
        "log_prior": "uniform",
        "value_propagation": ValuePropagation(5, theta, precision_prior=GammaPrior(2.0, 1.0)),
    }
    result, wanted = probabilistic_attention(**options), exact(**options)
    for name in ("value_precision", "log_evidence"):
        assert relative_error(getattr(result, name), getattr(wanted, name)) < 1e-5, name
    moved = wanted.unit_values - 30.0
    assert relative_error(result.unit_values.double() - 30.0, moved) < 1e-5


@pytest.mark.parametrize(
    ("beta", "alpha", "prior", "per_unit"),
    pairwise([1e-6, 1e6], [1e-6, 1e6], ["magnitude", "key_magnitude", "uniform"], [False, True]),
)
def test_huge_and_tiny_precisions(beta, alpha, prior, per_unit):
    arguments = {**tokens(32, 16, 8), **fixed(32), **ALL, "log_prior": prior}
    leaves = [arguments[name].requires_grad_() for name in ("queries", "keys", "values")]
    spread = 1.0 + draw(16, seed=9).float().square() if per_unit else 1.0
    arguments |= {"query_precision": alpha * spread, "value_precision": beta * spread}
    update = KeyAdaptation(2, 0.1), ValuePropagation(2)
    for adaptation, propagation in ((None, None), update, tuple(ALL.values())[1:3]):
        arguments |= {"key_adaptation": adaptation, "value_propagation": propagation}
        arguments["clamp_fixed"] = propagation is None
        result = probabilistic_attention(**arguments)
        outputs = [getattr(result, name) for name in (*OUTPUTS, "log_prior", "log_evidence")]
        assert all(output.isfinite().all() for output in outputs)
        gradients = torch.autograd.grad(
            result.values.sum() + result.keys.sum(), leaves, allow_unused=True
        )
        assert all(g is None or g.isfinite().all() for g in gradients)
        if alpha < 1 and beta < 1:
            wanted = exact(**arguments)
            for name in OUTPUTS:
                assert relative_error(getattr(result, name), getattr(wanted, name)) < 1e-4, name


@each("prior", ["magnitude", "uniform"])
@each(("dtype", "bound"), [(torch.bfloat16, 8e-3), (torch.float16, 1e-3)])
def test_half_precision_rounds_only_what_comes_in_and_out(dtype, bound, prior):
    arguments = mapped({**tokens(96, 48, 16), **fixed(96)}, lambda x: x.to(dtype))
    options = {**arguments, **ALL, "log_prior": prior}
    result, wanted = probabilistic_attention(**options), exact(**options)
    for name in OUTPUTS:
        assert relative_error(getattr(result, name), getattr(wanted, name)) < bound, name
    assert result.values.dtype == result.keys.dtype == result.unit_values.dtype == dtype
    assert result.query_precision.dtype == result.value_precision.dtype == torch.float32


PRODUCTS = {
    "read-out": {},
    "keys": {"key_adaptation": KeyAdaptation(2, 0.1)},
    "maximum likelihood": {"key_adaptation": KeyAdaptation(1)},
    "precisions": {"key_adaptation": KeyAdaptation(1, 0.1, precision_prior=GammaPrior(2.0, 1.0))},
    "all": ALL,
}


@pytest.mark.parametrize(
    ("precision", "prior", "update", "backend"),
    pairwise(
        [(torch.bfloat16, 3e-2), (torch.float16, 5e-3)],
        ["magnitude", "uniform"],
        PRODUCTS,
        BACKENDS,
    ),
)
def test_products_in_half_precision(precision, prior, update, backend, monkeypatch):
    """As on CUDA: factors are rounded to half precision, norms and the rest are not."""
    (dtype, bound), update = precision, PRODUCTS[update]
    arguments = tokens(96, 48, 16, size=2.0)
    if "value_propagation" in update:
        arguments |= fixed(96)
    arguments = mapped(arguments, lambda x: x.to(dtype))
    options = {**arguments, **update, "log_prior": prior}
    wanted = exact(**options)
    monkeypatch.setattr("probseg.ops.probabilistic.product_dtype", lambda _: dtype)
    result = probabilistic_attention(**options, backend=backend)
    for name in OUTPUTS:
        assert relative_error(getattr(result, name), getattr(wanted, name)) < bound, name


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.bfloat16, 8.0), (torch.float16, 8.0), (torch.float16, 80.0)]
)
def test_logits_of_fixed_tokens_are_not_rounded_to_half_precision(dtype, size, monkeypatch):
    """Rounded factors have products with float32 sums, also where these are written out.

    The factors are exact here: nothing but rounded logits, or overflowing ones, can change much.
    """
    arguments = mapped({**tokens(96, 48, 16, size), **fixed(96)}, lambda x: x.to(dtype))
    options = {
        **arguments,
        "value_precision": 0.25,  # a power of 2: scaled values are exact too
        "query_precision": 0.25,
        "value_propagation": ValuePropagation(1, 0.0),
    }
    wanted = exact(**options)
    monkeypatch.setattr("probseg.ops.probabilistic.product_dtype", lambda _: dtype)
    result = probabilistic_attention(**options)
    assert relative_error(result.unit_values, wanted.unit_values) < torch.finfo(dtype).eps


@each("beta", [1.0, "of each unit"])
@each("length", [100.0, 1000.0])
def test_the_log_evidence_keeps_its_digits_where_all_values_are_long(length, beta):
    directions = torch.nn.functional.normalize(draw(1, 1, 20, 4), dim=-1)
    if beta != 1.0:  # equal scores whatever the precision
        beta = 0.5 + torch.arange(20).view(1, 1, 20) / 20
        directions = directions * beta.rsqrt().unsqueeze(-1)
    arguments = {
        "queries": draw(1, 1, 50, 8, seed=1).float(),
        "keys": draw(1, 1, 20, 8, seed=2).float(),
        "values": (length * directions).float(),
        "value_precision": beta,
        "log_prior": "magnitude",
    }
    q, k, v = (arguments[name].double() for name in ("queries", "keys", "values"))
    alpha, score = 8**-0.5, torch.as_tensor(beta) / 2 * v.square().sum(-1)
    log_pi = (alpha / 2 * k.square().sum(-1) + score).log_softmax(-1)  # Eq. 10
    normal = torch.distributions.Normal(0.0, alpha**-0.5)
    density = normal.log_prob(q.unsqueeze(-2) - k.unsqueeze(-3)).sum(-1)
    wanted = (density + log_pi.unsqueeze(-2)).logsumexp(-1)
    got = probabilistic_attention(**arguments).log_evidence
    # Float32 has scores of length²/2 to a relative 6e-8; a log evidence that is the difference of
    # two sums of this size would have four times that, and more.
    assert (got - wanted).abs().max() < 1e-7 * length**2 / 2


@pytest.mark.parametrize("backend", BACKENDS)
@each("level", [1e4, -1e5])
def test_a_common_level_of_the_prior_costs_the_masses_no_digits(backend, level):
    n, m, d = 300, 40, 16
    q, k, o = draw(1, 1, n, d).float(), draw(1, 1, m, d, seed=1).float(), draw(1, 1, n, 5, seed=2)
    prior = (level + draw(m, seed=3)).float()
    wanted = assign(
        q.double(), k.double(), o, log_prior=prior.double(), scale=0.2, backend="reference"
    )
    got = assign(q, k, o.float(), log_prior=prior, scale=0.2, backend=backend)
    # The other backends round the sum of logit and prior, which is a relative 6e-8 of the level.
    allowed = 2e-5 if backend == "sdpa" else 1e-7 * abs(level)
    assert (got.log_mass - wanted.log_mass).abs().max() < allowed
    assert (got.means - wanted.means).abs().max() < allowed
