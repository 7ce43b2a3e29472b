"""The free energy of latents with marginalised edges, and the procedure that lowers it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probseg.family.energy import edge_energy, node_energy
from probseg.ops import attend
from support.ops_cases import draw
from support.rows import each


def test_energies_are_sums_over_channels_and_edges():
    latents = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    torch.testing.assert_close(node_energy(latents, 2.0), torch.tensor([25.0, 1.0]))
    evidence = torch.tensor([math.log(6.0), -math.inf])
    torch.testing.assert_close(
        edge_energy(evidence, 2.0), torch.tensor([-math.log(6.0) / 2, math.inf])
    )


def test_half_precision_is_summed_in_single():
    latents = torch.full((1, 300), 20.0, dtype=torch.float16)
    assert node_energy(latents).dtype == torch.float32
    assert node_energy(latents).item() == 60_000.0
    assert node_energy(draw(2, 3)).dtype == torch.float64


@given(
    scale=st.floats(0.05, 20.0),
    precision=st.floats(0.1, 10.0),
    sizes=st.tuples(*(st.integers(1, 6) for _ in range(3))),
    seed=st.integers(0, 999),
)
def test_a_step_to_the_gradient_of_the_edges_never_raises_it(scale, precision, sizes, seed):
    """Eq. 7 from autograd, for edges from either side at once."""
    n, k, d = sizes
    x, y = draw(1, 1, n, d, seed=seed), draw(1, 1, n, d, seed=seed + 1)
    z = 3 * draw(1, 1, k, d, seed=seed + 2)

    def edges(z):
        to_latents = attend(x, z, z, scale=scale).log_evidence
        from_latents = attend(z, y, y, scale=scale).log_evidence
        return edge_energy(to_latents, scale).sum() + edge_energy(from_latents, scale).sum()

    before = torch.inf
    for _ in range(5):
        z = z.detach().requires_grad_()
        energy = node_energy(z, precision).sum() + edges(z)
        assert energy <= before + 1e-9 * (1 + abs(before))
        before = energy.item()
        z = -torch.autograd.grad(edges(z), z)[0] / precision


@each("wrong", [0.0, -1.0, math.inf, math.nan])
def test_numbers_that_void_the_guarantee_are_refused(wrong):
    with pytest.raises(ValueError, match="precision"):
        node_energy(draw(2, 3), wrong)
    with pytest.raises(ValueError, match="scale"):
        edge_energy(draw(2), wrong)
