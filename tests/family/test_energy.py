"""Free energies of latents with marginalised edges: Hopfield networks, random fields."""

import itertools
import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from probseg.family.energy import (
    EdgeVariables,
    RandomField,
    collapsed_update,
    edge_posteriors,
    free_energy,
    hopfield_energy,
    hopfield_retrieval,
    mean_field_bound,
    node_energy,
)
from probseg.family.kernels import additive_edges, kernel_edges
from probseg.family.low_rank import BasesEdges
from probseg.family.predictive_coding import normalised_errors
from probseg.family.slots import (
    Memories,
    block_slot_free_energy,
    block_slot_inference,
    slot_free_energy,
    slot_inference,
)
from support.ops_cases import draw
from support.refusals import refused


def test_half_precision_is_summed_in_single():
    latents = torch.full((1, 300), 20.0, dtype=torch.float16)
    assert node_energy(latents).dtype == torch.float32
    assert node_energy(latents).item() == 60_000.0
    assert node_energy(draw(2, 3)).dtype == torch.float64


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


def test_hidden_patterns_are_not_retrieved():
    patterns = draw(1, 1, 12, 64).sign()  # well separated, of length sqrt(D)
    prior = torch.zeros(12)
    prior[3] = -math.inf
    result = hopfield_retrieval(patterns[:, :, 3:4], patterns, iterations=2, log_prior=prior)
    others = patterns[:, :, prior == 0]
    expected = hopfield_retrieval(patterns[:, :, 3:4], others, iterations=2)
    torch.testing.assert_close(result, expected)
    nothing = torch.full((12,), -math.inf)
    assert not hopfield_retrieval(patterns, patterns, log_prior=nothing).states.any()
    assert (hopfield_energy(patterns, patterns, log_prior=nothing) == math.inf).all()


def test_gradients_go_through_every_iteration():
    inputs = (draw(1, 2, 3, 2), draw(1, 2, 4, 2, seed=1), draw(3, 4, seed=2))
    inputs = tuple(tensor.requires_grad_() for tensor in inputs)
    for function in (partial(hopfield_retrieval, iterations=3), hopfield_energy):
        assert gradcheck(
            lambda s, p, prior, f=function: f(s, p, scale=0.7, log_prior=prior), inputs
        )


def test_half_precision_keeps_its_dtype():
    states, patterns = draw(1, 1, 3, 4).bfloat16(), draw(1, 1, 5, 4, seed=1).bfloat16()
    result = hopfield_retrieval(states, patterns, iterations=2)
    assert (result.states.dtype, result.log_evidence.dtype) == (torch.bfloat16, torch.float32)
    exact = hopfield_retrieval(states.double(), patterns.double(), iterations=2)
    torch.testing.assert_close(result.states.double(), exact.states, rtol=0, atol=3e-2)


def test_wrong_arguments_are_named():
    states, patterns = draw(1, 1, 3, 4), draw(1, 1, 5, 4, seed=1)
    mask = torch.ones(2, 2, dtype=torch.bool)
    for call, named in (
        (lambda: hopfield_retrieval(states, patterns, iterations=0), "iterations"),
        (lambda: hopfield_energy(states, patterns, scale=0.0), "scale"),
        (lambda: hopfield_retrieval(states, patterns[..., :3]), "keys"),
        (lambda: hopfield_retrieval(states, patterns, backend="flex"), "backend"),
        (lambda: node_energy(states, math.nan), "precision"),
        (lambda: EdgeVariables(pairs(2, 3), torch.zeros(2, 2)), "log_prior"),
        (lambda: EdgeVariables(pairs(2, 3), alternatives=mask), "alternatives"),
    ):
        refused(ValueError, call, f"`{named}`")


EVERYTHING = slice(None)
SEEDS = st.integers(0, 9999)


def scaled(ends: Tensor, others: Tensor, scale: float) -> Tensor:
    return scale * (ends * others).sum(-1)


def squared(ends: Tensor, others: Tensor, scale: float) -> Tensor:
    return -scale / 2 * (ends - others).square().sum(-1)


def random_field(seed: int, *, among_latents: bool) -> tuple[RandomField, Tensor, Tensor]:
    """A graph of 3 to 8 nodes, their values, and which are latent.

    With edges among latents, candidates join any two nodes, and otherwise no two latents.
    """
    generator = torch.Generator().manual_seed(seed)

    def whole(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    count = whole(3, 8)
    latent = whole(1, count - 1)
    pairs = [
        pair
        for pair in itertools.permutations(range(count), 2)
        if among_latents or max(pair) >= latent
    ]
    groups = []
    for strength in (0.3, -0.2)[: whole(1, 2)]:
        shape = variables, candidates = whole(1, 2), whole(1, 3)
        chosen = torch.randint(len(pairs), shape, generator=generator)
        alternatives = None
        if whole(0, 1):
            alternatives = torch.randint(0, 2, (whole(1, 4), candidates), generator=generator) > 0
            candidates = len(alternatives)
        prior = draw(variables, candidates, seed=seed + len(groups))
        groups.append(
            EdgeVariables(
                torch.tensor(pairs)[chosen],
                prior if whole(0, 1) else None,
                alternatives,
                partial(scaled, scale=strength),
            )
        )
    precision = 6 + draw(count, seed=seed + 2).square()
    return RandomField(groups, precision), 2 * draw(count, 2, seed=seed + 3), torch.arange(latent)


def graphs(field: RandomField):
    """All graphs: log prior, the edges with their potentials, and the alternatives chosen."""
    choices = []
    for number, group in enumerate(field.variables):
        count = group.edges.shape[1]
        sets = torch.eye(count) > 0 if group.alternatives is None else group.alternatives
        for i, edges in enumerate(group.edges.tolist()):
            weights = [1.0] * len(sets) if group.log_prior is None else group.log_prior[i].exp()
            total = float(sum(weights))
            choices.append(
                [
                    (
                        math.log(float(weight) / total),
                        [(*edges[c], group.potential) for c in range(count) if members[c]],
                        (number, i, a),
                    )
                    for a, (weight, members) in enumerate(zip(weights, sets, strict=True))
                ]
            )
    for graph in itertools.product(*choices):
        yield (
            sum(choice[0] for choice in graph),
            [edge for choice in graph for edge in choice[1]],
            [choice[2] for choice in graph],
        )


def log_joint(field: RandomField, nodes: Tensor, log_prior: float, edges: list) -> Tensor:
    """`log p(x, E) + log Z` of one graph."""
    own = sum(-p / 2 * x @ x for p, x in zip(field.precision, nodes, strict=True))
    return own + log_prior + sum(psi(nodes[u], nodes[v]) for u, v, psi in edges)


@given(SEEDS)
def test_energy_and_posteriors_are_those_of_all_graphs(seed):
    field, nodes, _ = random_field(seed, among_latents=True)
    joints, chosen = [], []
    for log_prior, edges, choice in graphs(field):
        joints.append(log_joint(field, nodes, log_prior, edges))
        chosen.append(choice)
    joints = torch.stack(joints)
    torch.testing.assert_close(free_energy(field, nodes), -joints.logsumexp(0))
    found = edge_posteriors(field, nodes)
    marginals = [torch.zeros_like(p) for p in found]
    for weight, choice in zip(joints.softmax(0), chosen, strict=True):
        for number, i, a in choice:
            marginals[number][i, a] += weight
    torch.testing.assert_close(found, marginals)


@given(SEEDS)
def test_the_gradient_is_the_expectation_over_all_graphs(seed):
    """Eq. 6, and Eq. 7 as its fixed point equation."""
    field, nodes, latents = random_field(seed, among_latents=False)
    nodes.requires_grad_()
    joints, gradients = [], []
    for log_prior, edges, _ in graphs(field):
        joints.append(log_joint(field, nodes, log_prior, edges))
        gradients.append(torch.autograd.grad(joints[-1], nodes)[0])
    weights = torch.stack(joints).softmax(0).detach()
    expected = torch.einsum("e,end->nd", weights, torch.stack(gradients))
    slope = torch.autograd.grad(free_energy(field, nodes), nodes)[0]
    torch.testing.assert_close(slope, -expected)
    moved = collapsed_update(field, nodes, latents)
    wanted = nodes.detach().clone()
    wanted[latents] += (expected / field.precision[:, None])[latents]
    torch.testing.assert_close(moved, wanted)


@given(SEEDS)
def test_no_update_raises_the_energy(seed):
    for among_latents in (False, True):
        field, nodes, latents = random_field(seed, among_latents=among_latents)
        turns = latents.unsqueeze(-1) if among_latents else latents.unsqueeze(0)
        before = free_energy(field, nodes)
        for _ in range(4):
            for some in turns:
                nodes = collapsed_update(field, nodes, some)
                after = free_energy(field, nodes)
                assert after <= before + 1e-9 * (1 + before.abs())
                before = after


def test_joined_nodes_at_once_can_raise_the_energy():
    """Why they have to take turns: here both jump to the place of the other, and it rises."""
    edges = EdgeVariables(torch.tensor([[[0, 1]]]), potential=partial(scaled, scale=-3.0))
    field, nodes = RandomField([edges], 1.0), torch.tensor([[1.0], [0.5]]).double()
    at_once = -3.0 * nodes.flip(0)
    assert free_energy(field, at_once) > free_energy(field, nodes) + 1
    with pytest.raises(ValueError, match=r"joined by an edge, got both ends of \(0, 1\)"):
        collapsed_update(field, nodes, torch.tensor([0, 1]))


@given(SEEDS)
def test_the_bound_is_that_of_the_best_distribution_of_edges(seed):
    """Mean field written out, `E_q[log p - log q]`, with means as values and any `q(E)`."""
    field, nodes, latents = random_field(seed, among_latents=True)
    precision = field.precision[latents]
    entropy = (math.log(2 * math.pi) + 1 - precision.log()).sum() * nodes.shape[-1] / 2

    def bound(beliefs: list[Tensor]) -> Tensor:
        energy = (field.precision * nodes.square().sum(-1)).sum() / 2
        energy = energy + len(latents) * nodes.shape[-1] / 2  # p/2 times the variance D/p
        for q, group in zip(beliefs, field.variables, strict=True):
            energy = energy + (q * (q.log() - group.joint(nodes))).sum()
        return entropy - energy

    found = mean_field_bound(field, nodes, latents)
    best = edge_posteriors(field, nodes)
    torch.testing.assert_close(found, bound(best))
    other = [(q.log() + draw(*q.shape, seed=seed)).softmax(-1) for q in best]
    assert bound(other) <= found + 1e-12


def pairs(queries: int, keys: int) -> Tensor:
    """An edge from each of the first nodes to one of those that follow, `(N, M, 2)`."""
    first, second = torch.arange(queries), queries + torch.arange(keys)
    return torch.stack(torch.meshgrid(first, second, indexing="ij"), -1)


def tokens_of(n: int, m: int) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys = draw(1, 2, n, 3), draw(1, 2, m, 3, seed=1)
    return queries, keys, torch.cat([queries, keys], -2)


def test_other_potentials():
    queries, keys, nodes = tokens_of(4, 5)
    weights = draw(1, 3, seed=4)
    for potential, wanted in (
        (partial(squared, scale=0.49), kernel_edges(queries, keys, bandwidth_inverse=0.7)),
        (
            lambda q, k: torch.tanh(q + k) @ weights[0],
            additive_edges(queries, keys, weights.expand(2, 3)),
        ),
    ):
        field = RandomField([EdgeVariables(pairs(4, 5), potential=potential)])
        (p,) = edge_posteriors(field, nodes)
        torch.testing.assert_close(p, wanted.log_probability(EVERYTHING).exp())


def test_hopfield_networks():
    """A latent for each state; inverse temperature as the precision of nodes and edges."""
    states, patterns, nodes = tokens_of(3, 5)
    edges = EdgeVariables(pairs(3, 5), potential=partial(scaled, scale=2.0))
    field = RandomField([edges], torch.tensor([2.0] * 3 + [0.0] * 5).double())
    latents = torch.arange(3)
    wanted = hopfield_energy(states, patterns, scale=2.0).sum(-1)
    energy = free_energy(field, nodes) / 2 - 3 * math.log(5) / 2
    torch.testing.assert_close(energy, wanted)
    moved = collapsed_update(field, nodes, latents)
    found = hopfield_retrieval(states, patterns, scale=2.0).states
    torch.testing.assert_close(moved[..., :3, :], found)


def test_slots_and_bases():
    """The same nodes and potentials as of Hopfield networks; the observed nodes have the edges."""
    slots, inputs, nodes = tokens_of(3, 5)
    prior = draw(5, 3, seed=2)
    edges = EdgeVariables(pairs(3, 5).transpose(0, 1), prior, potential=partial(scaled, scale=0.7))
    field = RandomField([edges], torch.tensor([0.7 * 1.5] * 3 + [0.0] * 5).double())
    options = {"scale": 0.7, "precision": 1.5, "log_prior": prior}
    wanted = slot_free_energy(inputs, slots, **options)
    energy = (free_energy(field, nodes) - prior.logsumexp(-1).sum()) / 0.7
    torch.testing.assert_close(energy, wanted)
    moved = collapsed_update(field, nodes, torch.arange(3))
    found = slot_inference(inputs, slots, iterations=1, **options).slots
    torch.testing.assert_close(moved[..., :3, :], found)
    (z,) = edge_posteriors(field, nodes)  # the E step of EM attention, too
    through = z @ (z / z.sum(-2, keepdim=True)).mT
    bases = BasesEdges(inputs, slots, prior, 0.7)
    torch.testing.assert_close(bases.log_probability(EVERYTHING).exp(), through)


def test_block_slots():
    """Memories are nodes, zero outside of their block, and each block of a slot has an edge."""
    slots, inputs = draw(1, 1, 2, 4), draw(1, 1, 3, 4, seed=1)
    patterns = draw(1, 1, 2, 3, 2, seed=2)
    memories = torch.zeros(1, 1, 2, 3, 4).double()
    memories[:, :, 0, :, :2], memories[:, :, 1, :, 2:] = patterns[:, :, 0], patterns[:, :, 1]
    nodes = torch.cat([slots, inputs, memories.flatten(2, 3)], -2)
    seen = EdgeVariables(pairs(2, 3).transpose(0, 1))
    recalled = pairs(2, 9)[:, 3:].unflatten(1, (2, 3)).flatten(0, 1)  # (K P, L, 2)
    precision = torch.tensor([1.5] * 2 + [0.0] * 9).double()
    field = RandomField([seen, EdgeVariables(recalled)], precision)
    given_memories = Memories(patterns)
    wanted = block_slot_free_energy(inputs, slots, given_memories, precision=1.5)
    constant = 3 * math.log(2) + 4 * math.log(3)
    torch.testing.assert_close(free_energy(field, nodes) - constant, wanted)
    moved = collapsed_update(field, nodes, torch.arange(2))
    found = block_slot_inference(inputs, slots, given_memories, iterations=1, precision=1.5)
    torch.testing.assert_close(moved[..., :2, :], found.slots)


def test_predictive_coding():
    """Potentials are errors, which are not linear: descent by the gradient of Eq. 6."""
    predictions, children, nodes = tokens_of(3, 5)
    edges = EdgeVariables(pairs(3, 5).transpose(0, 1), potential=partial(squared, scale=1.3))
    field = RandomField([edges], 0.0)
    wanted = normalised_errors(children, predictions, precision=1.3)
    nodes.requires_grad_()
    energy = free_energy(field, nodes)
    torch.testing.assert_close(energy - 5 * math.log(3), wanted.free_energy)
    slope = torch.autograd.grad(energy.sum(), nodes)[0]
    torch.testing.assert_close(slope[..., :3, :], -wanted.bottom_up)
    torch.testing.assert_close(slope[..., 3:, :], wanted.top_down)
