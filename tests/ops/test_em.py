"""EM attention and logistic EM against loops in float64, and what they climb."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from probseg.ops.em import (
    SHORTEST,
    em_attention,
    l2_normalise,
    layer_normalise,
    logistic_em,
    m_step,
    responsibilities,
)
from support.ops_cases import draw
from support.refusals import refused
from support.rows import pairwise

NORMALISATIONS = [None, l2_normalise, layer_normalise]
BACKENDS = ["auto", "reference", "chunked"]


def tokens_and_bases(n=7, k=3, d=4, *, seed=0) -> tuple[Tensor, Tensor]:
    return draw(2, 2, n, d, seed=seed), draw(2, 2, k, d, seed=seed + 1)


def normalised(basis: Tensor, how) -> Tensor:
    """One basis (D,), by the formulas."""
    if how is l2_normalise:
        return basis / math.sqrt(sum(float(x) ** 2 for x in basis))
    if how is layer_normalise:
        centred = basis - basis.mean()
        return centred / torch.sqrt((centred**2).mean() + 1e-5)
    return basis


def by_hand(tokens, bases, iterations, scale, how, log_prior=None):
    """Eqs. 12 to 14 of Li et al. (2019) for (N, D) and (K, D), in loops over numbers."""
    bases = list(bases)
    for t in range(max(1, iterations)):
        z = torch.zeros(len(tokens), len(bases), dtype=torch.float64)
        for n, x in enumerate(tokens):
            for k, mu in enumerate(bases):
                prior = 0.0 if log_prior is None else float(log_prior[k])
                z[n, k] = math.exp(scale * float((x * mu).sum()) + prior)
            z[n] /= z[n].sum()
        if t < iterations:
            bases = [
                normalised((z[:, k : k + 1] * tokens).sum(0) / z[:, k].sum(), how)
                for k in range(len(bases))
            ]
    values = [sum(z[n, k] * mu for k, mu in enumerate(bases)) for n in range(len(tokens))]
    return torch.stack(values), torch.stack(bases), z


@pytest.mark.parametrize(
    ("backend", "iterations", "how"), pairwise(BACKENDS, [0, 1, 3], NORMALISATIONS)
)
def test_it_is_the_equations(how, iterations, backend):
    tokens, bases = tokens_and_bases()
    log_prior = draw(3, seed=5)
    options = {"iterations": iterations, "scale": 0.7, "normalise": how}
    found = em_attention(tokens, bases, log_prior=log_prior, backend=backend, **options)
    shares = responsibilities(tokens, found.previous, 0.7, log_prior)
    assert shares.shape == (2, 2, 7, 3)
    for b in range(2):
        for g in range(2):
            values, last, z = by_hand(
                tokens[b, g], bases[b, g], iterations, 0.7, how, log_prior.tolist()
            )
            torch.testing.assert_close(found.values[b, g], values)
            torch.testing.assert_close(found.bases[b, g], last)
            torch.testing.assert_close(shares[b, g], z)


@pytest.mark.parametrize("how", NORMALISATIONS)
@pytest.mark.parametrize("k", [1, 3])
def test_gradients(how, k):
    tokens, bases = (x.requires_grad_() for x in tokens_and_bases(n=5, k=k, d=4))

    def both(tokens, bases):
        result = em_attention(tokens, bases, iterations=2, normalise=how)
        return result.values, result.bases

    assert torch.autograd.gradcheck(both, (tokens, bases))


@given(
    seed=st.integers(0, 10_000),
    scale=st.floats(0.01, 30.0),
    n=st.integers(1, 12),
    k=st.integers(1, 5),
    length=st.floats(0.0, 1.0),
    with_prior=st.booleans(),
)
def test_no_step_lowers_the_objective_in_the_ball(seed, scale, n, k, length, with_prior):
    """A mixture of von Mises-Fisher distributions, for tokens of any length."""
    tokens, bases = tokens_and_bases(n, k, seed=seed)
    bases = length * l2_normalise(bases)
    log_prior = draw(n, k, seed=seed + 2) * with_prior

    def objective(bases):
        return (scale * tokens @ bases.mT + log_prior).logsumexp(-1).sum(-1)

    before = objective(bases)
    for _ in range(5):
        bases = m_step(tokens, bases, scale=scale, log_prior=log_prior if with_prior else None)
        after = objective(bases)
        assert (after >= before - 1e-9 * before.abs().clamp(min=1)).all()
        before = after


@pytest.mark.parametrize("how", [l2_normalise, layer_normalise])
def test_a_basis_of_zeros_stays_zero_and_has_a_finite_gradient(how):
    bases = torch.zeros(1, 1, 2, 5)
    bases[..., 1, :] = torch.arange(5.0)
    bases.requires_grad_()
    found = how(bases)
    assert not found[..., 0, :].any()
    assert found[..., 1, :].norm() > 0.99
    found.sum().backward()
    assert bases.grad.isfinite().all()
    assert bases.grad.abs().max() <= 1.01 / SHORTEST


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_responsibilities_are_of_full_precision(dtype):
    tokens, bases = (x.to(dtype) for x in tokens_and_bases())
    with torch.autocast("cpu", torch.bfloat16):
        found = responsibilities(tokens, bases, 2.0)
    assert found.dtype == torch.float32
    expected = torch.softmax(2.0 * tokens.float() @ bases.float().mT, dim=-1)
    torch.testing.assert_close(found, expected)


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


def test_numbers_out_of_range_are_named():
    tokens, bases = tokens_and_bases()
    rows = drawn(0)
    refused(ValueError, lambda: em_attention(tokens, bases, iterations=-1), "iterations")
    refused(ValueError, lambda: logistic_em(*rows, 0.0, 1), "`prior`")
    refused(ValueError, lambda: logistic_em(*rows, 1.0, -1), "`steps`")
