"""Block-slot inference against a plain implementation, its limits and its free energy."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from probseg.family.block_slots import Memories, block_slot_free_energy, block_slot_inference
from probseg.family.energy import hopfield_retrieval
from probseg.family.slots import slot_free_energy, slot_inference
from support.ops_cases import draw

CASES = st.fixed_dictionaries(
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


def problem(case):
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


@given(CASES)
def test_equals_the_equations(case):
    inputs, slots, memories, options = problem(case)
    found = block_slot_inference(
        inputs, slots, memories, iterations=case["iterations"], **options
    ).slots
    for _ in range(case["iterations"]):
        slots = plain_update(inputs, slots, memories, **options)
    torch.testing.assert_close(found, slots)


@given(CASES)
def test_the_free_energy_never_rises(case):
    inputs, slots, memories, options = problem(case)
    before = block_slot_free_energy(inputs, slots, memories, **options)
    for _ in range(6):
        slots = block_slot_inference(inputs, slots, memories, iterations=1, **options).slots
        after = block_slot_free_energy(inputs, slots, memories, **options)
        assert (after <= before + 1e-9 * (1 + before.abs())).all()
        before = after


@given(CASES)
def test_the_free_energy_has_the_update_as_its_fixed_point(case):
    """Eq. 7: the gradient is that of the nodes less the update."""
    inputs, slots, memories, options = problem(case)
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


def test_order():
    inputs, slots, m = draw(1, 2, 6, 4), draw(1, 2, 3, 4, seed=1), draw(1, 2, 2, 5, 2, seed=2)
    found = block_slot_inference(inputs, slots, Memories(m)).slots
    turned = block_slot_inference(inputs.flip(2), slots.flip(2), Memories(m.flip(3))).slots
    torch.testing.assert_close(turned.flip(2), found)


def test_gradients_go_through_every_iteration():
    tensors = (draw(1, 2, 4, 4), draw(1, 2, 3, 4, seed=1), draw(1, 2, 2, 3, 2, seed=2))
    tensors = tuple(tensor.requires_grad_() for tensor in tensors)

    def run(inputs, slots, patterns):
        memories = Memories(patterns, scale=0.8, strength=0.6)
        return block_slot_inference(inputs, slots, memories, precision=2.0)

    assert gradcheck(run, tensors)

    def energy(inputs, slots, patterns):
        return block_slot_free_energy(inputs, slots, Memories(patterns, scale=0.8, strength=0.6))

    assert gradcheck(energy, tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_half_precision_are_single(dtype):
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


def test_wrong_arguments_are_named():
    inputs, slots, m = draw(1, 1, 6, 4), draw(1, 1, 3, 4, seed=1), draw(1, 1, 3, 5, 2, seed=2)
    with pytest.raises(ValueError, match="P that divides the 4 channels of slots, got 3"):
        block_slot_inference(inputs, slots, Memories(m))
    with pytest.raises(ValueError, match="patterns"):
        block_slot_inference(inputs, slots, Memories(m[:, :, :1]))
    with pytest.raises(ValueError, match="unsqueeze a dimension for a single block"):
        Memories(m[:, :, 0])
    with pytest.raises(ValueError, match="strength"):
        Memories(m, strength=-1.0)
    with pytest.raises(ValueError, match="scale"):
        Memories(m, scale=0.0)
    with pytest.raises(ValueError, match="iterations"):
        block_slot_inference(inputs, slots, Memories(m[:, :, :2]), iterations=0)
    with pytest.raises(ValueError, match="precision"):
        block_slot_inference(inputs, slots, Memories(m[:, :, :2]), precision=0.0)
