"""Nothing is read of what a log prior of -inf hides, in any backend."""

from math import inf, nan

import pytest
import torch

from probseg.ops import KeyAdaptation, ValuePropagation, probabilistic_attention
from support.ops_cases import CPU_BACKENDS, PRIMITIVES, draw
from support.rows import pairwise

B, G, N, M, D, V = 2, 2, 5, 6, 3, 2
KEYS, QUERIES = [1, 4], [3]  # hidden
SEEN_KEYS = [i for i in range(M) if i not in KEYS]
SEEN_QUERIES = [i for i in range(N) if i not in QUERIES]
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
