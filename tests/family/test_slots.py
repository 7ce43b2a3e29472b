"""Slot attention, slot inference and block slots against plain loops, and their limits."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from probseg.family.energy import hopfield_retrieval
from probseg.family.slots import (
    Memories,
    block_slot_free_energy,
    block_slot_inference,
    slot_attention,
    slot_free_energy,
    slot_inference,
)
from probseg.ops import KeyAdaptation, probabilistic_attention
from support.ops_cases import draw
from support.refusals import refused

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


@pytest.mark.parametrize("update", [slot_attention, slot_inference, slot_free_energy])
def test_gradients_go_through_every_iteration(update):
    tensors = (draw(1, 2, 5, 2), draw(1, 2, 3, 2, seed=1), draw(5, 3, seed=2))
    options = {} if update is slot_free_energy else {"iterations": 3}

    def run(inputs, slots, prior):
        return update(inputs, slots, scale=0.7, log_prior=prior, **options)

    assert gradcheck(run, tuple(tensor.requires_grad_() for tensor in tensors))


@pytest.mark.parametrize("function", [block_slot_inference, block_slot_free_energy])
def test_gradients_go_to_the_memories_too(function):
    tensors = (draw(1, 2, 4, 4), draw(1, 2, 3, 4, seed=1), draw(1, 2, 2, 3, 2, seed=2))

    def run(inputs, slots, patterns):
        memories = Memories(patterns, scale=0.8, strength=0.6)
        return function(inputs, slots, memories, precision=2.0)

    assert gradcheck(run, tuple(tensor.requires_grad_() for tensor in tensors))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_means_keep_half_precision_and_sums_are_single(dtype):
    """The sums are above 65504, the largest number of float16."""
    inputs = (1000 + 10 * draw(1, 1, 300, 2)).to(dtype)
    slots = draw(1, 1, 2, 2, seed=1).to(dtype)
    means = slot_attention(inputs, slots, iterations=2, scale=1e-9)
    assert (means.slots.dtype, means.log_mass.dtype) == (dtype, torch.float32)
    exact = slot_inference(inputs.double(), slots.double(), iterations=2, scale=1e-9)
    assert exact.slots.max() > 70_000
    for start in (slots, slots.float()):
        found = slot_inference(inputs, start, iterations=2, scale=1e-9)
        assert found.slots.dtype == found.log_mass.dtype == torch.float32
        torch.testing.assert_close(found.slots.double(), exact.slots, rtol=1e-4, atol=0)
    energy = slot_free_energy(inputs, found.slots, scale=1e-9)
    wanted = slot_free_energy(inputs.double(), exact.slots, scale=1e-9)
    torch.testing.assert_close(energy.double(), wanted, rtol=1e-4, atol=0)
    refused(TypeError, lambda: slot_inference(inputs, slots.double()), "keys")


def test_wrong_arguments_are_named():
    x, slots, m = draw(1, 1, 7, 4), draw(1, 1, 3, 4, seed=1), draw(1, 1, 3, 5, 2, seed=2)
    few = Memories(m[:, :, :2])
    for call, named in (
        (lambda: slot_attention(x, slots, iterations=0), "iterations"),
        (lambda: slot_inference(x, slots, iterations=0), "iterations"),
        (lambda: slot_attention(x, slots[..., :2]), "keys"),
        (lambda: slot_inference(x, slots[..., :2]), "keys"),
        (lambda: slot_inference(x, slots, precision=0.0), "precision"),
        (lambda: slot_free_energy(x, slots, scale=-1.0), "scale"),
        (lambda: block_slot_inference(x, slots, Memories(m)), "patterns"),
        (lambda: block_slot_inference(x, slots, Memories(m[:, :, :1])), "patterns"),
        (lambda: block_slot_inference(x, slots, few, iterations=0), "iterations"),
        (lambda: block_slot_inference(x, slots, few, precision=0.0), "precision"),
        (lambda: Memories(m, strength=-1.0), "strength"),
        (lambda: Memories(m, scale=0.0), "scale"),
    ):
        refused(ValueError, call, named)


CASES_BLOCK_SLOTS = st.fixed_dictionaries(
    {
        "sizes": st.tuples(*(st.integers(1, high) for high in (2, 2, 6, 3))),
        "blocks": st.integers(1, 3),
        "width": st.integers(1, 3),
        "stored": st.integers(1, 4),
        "iterations": st.integers(1, 3),
        "scale": st.floats(0.05, 2.0),
        "memory_scale": st.floats(0.05, 5.0),
        "strength": st.floats(0.1, 5.0),
        "precision": st.floats(0.5, 10.0),
        "prior": st.booleans(),
        "seed": st.integers(0, 999),
    }
)


def problem_block_slots(case):
    b, g, n, k = case["sizes"]
    p, w, stored, seed = case["blocks"], case["width"], case["stored"], case["seed"]
    inputs, slots = draw(b, g, n, p * w, seed=seed), draw(b, g, k, p * w, seed=seed + 1)
    patterns = 2 * draw(b, g, p, stored, w, seed=seed + 2)
    memories = Memories(patterns, scale=case["memory_scale"], strength=case["strength"])
    prior = draw(n, k, seed=seed + 3) if case["prior"] else None
    options = {"scale": case["scale"], "precision": case["precision"], "log_prior": prior}
    return inputs, slots, memories, options


def plain_update(inputs, slots, memories, scale, precision, log_prior):
    """§4.0.6 as printed, block after block."""
    logits = scale * inputs @ slots.mT
    w = (logits if log_prior is None else logits + log_prior).softmax(-1)
    seen = w.mT @ inputs
    width = memories.patterns.shape[-1]
    recalled = torch.zeros_like(slots)
    for b in range(memories.patterns.shape[2]):
        channels = slice(b * width, (b + 1) * width)
        m = memories.patterns[:, :, b]  # (B, G, L, D / P)
        choice = (memories.scale * slots[..., channels] @ m.mT).softmax(-1)
        recalled[..., channels] = choice @ m
    return (seen + memories.strength * recalled) / precision


@given(CASES_BLOCK_SLOTS)
def test_equals_the_equations(case):
    inputs, slots, memories, options = problem_block_slots(case)
    found = block_slot_inference(
        inputs, slots, memories, iterations=case["iterations"], **options
    ).slots
    for _ in range(case["iterations"]):
        slots = plain_update(inputs, slots, memories, **options)
    torch.testing.assert_close(found, slots)


@given(CASES_BLOCK_SLOTS)
def test_the_free_energy_never_rises(case):
    inputs, slots, memories, options = problem_block_slots(case)
    before = block_slot_free_energy(inputs, slots, memories, **options)
    for _ in range(6):
        slots = block_slot_inference(inputs, slots, memories, iterations=1, **options).slots
        after = block_slot_free_energy(inputs, slots, memories, **options)
        assert (after <= before + 1e-9 * (1 + before.abs())).all()
        before = after


@given(CASES_BLOCK_SLOTS)
def test_the_free_energy_has_the_update_as_its_fixed_point(case):
    """Eq. 7: the gradient is that of the nodes less the update."""
    inputs, slots, memories, options = problem_block_slots(case)
    slots.requires_grad_()
    energy = block_slot_free_energy(inputs, slots, memories, **options)
    (gradient,) = torch.autograd.grad(energy.sum(), slots)
    moved = plain_update(inputs, slots, memories, **options)
    torch.testing.assert_close(gradient, options["precision"] * (slots - moved))


def test_without_strength_it_is_slot_inference():
    inputs, slots = draw(1, 2, 6, 4), draw(1, 2, 3, 4, seed=1)
    silent = Memories(draw(1, 2, 2, 5, 2, seed=2), strength=0.0)
    found = block_slot_inference(inputs, slots, silent, scale=0.5, precision=2.0)
    torch.testing.assert_close(found, slot_inference(inputs, slots, scale=0.5, precision=2.0))
    torch.testing.assert_close(
        block_slot_free_energy(inputs, slots, silent, scale=0.5),
        slot_free_energy(inputs, slots, scale=0.5),
    )


def test_without_inputs_to_see_it_is_retrieval():
    slots, m = draw(1, 2, 3, 4), draw(1, 2, 5, 4, seed=1)
    nothing = torch.zeros(1, 2, 1, 4, dtype=torch.float64)
    found = block_slot_inference(nothing, slots, Memories(m[:, :, None], scale=0.7), iterations=4)
    retrieved = hopfield_retrieval(slots, m, iterations=4, scale=0.7).states
    torch.testing.assert_close(found.slots, retrieved)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_half_precision_are_single_block_slots(dtype):
    inputs, slots, m = draw(1, 1, 30, 4), draw(1, 1, 3, 4, seed=1), draw(1, 1, 2, 5, 2, seed=2)
    inputs, slots, m = (1e4 + 100 * inputs).to(dtype), slots.to(dtype), m.to(dtype)
    exact = inputs.double(), slots.double(), Memories(m.double())
    wanted = block_slot_inference(*exact, scale=1e-9)
    assert wanted.slots.abs().max() > 70_000  # more than float16 holds
    for start in (slots, slots.float()):
        for patterns in (m, m.float()):
            found = block_slot_inference(inputs, start, Memories(patterns), scale=1e-9)
            assert found.slots.dtype == found.log_mass.dtype == torch.float32
            torch.testing.assert_close(found.slots.double(), wanted.slots, rtol=1e-4, atol=1.0)
    energy = block_slot_free_energy(inputs, slots, Memories(m), scale=0.5)
    assert energy.dtype == torch.float32
    torch.testing.assert_close(
        energy.double(), block_slot_free_energy(*exact, scale=0.5), rtol=1e-4, atol=1.0
    )
