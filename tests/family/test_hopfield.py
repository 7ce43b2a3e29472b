"""Hopfield networks against the equations of Ramsauer et al., 2021, and what they are for."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from probseg.family.energy import hopfield_energy, hopfield_retrieval
from probseg.ops import BackendError, attend
from support.ops_cases import draw

CASES = st.fixed_dictionaries(
    {
        "sizes": st.tuples(*(st.integers(1, high) for high in (2, 2, 4, 5, 4))),
        "iterations": st.integers(1, 4),
        "scale": st.floats(0.01, 8.0),
        "prior": st.booleans(),
        "seed": st.integers(0, 999),
    }
)


def problem(case):
    b, g, n, m, d = case["sizes"]
    seed = case["seed"]
    prior = draw(n, m, seed=seed + 2) if case["prior"] else None
    return 2 * draw(b, g, n, d, seed=seed), draw(b, g, m, d, seed=seed + 1), prior


def stored(patterns=12, channels=64):
    """Well separated patterns, of length sqrt(D)."""
    return draw(1, 1, patterns, channels).sign()


@given(CASES)
def test_equals_the_equations(case):
    states, patterns, prior = problem(case)
    beta = case["scale"]
    result = hopfield_retrieval(
        states, patterns, iterations=case["iterations"], scale=beta, log_prior=prior
    )
    energy = hopfield_energy(result.states, patterns, scale=beta, log_prior=prior)
    weight = torch.ones(()) if prior is None else prior.exp()
    xi = states
    for _ in range(case["iterations"]):
        terms = weight * (beta * torch.einsum("bgnd,bgmd->bgnm", xi, patterns)).exp()
        evidence = terms.sum(-1)
        xi = torch.einsum("bgnm,bgmd->bgnd", terms / evidence[..., None], patterns)
    torch.testing.assert_close(result.states, xi)
    torch.testing.assert_close(result.log_evidence, evidence.log())
    terms = weight * (beta * torch.einsum("bgnd,bgmd->bgnm", xi, patterns)).exp()
    torch.testing.assert_close(energy, (xi * xi).sum(-1) / 2 - terms.sum(-1).log() / beta)


@given(CASES)
def test_the_energy_never_rises(case):
    states, patterns, prior = problem(case)
    options = {"scale": case["scale"], "log_prior": prior}
    before = hopfield_energy(states, patterns, **options)
    for _ in range(6):
        states = hopfield_retrieval(states, patterns, **options).states
        after = hopfield_energy(states, patterns, **options)
        assert (after <= before + 1e-9 * (1 + before.abs())).all()
        before = after


@given(CASES)
def test_the_energy_has_the_bounds_of_the_paper(case):
    states, patterns, _ = problem({**case, "prior": False})
    inside = hopfield_retrieval(states, patterns, scale=case["scale"]).states
    largest = patterns.square().sum(-1).amax(-1, keepdim=True)
    constants = math.log(patterns.shape[-2]) / case["scale"] + largest / 2
    energy = hopfield_energy(inside, patterns, scale=case["scale"]) + constants
    assert (energy >= -1e-9).all()
    assert (energy <= 2 * largest + 1e-9).all()


def test_hidden_patterns_are_not_retrieved():
    patterns = stored()
    prior = torch.zeros(12)
    prior[3] = -math.inf
    result = hopfield_retrieval(patterns[:, :, 3:4], patterns, iterations=2, log_prior=prior)
    others = patterns[:, :, prior == 0]
    expected = hopfield_retrieval(patterns[:, :, 3:4], others, iterations=2)
    torch.testing.assert_close(result, expected)
    nothing = torch.full((12,), -math.inf)
    blind = hopfield_retrieval(patterns, patterns, log_prior=nothing)
    assert not blind.states.any()
    assert (hopfield_energy(patterns, patterns, log_prior=nothing) == math.inf).all()


def test_the_order_of_patterns_does_not_matter():
    states, patterns = draw(1, 2, 3, 4), draw(1, 2, 5, 4, seed=1)
    turned = hopfield_retrieval(states, patterns.flip(-2), iterations=3)
    torch.testing.assert_close(turned, hopfield_retrieval(states, patterns, iterations=3))
    turned = hopfield_retrieval(states.flip(-2), patterns, iterations=3).states
    torch.testing.assert_close(
        turned.flip(-2), hopfield_retrieval(states, patterns, iterations=3).states
    )


def test_gradients_go_through_every_iteration():
    inputs = (draw(1, 2, 3, 2), draw(1, 2, 4, 2, seed=1), draw(3, 4, seed=2))
    inputs = tuple(tensor.requires_grad_() for tensor in inputs)

    def run(states, patterns, prior):
        return hopfield_retrieval(states, patterns, iterations=3, scale=0.7, log_prior=prior)

    assert gradcheck(run, inputs)

    def energy(states, patterns, prior):
        return hopfield_energy(states, patterns, scale=0.7, log_prior=prior)

    assert gradcheck(energy, inputs)


def test_half_precision_keeps_its_dtype():
    states, patterns = draw(1, 1, 3, 4).bfloat16(), draw(1, 1, 5, 4, seed=1).bfloat16()
    result = hopfield_retrieval(states, patterns, iterations=2)
    assert (result.states.dtype, result.log_evidence.dtype) == (torch.bfloat16, torch.float32)
    exact = hopfield_retrieval(states.double(), patterns.double(), iterations=2)
    torch.testing.assert_close(result.states.double(), exact.states, rtol=0, atol=3e-2)


def test_wrong_arguments_are_named():
    states, patterns = draw(1, 1, 3, 4), draw(1, 1, 5, 4, seed=1)
    with pytest.raises(ValueError, match="iterations"):
        hopfield_retrieval(states, patterns, iterations=0)
    with pytest.raises(ValueError, match="scale"):
        hopfield_energy(states, patterns, scale=0.0)
    with pytest.raises(ValueError, match="keys"):
        hopfield_retrieval(states, patterns[..., :3])
    with pytest.raises(BackendError):
        hopfield_retrieval(states, patterns, backend="flex")
    assert torch.equal(
        hopfield_retrieval(states, patterns, backend="reference").states,
        attend(states, patterns, patterns, backend="reference").values,
    )
