"""Updates of keys, value means, precisions and weights against the equations, and closed forms."""

import math
from math import inf

import pytest
import torch
from hypothesis import example, given
from torch import Tensor

from probseg.ops import (
    DirichletPrior,
    GammaPrior,
    KeyAdaptation,
    ValuePropagation,
    probabilistic_attention,
)
from probseg.ops.probabilistic import ProbabilisticAttention
from support.mechanisms import NAMED, Mechanism, mechanisms
from support.ops_cases import draw
from support.oracle import equations
from support.rows import each, pairwise


def assert_equals_the_equations(mechanism: Mechanism) -> None:
    result, wanted = mechanism.call(), equations(**mechanism.arguments())
    close = {"rtol": 1e-9, "atol": 1e-10}
    for name in ("values", "keys", "unit_values", "query_precision", "value_precision"):
        torch.testing.assert_close(
            getattr(result, name),
            getattr(wanted, name),
            **close,
            msg=lambda text, name=name: f"{name}: {text}",
        )
    torch.testing.assert_close(result.log_evidence.exp(), wanted.evidence, **close)
    if isinstance(result.log_prior, Tensor):
        prior = result.log_prior.exp()
        prior = prior.unsqueeze(-2) if prior.ndim == 3 else prior
        torch.testing.assert_close(prior.expand_as(wanted.prior), wanted.prior, **close)


@given(mechanisms())
@example(Mechanism((2, 2, 5, 4), gamma="tensor", dirichlet="tensor", masked=True))
@example(Mechanism((1, 1, 1, 1), gamma="float", dirichlet="float", prior="magnitude"))
@example(Mechanism((2, 1, 1, 4), gamma="float", dirichlet="one", theta=0.0))
@example(Mechanism((2, 2, 5, 1), gamma="tensor", dirichlet="one", theta=0.0))
@example(Mechanism((1, 2, 4, 5), prior="distance", dirichlet="float", iterations=(3, 3, 3)))
def test_everything_at_once_equals_the_equations(mechanism):
    assert_equals_the_equations(mechanism)


@each(
    ("prior", "mean", "alpha"),
    [
        ("magnitude", "initial", "float"),
        ("key_magnitude", "previous", "heads"),
        ("uniform", "initial", "scalar"),
        ("unit", "previous", "float"),
        ("full", "initial", "heads"),
    ],
)
def test_query_precisions_follow_the_keys(prior, mean, alpha):
    for iterations in (1, 3):
        for theta, gamma in ((0.0, "one"), (0.7, "tensor")):
            assert_equals_the_equations(
                Mechanism(
                    prior=prior,
                    alpha=alpha,
                    mean=mean,
                    theta=theta,
                    gamma=gamma,
                    iterations=(iterations, -1, 1),
                )
            )


@each("fixed", ["ragged", "none", "all", "one"])
@each("prior", [*NAMED, "heads", "pair"])
def test_value_precisions_and_weights_follow_the_fixed_values(prior, fixed):
    for beta, initial in (("float", False), ("heads", True)):
        assert_equals_the_equations(
            Mechanism(
                prior=prior,
                beta=beta,
                gamma="tensor",
                dirichlet="tensor",
                fixed=fixed,
                iterations=(1, 3, 2),
                initial=initial,
                masked=True,
            )
        )


@each("width", [1, 4])
@each("mean", ["initial", "previous"])
@each(("prior", "beta"), [("magnitude", "heads"), ("full", "float")])
def test_values_propagate_as_in_the_equations(prior, beta, mean, width):
    """Four to six fixed tokens, whose products with each other are or are not written out."""
    for gamma, dirichlet, theta in (
        ("none", "none", 0.0),
        ("none", "tensor", 0.7),
        ("tensor", "none", "tensor"),
        ("tensor", "tensor", 0.0),
    ):
        assert_equals_the_equations(
            Mechanism(
                sizes=(2, 2, 6, 5),
                channels=(3, width),
                prior=prior,
                beta=beta,
                mean=mean,
                theta=theta,
                gamma=gamma,
                dirichlet=dirichlet,
                iterations=(-1, 4, 1),
                fixed="all",
                masked=True,
            )
        )


# --- Closed forms ---


def one_unit(*, tokens: int, clicked: int, **update: object) -> ProbabilisticAttention:
    """A unit that has all responsibility, D = 3 and V = 2."""
    return probabilistic_attention(
        draw(1, 1, tokens, 3),
        draw(1, 1, 1, 3, seed=1),
        draw(1, 1, 1, 2, seed=2),
        value_precision=0.3,
        key_adaptation=KeyAdaptation(1, 0.0, precision_prior=GammaPrior(2.0, 0.5)),
        value_propagation=ValuePropagation(1, 0.0, **update),
        fixed_values=draw(1, 1, tokens, 2, seed=3),
        fixed_mask=torch.arange(tokens).lt(clicked).unsqueeze(0),
    )


def test_a_single_unit_fits_a_gaussian_to_all_tokens_and_another_to_the_fixed_ones():
    result = one_unit(tokens=6, clicked=4, precision_prior=GammaPrior(1.7, 0.9))
    queries, fixed = draw(1, 1, 6, 3)[0, 0], draw(1, 1, 6, 2, seed=3)[0, 0, :4]
    torch.testing.assert_close(result.keys[0, 0, 0], queries.mean(0))
    torch.testing.assert_close(result.unit_values[0, 0, 0], fixed.mean(0))
    scatter = queries.var(0, correction=0).sum() * 6
    assert result.query_precision.item() == pytest.approx((2 + 9 - 1) / (0.5 + scatter / 2))
    scatter = fixed.var(0, correction=0).sum() * 4  # and V / 2 for each, where Eq. 37 has d / 2
    assert result.value_precision.item() == pytest.approx((1.7 + 4 - 1) / (0.9 + scatter / 2))


def test_a_strong_gamma_prior_has_its_mode():
    strong = GammaPrior(1 + 3e12, 1e12)
    result = one_unit(tokens=6, clicked=4, precision_prior=strong)
    assert result.value_precision.item() == pytest.approx(3.0)


def test_a_strong_dirichlet_prior_has_its_mode():
    mechanism = Mechanism(gamma="none", iterations=(-1, 1, 1), fixed="all")
    theta = torch.tensor([2.0, 3.0, 1.5, 4.0]).double()
    arguments = mechanism.arguments()
    propagation = ValuePropagation(1, dirichlet_prior=DirichletPrior(1 + 1e12 * theta))
    result = mechanism.call(value_propagation=propagation)
    wanted = (theta / theta.sum()).log().expand(2, 2, 4)
    torch.testing.assert_close(result.log_prior, wanted)
    assert arguments["fixed_mask"].all()


# --- Who notices the weights ---


def test_weights_change_the_read_out_of_all_tokens():
    mechanism = Mechanism(prior="pair", dirichlet="float", gamma="none", sizes=(1, 2, 5, 4))
    result = mechanism.call(value_iterations=1)
    assert result.log_prior.shape == (1, 2, 4)
    torch.testing.assert_close(result.log_prior.exp().sum(-1), torch.ones(1, 2).double())
    again = probabilistic_attention(
        mechanism.arguments()["queries"],
        result.keys,
        result.unit_values,
        query_precision=result.query_precision,
        value_precision=result.value_precision,
        log_prior=result.log_prior,
    )
    torch.testing.assert_close(again.values, result.values)
    torch.testing.assert_close(again.log_evidence, result.log_evidence)


@each("prior", ["magnitude", "unit", "pair", "several"])
def test_no_iterations_leave_a_prior_of_pairs_as_it_is(prior):
    mechanism = Mechanism(prior=prior, gamma="float", dirichlet="float", iterations=(1, 0, 2))
    without = mechanism.call(value_propagation=ValuePropagation(0))
    result = mechanism.call()
    torch.testing.assert_close(result.values, without.values)
    torch.testing.assert_close(result.log_evidence, without.log_evidence)


# --- Parameters at the smallest values that are allowed ---


@each("prior", ["magnitude", "uniform"])
@each("fixed", ["ragged", "none"])
def test_values_stay_numbers_where_no_token_is_fixed_and_the_gamma_prior_is_flat(fixed, prior):
    """With a shape of 1 and nothing observed, the mode of all value precisions is 0."""
    mechanism = Mechanism(prior=prior, gamma="none", fixed=fixed, iterations=(-1, 2, 1))
    flat = ValuePropagation(2, 0.7, precision_prior=GammaPrior(1.0, 1.0))
    leaf = mechanism.arguments()["values"].requires_grad_()
    result = mechanism.call(value_propagation=flat, values=leaf)
    assert result.values.isfinite().all()
    assert result.log_evidence.isfinite().all()
    (gradient,) = torch.autograd.grad(result.values.sum(), leaf)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("shape", "theta", "backend"),
    pairwise([1.0, 1.5], [0.0, 0.5], ["reference", "chunked", "sdpa"]),
)
def test_a_hidden_unit_gives_finite_gradients(shape, theta, backend):
    """Nobody sees it, so that its precision is the mode of its prior: 0 for a shape of 1."""
    arguments = Mechanism(iterations=(3, -1, 1)).arguments()
    leaves = [arguments[name].requires_grad_() for name in ("queries", "keys", "values")]
    mask = torch.tensor([0.0, 0.0, -inf, 0.0])
    result = probabilistic_attention(
        *leaves,
        log_prior="uniform",
        log_mask=mask,
        key_adaptation=KeyAdaptation(3, theta, precision_prior=GammaPrior(shape, 2.0)),
        backend=backend,
    )
    assert (result.query_precision[:, :, 2] == (shape - 1) / 2).all()
    assert torch.equal(result.keys[:, :, 2], leaves[1][:, :, 2])
    outputs = [result.values, result.keys, result.query_precision, result.log_evidence]
    gradients = torch.autograd.grad([output.sum() for output in outputs], leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_a_flat_dirichlet_prior_and_a_hidden_unit_give_finite_gradients(kind):
    mechanism = Mechanism(gamma="none", iterations=(-1, 2, 1), fixed="all")
    queries = mechanism.arguments()["queries"].requires_grad_()
    dirichlet = DirichletPrior(kind(1.0))
    result = mechanism.call(
        queries=queries,
        log_mask=torch.tensor([0.0, 0.0, -inf, 0.0]),
        value_propagation=ValuePropagation(2, dirichlet_prior=dirichlet),
    )
    assert (result.log_prior[:, :, 2] == -inf).all()
    (gradient,) = torch.autograd.grad(result.values.sum() + result.log_evidence.sum(), queries)
    assert gradient.isfinite().all()


def test_weights_without_any_count_are_uniform():
    mechanism = Mechanism(
        prior="unit",
        gamma="none",
        dirichlet="one",
        fixed="none",
        iterations=(-1, 1, 1),
    )
    result = mechanism.call()
    torch.testing.assert_close(result.log_prior, torch.full((2, 2, 4), -math.log(4)).double())
