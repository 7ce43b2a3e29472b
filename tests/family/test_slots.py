"""Slot attention and slot inference against plain implementations, and their limits."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from probseg.family.slots import slot_attention, slot_free_energy, slot_inference
from probseg.ops import KeyAdaptation, probabilistic_attention
from support.ops_cases import draw

CASES = st.fixed_dictionaries(
    {
        "sizes": st.tuples(*(st.integers(1, high) for high in (2, 2, 7, 4, 3))),
        "iterations": st.integers(1, 4),
        "scale": st.floats(0.05, 3.0),
        "precision": st.floats(0.3, 10.0),
        "prior": st.booleans(),
        "seed": st.integers(0, 999),
    }
)


def problem(case):
    b, g, n, k, d = case["sizes"]
    seed = case["seed"]
    prior = draw(n, k, seed=seed + 2) if case["prior"] else None
    return draw(b, g, n, d, seed=seed), 2 * draw(b, g, k, d, seed=seed + 1), prior


def shares(inputs, slots, scale, prior):
    """Responsibilities `(B, G, N, K)`, written out."""
    logits = scale * torch.einsum("bgnd,bgkd->bgnk", inputs, slots)
    return (logits if prior is None else logits + prior).softmax(-1)


@given(CASES)
def test_equal_the_equations(case):
    inputs, slots, prior = problem(case)
    scale, precision = case["scale"], case["precision"]
    options = {"iterations": case["iterations"], "scale": scale, "log_prior": prior}
    means, sums = slots, slots
    for _ in range(case["iterations"]):
        of_means = shares(inputs, means, scale, prior)
        means = torch.einsum("bgnk,bgnd->bgkd", of_means, inputs) / of_means.sum(-2)[..., None]
        of_sums = shares(inputs, sums, scale, prior)
        sums = torch.einsum("bgnk,bgnd->bgkd", of_sums, inputs) / precision
    attention = slot_attention(inputs, slots, **options)
    torch.testing.assert_close(attention.slots, means)
    torch.testing.assert_close(attention.log_mass.exp(), of_means.sum(-2))
    inference = slot_inference(inputs, slots, precision=precision, **options)
    torch.testing.assert_close(inference.slots, sums)
    torch.testing.assert_close(inference.log_mass.exp(), of_sums.sum(-2))


@given(CASES)
def test_inference_never_raises_the_free_energy(case):
    inputs, slots, prior = problem(case)
    options = {"scale": case["scale"], "precision": case["precision"], "log_prior": prior}
    before = slot_free_energy(inputs, slots, **options)
    for _ in range(6):
        slots = slot_inference(inputs, slots, iterations=1, **options).slots
        after = slot_free_energy(inputs, slots, **options)
        assert (after <= before + 1e-9 * (1 + before.abs())).all()
        before = after


@given(CASES)
def test_the_free_energy_is_minus_the_log_of_a_sum_over_all_edges(case):
    b, g, n, k, d = case["sizes"]
    case = {**case, "sizes": (b, g, min(n, 3), min(k, 3), d)}
    inputs, slots, prior = problem(case)
    n, k = inputs.shape[2], slots.shape[2]
    scale, precision = case["scale"], case["precision"]
    total = torch.zeros(b, g, dtype=torch.float64)
    for edges in torch.cartesian_prod(*[torch.arange(k)] * n).reshape(-1, n):
        chosen = slots[:, :, edges]  # (B, G, N, D)
        exponent = scale * (inputs * chosen).sum((-2, -1))
        if prior is not None:
            exponent = exponent + prior[torch.arange(n), edges].sum()
        total += exponent.exp()
    expected = precision * slots.square().sum((-2, -1)) / 2 - total.log() / scale
    energy = slot_free_energy(inputs, slots, scale=scale, precision=precision, log_prior=prior)
    torch.testing.assert_close(energy, expected)


@given(CASES)
def test_with_squared_distances_it_is_em_in_a_mixture_of_gaussians(case):
    inputs, slots, _ = problem(case)
    ones = torch.ones_like(inputs[..., :1])
    found = slot_attention(
        torch.cat([inputs, ones], -1),
        slots,
        inputs,
        iterations=case["iterations"],
        scale=case["scale"],
        as_keys=lambda s: torch.cat([s, -s.square().sum(-1, keepdim=True) / 2], -1),
    ).slots
    mixture = probabilistic_attention(
        inputs,
        slots,
        slots,
        query_precision=case["scale"],
        log_prior="uniform",
        key_adaptation=KeyAdaptation(case["iterations"], 0.0),
    )
    torch.testing.assert_close(found, mixture.keys)


def test_an_update_sees_means_of_values_and_slots():
    inputs, slots, values = draw(1, 1, 7, 3), draw(1, 1, 4, 5, seed=1), draw(1, 1, 7, 2, seed=2)
    projection, back = draw(5, 3, seed=3), draw(2, 5, seed=4)
    found = slot_attention(
        inputs,
        slots,
        values,
        iterations=2,
        scale=0.5,
        as_keys=lambda s: s @ projection,
        update=lambda means, s: (0.3 * s + means @ back).tanh(),
    ).slots
    for _ in range(2):
        w = shares(inputs, slots @ projection, 0.5, None)
        means = (w / w.sum(-2, keepdim=True)).mT @ values
        slots = (0.3 * slots + means @ back).tanh()
    torch.testing.assert_close(found, slots)


def test_slots_that_nobody_sees():
    inputs, slots = draw(1, 1, 7, 3), draw(1, 1, 4, 3, seed=1)
    prior = torch.tensor([0.0, 0.0, -math.inf, 0.0])
    for update in (slot_attention, slot_inference):
        found = update(inputs, slots, log_prior=prior)
        expected = update(inputs, slots[:, :, prior == 0])
        torch.testing.assert_close(found.slots[:, :, prior == 0], expected.slots)
        assert not found.slots[:, :, 2].any()
        assert found.log_mass[0, 0, 2] == -math.inf


@pytest.mark.parametrize("update", [slot_attention, slot_inference])
def test_order(update):
    inputs, slots = draw(1, 2, 7, 3), draw(1, 2, 4, 3, seed=1)
    found = update(inputs, slots, scale=0.5)
    torch.testing.assert_close(update(inputs.flip(-2), slots, scale=0.5), found)
    turned = update(inputs, slots.flip(2), scale=0.5)
    torch.testing.assert_close(turned.slots.flip(2), found.slots)
    torch.testing.assert_close(turned.log_mass.flip(2), found.log_mass)


@pytest.mark.parametrize("update", [slot_attention, slot_inference, slot_free_energy])
def test_gradients_go_through_every_iteration(update):
    tensors = (draw(1, 2, 5, 2), draw(1, 2, 3, 2, seed=1), draw(5, 3, seed=2))
    options = {} if update is slot_free_energy else {"iterations": 3}

    def run(inputs, slots, prior):
        return update(inputs, slots, scale=0.7, log_prior=prior, **options)

    assert gradcheck(run, tuple(tensor.requires_grad_() for tensor in tensors))


def test_means_keep_half_precision():
    inputs, slots = draw(1, 1, 30, 4).bfloat16(), draw(1, 1, 3, 4, seed=1).bfloat16()
    options = {"scale": 0.5, "iterations": 2}
    found = slot_attention(inputs, slots, **options)
    assert (found.slots.dtype, found.log_mass.dtype) == (torch.bfloat16, torch.float32)
    exact = slot_attention(inputs.double(), slots.double(), **options)
    torch.testing.assert_close(found.slots.double(), exact.slots, rtol=0, atol=3e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_half_precision_are_single(dtype):
    """Here they are above 65504, the largest number of float16."""
    inputs = 1000 + 10 * draw(1, 1, 300, 2)
    inputs, slots = inputs.to(dtype), draw(1, 1, 2, 2, seed=1).to(dtype)
    for start in (slots, slots.float()):
        found = slot_inference(inputs, start, iterations=2, scale=1e-9)
        assert found.slots.dtype == found.log_mass.dtype == torch.float32
        exact = slot_inference(inputs.double(), slots.double(), iterations=2, scale=1e-9)
        assert exact.slots.max() > 70_000
        torch.testing.assert_close(found.slots.double(), exact.slots, rtol=1e-4, atol=0)
        energy = slot_free_energy(inputs, found.slots, scale=1e-9)
        wanted = slot_free_energy(inputs.double(), exact.slots, scale=1e-9)
        torch.testing.assert_close(energy.double(), wanted, rtol=1e-4, atol=0)
    with pytest.raises(TypeError, match="keys"):
        slot_inference(inputs, slots.double())


def test_wrong_arguments_are_named():
    inputs, slots = draw(1, 1, 7, 3), draw(1, 1, 4, 3, seed=1)
    for update in (slot_attention, slot_inference):
        with pytest.raises(ValueError, match="iterations"):
            update(inputs, slots, iterations=0)
        with pytest.raises(ValueError, match="keys"):
            update(inputs, slots[..., :2])
    with pytest.raises(ValueError, match="precision"):
        slot_inference(inputs, slots, precision=0.0)
    with pytest.raises(ValueError, match="scale"):
        slot_free_energy(inputs, slots, scale=-1.0)
