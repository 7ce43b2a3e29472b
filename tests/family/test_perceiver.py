"""Latents that query the inputs: against attention, against slots, and as clustering."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from probseg.family.energy import hopfield_retrieval
from probseg.family.low_rank import BasesEdges, ComposedEdges, PerceiverAttention2d, latent_edges
from probseg.family.slots import slot_attention
from probseg.ops import SoftmaxEdges, attend
from support.ops_cases import draw


@given(
    st.tuples(*(st.integers(1, high) for high in (2, 2, 5, 6, 3, 3))),
    st.integers(1, 3),
    st.integers(0, 999),
)
def test_it_follows_its_equations(sizes, iterations, seed):
    b, g, n, m, k, d = sizes
    queries, keys = draw(b, g, n, d, seed=seed), draw(b, g, m, d, seed=seed + 1)
    values, latents = draw(b, g, m, 2, seed=seed + 2), draw(b, g, k, d, seed=seed + 3)
    edges = latent_edges(queries, keys, latents, iterations=iterations, scale=0.7)
    for _ in range(iterations - 1):
        latents = (0.7 * latents @ keys.mT).softmax(-1) @ keys
    read = (0.7 * queries @ latents.mT).softmax(-1)
    gathered = (0.7 * latents @ keys.mT).softmax(-1)
    torch.testing.assert_close(edges.expect(values), read @ (gathered @ values))
    torch.testing.assert_close(edges.log_probability(slice(None)).exp(), read @ gathered)


def test_the_softmax_is_over_inputs_and_that_of_slots_over_slots():
    """One update of each, from the same table of dot products."""
    inputs, tokens = draw(1, 1, 9, 3), draw(1, 1, 4, 3, seed=1)
    table = tokens @ inputs.mT  # (1, 1, K, N)
    latents = hopfield_retrieval(tokens, inputs, iterations=1).states
    torch.testing.assert_close(latents, table.softmax(-1) @ inputs)
    shares = table.softmax(-2)
    slots = slot_attention(inputs, tokens, iterations=1).slots
    torch.testing.assert_close(slots, shares / shares.sum(-1, keepdim=True) @ inputs)


def test_swapped_roles_with_the_evidence_as_prior_are_slots():
    """Attention from bases to tokens, where tokens have shared out their mass before."""
    tokens, bases = draw(1, 2, 9, 3), draw(1, 2, 4, 3, seed=1)
    shared = attend(tokens, bases, bases).log_evidence
    swapped = ComposedEdges(SoftmaxEdges(tokens, bases), SoftmaxEdges(bases, tokens, -shared))
    through = BasesEdges(tokens, bases)
    everything = slice(None)
    torch.testing.assert_close(
        swapped.log_probability(everything), through.log_probability(everything)
    )
    torch.testing.assert_close(swapped.expect(tokens), through.expect(tokens))


@given(st.integers(0, 999), st.floats(0.2, 4.0))
def test_with_squared_distances_latents_climb_the_density_of_the_inputs(seed, scale):
    """Mean shift: no update lowers the kernel density estimate at a latent."""
    inputs, latents = draw(1, 1, 12, 2, seed=seed), draw(1, 1, 5, 2, seed=seed + 1)
    prior = -scale * inputs.square().sum(-1) / 2
    before = -torch.inf
    for _ in range(8):
        density = (-scale * torch.cdist(latents, inputs).square() / 2).logsumexp(-1)
        assert (density >= before - 1e-9).all()
        before = density
        latents = hopfield_retrieval(latents, inputs, scale=scale, log_prior=prior).states


def test_latents_find_clusters_and_do_not_compete():
    """Latents near the same cluster end at the same mode; slots there share it out."""
    centres = torch.tensor([[-4.0, 0.0], [4.0, 0.0]]).double()
    inputs = (centres[:, None] + 0.3 * draw(2, 30, 2)).reshape(1, 1, 60, 2)
    start = torch.tensor([[[[-5.0, 1.0], [-3.0, -1.0], [3.5, 0.5]]]]).double()
    prior = -inputs.square().sum(-1) / 2
    latents = hopfield_retrieval(start, inputs, iterations=30, log_prior=prior).states[0, 0]
    torch.testing.assert_close(latents[0], latents[1], rtol=0, atol=1e-3)
    torch.testing.assert_close(latents, centres[[0, 0, 1]], rtol=0, atol=0.3)

    def as_keys(slots):
        return torch.cat([slots, -slots.square().sum(-1, keepdim=True) / 2], -1)

    padded = torch.cat([inputs, torch.ones_like(inputs[..., :1])], -1)
    slots = slot_attention(padded, start, inputs, iterations=30, as_keys=as_keys)
    torch.testing.assert_close(slots.log_mass.exp().sum(), torch.tensor(60.0).double())
    assert slots.log_mass[0, 0, :2].exp().max() < 29.9


def test_gradients():
    tensors = [draw(1, 2, 4, 3), draw(1, 2, 5, 3, seed=1), draw(1, 2, 5, 2), draw(1, 2, 3, 3)]
    tensors = [tensor.requires_grad_() for tensor in tensors]
    assert gradcheck(
        lambda q, k, v, z: latent_edges(q, k, z, iterations=3, scale=0.5).expect(v), tensors
    )


def test_wrong_numbers_are_named():
    with pytest.raises(ValueError, match="iterations"):
        latent_edges(*(draw(1, 1, 3, 2) for _ in range(3)), iterations=0)
    with pytest.raises(ValueError, match="num_latents"):
        PerceiverAttention2d(8, 6, num_latents=0)
