"""probabilistic_attention against the equations of Gabbur et al., 2021, and its limits."""

import math
from math import inf

import pytest
import torch
from torch.autograd import gradcheck

from probseg.ops import KeyAdaptation, ValuePropagation, attend, probabilistic_attention
from support.mechanisms import problem
from support.ops_cases import draw

# --- Limits and properties ---


def test_defaults_are_standard_attention():
    q, k, v = problem()
    expected = attend(q, k, v, scale=3**-0.5).values
    assert torch.equal(probabilistic_attention(q, k, v).values, expected)
    many = probabilistic_attention(q, k, v, value_iterations=5, initial_values=draw(2, 2, 6, 2))
    assert torch.equal(many.values, expected)


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
