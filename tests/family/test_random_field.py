"""Random fields against enumeration of all graphs, and the mechanisms that are instances."""

import itertools
import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from probseg.family.block_slots import Memories, block_slot_free_energy, block_slot_inference
from probseg.family.energy import (
    EdgeVariables,
    RandomField,
    collapsed_update,
    edge_posteriors,
    free_energy,
    hopfield_energy,
    hopfield_retrieval,
    mean_field_bound,
)
from probseg.family.kernels import additive_edges, kernel_edges
from probseg.family.low_rank import BasesEdges
from probseg.family.predictive_coding import normalised_errors
from probseg.family.slots import slot_free_energy, slot_inference
from probseg.ops import KeyAdaptation, SoftmaxEdges, WindowPrior, attend, probabilistic_attention
from support.ops_cases import draw

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


def log_evidence_by_integrals(field: RandomField, nodes: Tensor, latents: Tensor) -> Tensor:
    """`log int sum_E exp(...) dz`: a Gaussian integral for each graph."""
    count, channels = nodes.shape
    observed = torch.arange(len(latents), count)
    parts = []
    for log_prior, edges, _ in graphs(field):
        coupling = torch.zeros(count, count, dtype=nodes.dtype)
        for u, v, psi in edges:
            strength = psi(*torch.ones(2, 1, dtype=nodes.dtype))
            coupling[u, v] += strength
            coupling[v, u] += strength
        matrix = torch.diag(field.precision) - coupling
        inner = matrix[: len(latents), : len(latents)]
        outer = nodes[observed]
        linear = -matrix[: len(latents), len(latents) :] @ outer  # (K, D)
        constant = -(outer * (matrix[len(latents) :, len(latents) :] @ outer)).sum() / 2
        square = (linear * torch.linalg.solve(inner, linear)).sum() / 2
        volume = (len(latents) * math.log(2 * math.pi) - torch.logdet(inner)) * channels / 2
        parts.append(log_prior + constant + square + volume)
    return torch.stack(parts).logsumexp(0)


@given(SEEDS)
def test_mean_field_bounds_the_evidence_of_all_graphs(seed):
    field, nodes, latents = random_field(seed, among_latents=True)
    exact = log_evidence_by_integrals(field, nodes, latents)
    before = -torch.inf
    for _ in range(4):
        for latent in latents:
            nodes = collapsed_update(field, nodes, latent[None])
        bound = mean_field_bound(field, nodes, latents)
        assert before - 1e-9 <= bound <= exact + 1e-9 * (1 + exact.abs())
        before = bound


def test_mean_field_is_exact_for_one_graph_without_edges_between_latents():
    edges = EdgeVariables(torch.tensor([[[0, 2]], [[1, 3]]]))
    field = RandomField([edges], 2 + draw(4).square())
    nodes, latents = draw(4, 3), torch.tensor([0, 1])
    nodes = collapsed_update(field, nodes, latents)
    exact = log_evidence_by_integrals(field, nodes, latents)
    torch.testing.assert_close(mean_field_bound(field, nodes, latents), exact)


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


# The mechanisms as instances.


def pairs(queries: int, keys: int) -> Tensor:
    """An edge from each of the first nodes to one of those that follow, `(N, M, 2)`."""
    first, second = torch.arange(queries), queries + torch.arange(keys)
    return torch.stack(torch.meshgrid(first, second, indexing="ij"), -1)


def tokens_of(n: int, m: int) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys = draw(1, 2, n, 3), draw(1, 2, m, 3, seed=1)
    return queries, keys, torch.cat([queries, keys], -2)


def test_cross_attention_with_any_prior():
    queries, keys, nodes = tokens_of(4, 5)
    values, prior = draw(1, 2, 5, 2, seed=2), draw(4, 5, seed=3)
    prior[1, 2:] = -math.inf
    edges = EdgeVariables(pairs(4, 5), prior, potential=partial(scaled, scale=0.7))
    (p,) = edge_posteriors(RandomField([edges]), nodes)
    wanted = SoftmaxEdges(queries, keys, prior, 0.7)
    torch.testing.assert_close(p, wanted.log_probability(EVERYTHING).exp())
    read = attend(queries, keys, values, log_prior=prior, scale=0.7)
    torch.testing.assert_close(p @ values, read.values)
    evidence = edges.joint(nodes).logsumexp(-1) + prior.logsumexp(-1)
    torch.testing.assert_close(evidence, read.log_evidence)


def test_self_attention_and_local_attention():
    """Candidates join the tokens with each other, and with themselves."""
    tokens = draw(1, 2, 6, 3)
    grid = torch.stack(torch.meshgrid(torch.arange(6), torch.arange(6), indexing="ij"), -1)
    window = WindowPrior.on_map(2, 3, 1)
    for prior in (None, window):
        wanted = SoftmaxEdges(tokens, tokens, prior).log_probability(EVERYTHING).exp()
        seen = None
        if prior is not None:
            seen = torch.zeros(6, 6).double().masked_fill(wanted[0, 0] == 0, -math.inf)
            assert seen.isinf().any()
        field = RandomField([EdgeVariables(grid, seen)])
        torch.testing.assert_close(edge_posteriors(field, tokens)[0], wanted)


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


def test_key_adaptation_lowers_the_energy_to_a_stationary_point():
    """EM for the keys: edges lead from queries to units, as in slots, with squared distances."""
    keys, queries, nodes = tokens_of(3, 5)
    edges = EdgeVariables(pairs(3, 5).transpose(0, 1), potential=partial(squared, scale=0.8))
    field = RandomField([edges], 0.0)
    options = {"query_precision": 0.8, "log_prior": "uniform"}

    def adapted(iterations: int) -> Tensor:
        adaptation = KeyAdaptation(iterations, 0.0)
        result = probabilistic_attention(queries, keys, keys, key_adaptation=adaptation, **options)
        return torch.cat([result.keys, queries], -2)

    energies = [free_energy(field, nodes)]
    energies += [free_energy(field, adapted(count)) for count in (1, 2, 5)]
    assert all((low <= high + 1e-12).all() for high, low in itertools.pairwise(energies))
    last = adapted(2000).requires_grad_()
    slope = torch.autograd.grad(free_energy(field, last).sum(), last)[0]
    assert slope[..., :3, :].abs().max() < 1e-6


def test_gradients_go_through_updates():
    field, nodes, latents = random_field(5, among_latents=False)
    prior = field.variables[0].log_prior
    assert prior is not None

    def run(nodes: Tensor) -> Tensor:
        for _ in range(3):
            nodes = collapsed_update(field, nodes, latents)
        return free_energy(field, nodes)

    assert gradcheck(run, (nodes.requires_grad_(),))


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match=r"`edges`.*\(I, C, 2\)"):
        EdgeVariables(torch.tensor([[0, 1]]))
    with pytest.raises(ValueError, match="log_prior"):
        EdgeVariables(pairs(2, 3), torch.zeros(2, 2))
    with pytest.raises(ValueError, match="alternatives"):
        EdgeVariables(pairs(2, 3), alternatives=torch.ones(2, 2, dtype=torch.bool))
