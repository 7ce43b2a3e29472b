"""attend and assign against loops over the equations, and their edge cases."""

import math
from math import inf

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from probseg.ops import assign, attend
from support.ops_cases import draw
from support.rows import each

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_sees_nothing_is_zero_and_gives_finite_gradients(dtype):
    q, k, v, o = (draw(1, 2, n, 3, seed=n, dtype=dtype).requires_grad_() for n in (4, 5, 5, 4))
    prior = dead_prior().float().requires_grad_()
    attended = attend(q, k, v, log_prior=prior)
    assigned = assign(q, k, o, log_prior=prior)
    assert (attended.values[:, :, 1] == 0).all()
    assert (attended.log_evidence[:, :, 1] == -inf).all()
    assert (assigned.means[:, :, 2] == 0).all()
    assert (assigned.log_mass[:, :, 2] == -inf).all()
    alive = [0, 2, 3]
    assert attended.log_evidence[:, :, alive].isfinite().all()
    total = attended.values.sum() + assigned.means.sum() + attended.log_evidence[:, :, alive].sum()
    total = total + assigned.log_mass[:, :, [0, 1, 3, 4]].sum()
    for gradient in torch.autograd.grad(total, (q, k, v, o, prior)):
        assert gradient.isfinite().all()


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
    with pytest.raises(ValueError, match="scale"):
        primitive(X, X, X, scale=scale)
