"""EM of a logistic classifier against a general optimiser."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from probseg.ops.em import logistic_em


def drawn(seed, rows=7, dims=4):
    g = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(2, rows, dims, generator=g, dtype=torch.float64)
    counts = torch.rand(2, rows, generator=g, dtype=torch.float64)
    counts[:, -1] = 0
    share = torch.rand(2, rows, generator=g, dtype=torch.float64)
    mean = torch.randn(dims, generator=g, dtype=torch.float64)
    return x, counts * (share - 0.5), counts, mean


def loss(weights, rows, evidence, counts, mean, prior):
    """Negative log posterior of one batch item, up to a constant, from its definition."""
    logits = rows @ weights
    positive, negative = counts / 2 + evidence, counts / 2 - evidence
    fit = positive @ np.logaddexp(0, -logits) + negative @ np.logaddexp(0, logits)
    return fit + prior / 2 * ((weights - mean) ** 2).sum()


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.1, 1.0, 20.0]))
def test_converges_to_the_mode_of_the_posterior(seed, prior):
    rows, evidence, counts, mean = drawn(seed)
    found = logistic_em(rows, evidence, counts, mean, prior, steps=2000)
    for n in range(len(rows)):
        data = rows[n].numpy(), evidence[n].numpy(), counts[n].numpy(), mean.numpy(), prior
        best = minimize(loss, mean.numpy(), data, options={"gtol": 1e-10})
        assert loss(found[n].numpy(), *data) <= best.fun + 1e-9


@given(st.integers(0, 10**6), st.sampled_from([0.1, 1.0, 20.0]))
def test_no_step_lowers_the_posterior(seed, prior):
    rows, evidence, counts, mean = drawn(seed)
    data = rows[0].numpy(), evidence[0].numpy(), counts[0].numpy(), mean.numpy(), prior
    after = [logistic_em(rows, evidence, counts, mean, prior, steps)[0] for steps in range(5)]
    losses = [loss(weights.numpy(), *data) for weights in after]
    assert all(b <= a + 1e-9 for a, b in itertools.pairwise(losses))


def test_rows_without_observations_and_other_images_change_nothing():
    rows, evidence, counts, mean = drawn(0)
    both = logistic_em(rows, evidence, counts, mean, 1.0, 3)
    alone = logistic_em(rows[1:, :-1], evidence[1:, :-1], counts[1:, :-1], mean, 1.0, 3)
    assert torch.allclose(both[1:], alone, rtol=1e-12)
    nothing = logistic_em(rows, 0 * evidence, 0 * counts, mean, 1.0, 3)
    assert torch.allclose(nothing, mean.expand(2, -1))


def test_float32_and_certain_observations():
    rows, evidence, counts, mean = drawn(1)
    rows = 30 * rows  # logits of hundreds
    exact = logistic_em(rows, evidence, counts, mean, 1.0, 3)
    single = logistic_em(*(t.float() for t in (rows, evidence, counts, mean)), 1.0, 3)
    assert single.dtype == torch.float32
    assert torch.allclose(single.double(), exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "changes"), [("prior", {"prior": 0.0}), ("steps", {"steps": -1})])
def test_numbers_out_of_range_are_named(name, changes):
    rows, evidence, counts, mean = drawn(0)
    with pytest.raises(ValueError, match=f"^`{name}`"):
        logistic_em(rows, evidence, counts, mean, **{"prior": 1.0, "steps": 1, **changes})
