"""probabilistic_attention against the equations of Gabbur et al., 2021, and its limits."""

import math
from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mechanisms import problem
from ops_cases import draw
from oracle import equations
from torch.autograd import gradcheck

from probseg.ops import KeyAdaptation, ValuePropagation, attend, probabilistic_attention

SETTINGS = st.fixed_dictionaries(
    {
        "sizes": st.tuples(*(st.integers(1, high) for high in (2, 2, 5, 5, 3, 3))),
        "prior": st.sampled_from(["magnitude", "key_magnitude", "uniform", "unit", "pair"]),
        "alpha": st.sampled_from(["default", "float", "scalar", "unit"]),
        "beta": st.sampled_from(["float", "scalar", "unit"]),
        "keys": st.none()
        | st.builds(
            KeyAdaptation,
            st.integers(0, 3),
            st.sampled_from([0.0, 0.7]),
            st.sampled_from(["initial", "previous"]),
        ),
        "propagation": st.none()
        | st.builds(
            ValuePropagation,
            st.integers(0, 3),
            st.sampled_from([0.0, 1.0]),
            st.sampled_from(["initial", "previous"]),
        ),
        "initial": st.booleans(),
        "masked": st.booleans(),
        "value_iterations": st.integers(1, 3),
        "seed": st.integers(0, 999),
    }
)


@given(SETTINGS)
def test_equals_the_equations(case):
    b, g, n, m, d, v = case["sizes"]
    seed = case["seed"]
    queries = draw(b, g, n, d, seed=seed)
    keys = draw(b, g, m, d, seed=seed + 1)
    values = draw(b, g, m, v, seed=seed + 2)
    alpha = {
        "default": None,
        "float": 0.8,
        "scalar": torch.tensor(0.8).double(),
        "unit": draw(b, g, m, seed=seed + 3).exp(),
    }[case["alpha"]]
    beta = {
        "float": 0.4,
        "scalar": torch.tensor(0.4).double(),
        "unit": draw(g, m, seed=seed + 4).exp(),
    }[case["beta"]]
    prior = {
        "unit": draw(m, seed=seed + 5),
        "pair": draw(b, g, n, m, seed=seed + 6),
    }.get(case["prior"], case["prior"])
    mask = torch.zeros(n, m).masked_fill(draw(n, m, seed=seed + 7) > 0.8, -inf)
    fixed = draw(b, g, n, v, seed=seed + 8)
    clicked = draw(b, n, seed=seed + 9) > 0.3
    initial = draw(b, g, n, v, seed=seed + 10) if case["initial"] else None
    propagation = case["propagation"]
    options = {
        "query_precision": alpha,
        "value_precision": beta,
        "log_prior": prior,
        "log_mask": mask if case["masked"] else None,
        "value_iterations": case["value_iterations"],
        "initial_values": initial,
        "key_adaptation": case["keys"],
        "value_propagation": propagation,
        "fixed_values": None if propagation is None else fixed,
        "fixed_mask": None if propagation is None else clicked,
    }
    result = probabilistic_attention(queries, keys, values, **options)
    wanted = equations(queries, keys, values, **options)
    close = {"rtol": 1e-9, "atol": 1e-10}
    for name in ("query_precision", "value_precision", "keys", "unit_values", "values"):
        torch.testing.assert_close(getattr(result, name), getattr(wanted, name), **close)
    torch.testing.assert_close(result.log_evidence.exp(), wanted.evidence, **close)
    pi = result.log_prior.exp()
    pi = pi.unsqueeze(-2) if pi.ndim == 3 else pi
    torch.testing.assert_close(pi.expand(b, g, n, m), wanted.prior, **close)


# --- Limits and properties ---


def test_defaults_are_standard_attention():
    q, k, v = problem()
    expected = attend(q, k, v, scale=3**-0.5).values
    assert torch.equal(probabilistic_attention(q, k, v).values, expected)
    many = probabilistic_attention(q, k, v, value_iterations=5, initial_values=draw(2, 2, 6, 2))
    assert torch.equal(many.values, expected)


def test_small_value_precision_tends_to_none():
    q, k, v = problem()
    near = probabilistic_attention(q, k, v, value_precision=1e-9, value_iterations=3)
    torch.testing.assert_close(near.values, probabilistic_attention(q, k, v).values)


def test_zero_iterations_change_nothing():
    q, k, v = problem()
    none = probabilistic_attention(
        q,
        k,
        v,
        value_precision=0.1,
        key_adaptation=KeyAdaptation(0),
        value_propagation=ValuePropagation(0),
        fixed_values=v,
        fixed_mask=torch.ones(2, 6, dtype=torch.bool),
    )
    assert torch.equal(none.keys, k)
    assert torch.equal(none.unit_values, v)


def test_a_strong_prior_keeps_keys_and_values():
    q, k, v = problem()
    strong = probabilistic_attention(
        q,
        k,
        v,
        value_precision=0.1,
        key_adaptation=KeyAdaptation(3, 1e12),
        value_propagation=ValuePropagation(3, 1e12),
        fixed_values=v + 1,
        fixed_mask=torch.ones(2, 6, dtype=torch.bool),
    )
    torch.testing.assert_close(strong.keys, k)
    torch.testing.assert_close(strong.unit_values, v)


def test_maximum_likelihood_is_the_limit_of_a_weak_prior():
    q, k, v = problem()
    weak = probabilistic_attention(q, k, v, key_adaptation=KeyAdaptation(2, 1e-12))
    none = probabilistic_attention(q, k, v, key_adaptation=KeyAdaptation(2, 0.0))
    torch.testing.assert_close(weak.keys, none.keys)


def test_one_maximum_likelihood_step_is_doubly_normalised_attention():
    q, k, v = problem()
    weights = (q @ k.mT / math.sqrt(3)).softmax(-1)
    shares = weights / weights.sum(-2, keepdim=True)
    result = probabilistic_attention(q, k, v, key_adaptation=KeyAdaptation())
    torch.testing.assert_close(result.keys, shares.mT @ q)


def test_prior_means_agree_for_one_iteration_only():
    q, k, v = problem()

    def keys(iterations, mean):
        update = KeyAdaptation(iterations, 0.5, mean)
        return probabilistic_attention(q, k, v, key_adaptation=update).keys

    assert torch.equal(keys(1, "initial"), keys(1, "previous"))
    assert (keys(3, "initial") - keys(3, "previous")).abs().max() > 1e-2


def test_tied_prior_follows_the_keys():
    q, k, v = problem()
    update = KeyAdaptation(2)
    tied = probabilistic_attention(q, k, v, key_adaptation=update)
    held = probabilistic_attention(
        q, k, v, key_adaptation=update, log_prior=k.square().sum(-1) / 2 / math.sqrt(3)
    )
    expected = (tied.keys.square().sum(-1) / 2 / math.sqrt(3)).log_softmax(-1)
    torch.testing.assert_close(tied.log_prior, expected)
    assert (tied.values - held.values).abs().max() > 1e-3


@given(st.integers(1, 7), st.integers(0, 99))
def test_equivariance_to_the_order_of_units(n, seed):
    q, k, v = problem(1, 2, n, n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    fixed, clicked = draw(1, 2, n, 2, seed=4), draw(1, n, seed=5) > 0
    mask = torch.zeros(n, n).masked_fill(draw(n, n, seed=6) > 1, -inf)
    options = {
        "value_precision": 0.3,
        "key_adaptation": KeyAdaptation(2, 0.1),
        "value_propagation": ValuePropagation(2),
    }
    straight = probabilistic_attention(
        q, k, v, log_mask=mask, fixed_values=fixed, fixed_mask=clicked, **options
    )
    shuffled = probabilistic_attention(
        *(x[:, :, order] for x in (q, k, v)),
        log_mask=mask[order][:, order],
        fixed_values=fixed[:, :, order],
        fixed_mask=clicked[:, order],
        **options,
    )
    for name in ("values", "keys", "unit_values", "log_evidence", "log_prior"):
        torch.testing.assert_close(
            getattr(shuffled, name), getattr(straight, name)[:, :, order], msg=name
        )


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


def test_one_query_without_clicks():
    q, k, v = problem(n=1, m=4)
    result = probabilistic_attention(
        q,
        k,
        v,
        value_precision=0.3,
        value_propagation=ValuePropagation(),
        fixed_values=draw(2, 2, 1, 2),
        fixed_mask=torch.zeros(2, 1, dtype=torch.bool),
    )
    assert torch.equal(result.unit_values, v)


def test_clamping():
    q, k, v = problem()
    fixed, clicked = draw(2, 2, 6, 2, seed=4), draw(2, 6, seed=5) > 0
    free = probabilistic_attention(q, k, v).values
    clamped = probabilistic_attention(
        q, k, v, fixed_values=fixed, fixed_mask=clicked, clamp_fixed=True
    ).values
    where = clicked[:, None, :, None].expand_as(free)
    assert torch.equal(clamped[where], fixed[where])
    assert torch.equal(clamped[~where], free[~where])


@pytest.mark.parametrize("theta", [0.0, 0.5])
@pytest.mark.parametrize("prior", ["magnitude", "key_magnitude", "uniform"])
def test_gradients_through_both_adaptations(theta, prior):
    q, k, v = (x.requires_grad_() for x in problem(1, 2, 4, 4, 2, 2))
    fixed, clicked = draw(1, 2, 4, 2, seed=4).requires_grad_(), torch.tensor([[1, 0, 1, 0]]).bool()
    alpha, beta = (draw(1, 2, 4, seed=s).exp().requires_grad_() for s in (5, 6))

    def run(q, k, v, alpha, beta, fixed):
        result = probabilistic_attention(
            q,
            k,
            v,
            query_precision=alpha,
            value_precision=beta,
            log_prior=prior,
            value_iterations=2,
            key_adaptation=KeyAdaptation(2, theta),
            value_propagation=ValuePropagation(2, theta),
            fixed_values=fixed,
            fixed_mask=clicked,
        )
        return result.values, result.keys, result.unit_values, result.log_evidence

    assert gradcheck(run, (q, k, v, alpha, beta, fixed))


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


def test_a_query_that_sees_nothing_among_units_of_different_value_precision():
    q, k, v = (x.requires_grad_() for x in problem(1, 1, 3, 4))
    mask = torch.zeros(3, 4)
    mask[1] = -inf
    result = probabilistic_attention(
        q, k, v, value_precision=draw(4, seed=3).exp(), log_mask=mask, value_iterations=2
    )
    assert (result.values[0, 0, 1] == 0).all()
    assert result.log_evidence[0, 0, 1] == -inf
    for gradient in torch.autograd.grad(result.values.sum(), (q, k, v)):
        assert gradient.isfinite().all()
