"""attend and assign against loops over the equations, and what is hidden from them."""

import math
from math import inf, nan

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from probseg.ops import KeyAdaptation, ValuePropagation, assign, attend, probabilistic_attention
from support.ops_cases import CPU_BACKENDS, PRIMITIVES, draw
from support.refusals import refused
from support.rows import each, pairwise

SIZES = st.tuples(
    st.integers(1, 2), st.integers(1, 3), st.integers(1, 6), st.integers(1, 7), st.integers(1, 4)
)


PRIORS = st.sampled_from(["none", "unit", "pair", "heads", "full", "broadcast"])


def responsibilities(queries: Tensor, keys: Tensor, prior: np.ndarray, scale: float) -> tuple:
    """Weights and evidence of one head, `exp(S_ij) / sum_j exp(S_ij)`, in plain loops."""
    weights = np.zeros((len(queries), len(keys)))
    evidence = np.zeros(len(queries))
    for i, query in enumerate(queries.numpy()):
        for j, key in enumerate(keys.numpy()):
            weights[i, j] = math.exp(scale * float(query @ key) + prior[i, j])
        evidence[i] = weights[i].sum()
        if evidence[i] > 0:
            weights[i] /= evidence[i]
    return weights, evidence


def log(x: np.ndarray) -> Tensor:
    with np.errstate(divide="ignore"):
        return torch.from_numpy(np.log(x))


def make_prior(kind: str, sizes: tuple[int, ...], seed: int) -> tuple[Tensor | None, Tensor]:
    """A prior of the kind, with some hidden keys, and the same as (B, G, N, M)."""
    batch, heads, n, m = sizes
    shapes = {
        "unit": (m,),
        "pair": (n, m),
        "heads": (batch, heads, m),
        "full": sizes,
        "broadcast": (batch, 1, n, 1),
    }
    if kind == "none":
        return None, torch.zeros(sizes, dtype=torch.float64)
    prior = draw(*shapes[kind], seed=seed)
    prior = prior.masked_fill(prior > 1.0, -inf)
    dense = prior[:, :, None] if kind == "heads" else prior
    return prior, dense.expand(sizes)


@given(SIZES, st.integers(1, 5), PRIORS, st.sampled_from([1.0, 0.3]), st.integers(0, 99))
def test_primitives_equal_loops(sizes, v, kind, scale, seed):
    batch, heads, n, m, d = sizes
    queries, keys = draw(batch, heads, n, d, seed=seed), draw(batch, heads, m, d, seed=seed + 1)
    values, observations = draw(batch, heads, m, v, seed=3), draw(batch, heads, n, v, seed=4)
    prior, dense = make_prior(kind, (batch, heads, n, m), seed)
    attended = attend(queries, keys, values, log_prior=prior, scale=scale)
    assigned = assign(queries, keys, observations, log_prior=prior, scale=scale)
    for b in range(batch):
        for g in range(heads):
            weights, evidence = responsibilities(
                queries[b, g], keys[b, g], dense[b, g].numpy(), scale
            )
            torch.testing.assert_close(
                attended.values[b, g], torch.from_numpy(weights) @ values[b, g]
            )
            torch.testing.assert_close(attended.log_evidence[b, g], log(evidence))
            mass = weights.sum(0)
            mean = weights.T @ observations[b, g].numpy() / np.where(mass > 0, mass, 1)[:, None]
            torch.testing.assert_close(assigned.means[b, g], torch.from_numpy(mean))
            torch.testing.assert_close(assigned.log_mass[b, g], log(mass))


def dead_prior() -> Tensor:
    """Query 1 sees no key, and no query sees key 2."""
    prior = draw(4, 5, seed=9)
    prior[1] = -inf
    prior[:, 2] = -inf
    prior[0, 1] = -inf
    return prior


@pytest.mark.parametrize("primitive", [attend, assign])
@pytest.mark.parametrize("prior", [None, dead_prior()], ids=["no prior", "dead"])
def test_first_and_second_derivatives(primitive, prior):
    q, k = draw(1, 2, 4, 3).requires_grad_(), draw(1, 2, 5, 3, seed=1).requires_grad_()
    payload = draw(1, 2, 5 if primitive is attend else 4, 2, seed=2).requires_grad_()
    bias = draw(5, seed=3).requires_grad_()

    def both(q, k, payload, bias):
        prior_and_bias = bias if prior is None else prior + bias
        first, second = primitive(
            q, k, payload, log_prior=prior_and_bias, scale=0.7, backend="reference"
        )
        return first, second.masked_fill(second.isinf(), 0.0)

    assert gradcheck(both, (q, k, payload, bias))
    assert gradgradcheck(both, (q, k, payload, bias))


X = torch.zeros(2, 3, 4, 5)
WRONG = {
    "rank": (X[0], X, X, None, ValueError, "queries"),
    "batch": (X, X[:1], X, None, ValueError, "keys"),
    "channels": (X, X[..., :2], X, None, ValueError, "keys"),
    "payload": (X, X, X[:, :, :3], None, ValueError, "must have one row for each of the 4 .*got 3"),
    "integers": (X.long(), X, X, None, TypeError, "queries"),
    "dtype": (X, X.double(), X, None, TypeError, "keys"),
    "device": (X, X.to("meta"), X, None, ValueError, "keys"),
    "prior size": (X, X, X, X[0, 0, 0], ValueError, "log_prior"),
    "prior rank": (X, X, X, X[None], ValueError, "log_prior"),
    "scalar prior": (X, X, X, X.sum(), ValueError, "log_prior"),
    "bool prior": (X, X, X, X[0, 0, :, :4] > 0, TypeError, "log_prior"),
    "prior device": (X, X, X, torch.zeros(4, device="meta"), ValueError, "log_prior"),
}


@pytest.mark.parametrize("primitive", [attend, assign])
@each("case", WRONG)
def test_wrong_arguments_are_named(primitive, case):
    q, k, payload, prior, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        primitive(q, k, payload, log_prior=prior)


@pytest.mark.parametrize("primitive", [attend, assign])
@each("scale", [inf, math.nan, torch.tensor(0.5, requires_grad=True)])
def test_the_scale_is_a_finite_number(primitive, scale):
    refused(ValueError, lambda: primitive(X, X, X, scale=scale), "scale")


B, G, N, M, D, V = 2, 2, 5, 6, 3, 2


KEYS, QUERIES = [1, 4], [3]  # hidden


SEEN_KEYS = [i for i in range(M) if i not in KEYS]
DEVICES = [("cpu", backend) for backend in CPU_BACKENDS]


if torch.cuda.is_available():
    DEVICES += [("cuda", backend) for backend in (*CPU_BACKENDS, "flex")]


def priors():
    """Tensors that hide keys, and in some queries, by themselves or together."""
    units = draw(M, seed=5).index_fill(-1, torch.tensor(KEYS), -inf)
    heads = draw(B, G, M, seed=6).index_fill(-1, torch.tensor(KEYS), -inf)
    pairs = draw(N, M, seed=7).index_fill(-1, torch.tensor(KEYS), -inf)
    pairs[0, 2] = -inf
    rows = pairs.index_fill(-2, torch.tensor(QUERIES), -inf)
    some = draw(N, M, seed=8)
    some[QUERIES[0], SEEN_KEYS] = -inf  # with the units hidden, it sees nothing
    full = rows.expand(B, G, N, M).clone()
    return {"units": (units, False), "heads": (heads, False), "pairs": (pairs, False),
            "rows": (rows, True), "full": (full, True), "both": ((units, some), True)}  # fmt: skip


def junk(tensor, rows, value):
    return tensor.index_fill(-2, torch.tensor(rows), value)


def derived(function, tensors):
    """Outputs and gradients; outputs of -inf get none."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
    outputs = function(**leaves)
    total = sum(out.masked_fill(out == -inf, 0.0).square().sum() for out in outputs)
    gradients = torch.autograd.grad(total, list(leaves.values()))
    return [out.detach() for out in outputs], dict(zip(leaves, gradients, strict=True))


@pytest.mark.parametrize(
    ("place", "primitive", "prior", "value"),
    pairwise(DEVICES, PRIMITIVES, priors(), [nan, inf, -1e30]),
    ids=str,
)
def test_primitives_read_nothing_of_what_is_hidden(place, primitive, prior, value):
    device, backend = place
    log_prior, hides_queries = priors()[prior]
    rows = M if primitive == "attend" else N
    tensors = {
        "queries": draw(B, G, N, D),
        "keys": draw(B, G, M, D, seed=1),
        "payload": draw(B, G, rows, V, seed=2),
    }
    spoilt = {**tensors, "keys": junk(tensors["keys"], KEYS, value)}
    if hides_queries:
        spoilt["queries"] = junk(tensors["queries"], QUERIES, value)
    if primitive == "attend" or hides_queries:
        hidden = KEYS if primitive == "attend" else QUERIES
        spoilt["payload"] = junk(tensors["payload"], hidden, value)

    def call(queries, keys, payload):
        given = log_prior if isinstance(log_prior, tuple) else (log_prior,)
        given = tuple(term.to(queries) for term in given)
        return PRIMITIVES[primitive](queries, keys, payload, log_prior=given, backend=backend)

    dtype = torch.float32 if device == "cuda" else torch.float64
    results = []
    for drawn in (tensors, spoilt):
        moved = {name: tensor.to(device, dtype) for name, tensor in drawn.items()}
        results.append(derived(call, moved))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    assert not results[1][1]["keys"][..., KEYS, :].any()


@pytest.mark.parametrize(
    ("options", "prior", "backend"),
    pairwise(
        [
            {},
            {"value_iterations": 2},
            {"key_adaptation": KeyAdaptation(2, prior_precision=0.5)},
            {"value_propagation": ValuePropagation(2)},
        ],
        ["magnitude", "key_magnitude", "uniform", "given"],
        CPU_BACKENDS,
    ),
)
def test_hidden_units_are_as_if_absent(backend, prior, options):
    q, k, v = draw(B, G, N, D), draw(B, G, M, D, seed=1), draw(B, G, M, V, seed=2)
    mask = torch.zeros(M, dtype=torch.float64).index_fill(0, torch.tensor(KEYS), -inf)
    log_prior = draw(M, seed=4).log_softmax(-1) if prior == "given" else prior
    options = {**options, "value_precision": 0.7, "backend": backend}
    if "value_propagation" in options:
        fixed = torch.zeros(B, N, dtype=torch.bool)
        fixed[:, :2] = True
        options |= {"fixed_values": draw(B, G, N, V, seed=3), "fixed_mask": fixed}

    def whole(queries, keys, values):
        found = probabilistic_attention(
            queries, keys, values, log_prior=log_prior, log_mask=mask, **options
        )
        means = found.keys[:, :, SEEN_KEYS], found.unit_values[:, :, SEEN_KEYS]
        return found.values, found.log_evidence, *means

    def without(queries, keys, values):
        given = log_prior[SEEN_KEYS] if prior == "given" else prior
        found = probabilistic_attention(
            queries, keys[:, :, SEEN_KEYS], values[:, :, SEEN_KEYS], log_prior=given, **options
        )
        return found.values, found.log_evidence, found.keys, found.unit_values

    spoilt = {"queries": q, "keys": junk(k, KEYS, nan), "values": junk(v, KEYS, nan)}
    got, wanted = derived(whole, spoilt), derived(without, {"queries": q, "keys": k, "values": v})
    torch.testing.assert_close(got, wanted)
