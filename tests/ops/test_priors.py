"""DistancePrior against the distances written out."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from probseg.ops import Block, DistancePrior, KeyAdaptation, probabilistic_attention
from probseg.ops.backends.interface import EVERYTHING
from support.ops_cases import draw
from support.refusals import refused
from support.rows import each

P, ONE = torch.zeros(4, 2), torch.tensor(1.0)


def dense(prior: DistancePrior, batch: int, heads: int) -> Tensor:
    """`-|p_i - p_j| / length` in loops, (B, G, N, M)."""
    rows, columns = prior.query_positions.tolist(), prior.key_positions.tolist()
    distance = torch.tensor([[math.dist(p, r) for r in columns] for p in rows], dtype=torch.float64)
    length = prior.length.double().expand(batch, heads)[..., None, None]
    return -distance / length


def prior_of(n: int, m: int, *length: int, coordinates: int = 2, seed: int = 0) -> DistancePrior:
    return DistancePrior(
        3 * draw(n, coordinates, seed=seed),
        3 * draw(m, coordinates, seed=seed + 1),
        draw(*length, seed=seed + 2).exp(),
    )


@given(
    st.tuples(*(st.integers(1, 6),) * 2), st.integers(1, 3), st.integers(0, 2), st.integers(0, 99)
)
def test_blocks_and_scores_are_distances(tokens, coordinates, length_dims, seed):
    b, g = 2, 3
    prior = prior_of(*tokens, *(b, g)[2 - length_dims :], coordinates=coordinates, seed=seed)
    wanted = dense(prior, b, g)
    assert prior.shape == (b if length_dims == 2 else 1, g if length_dims else 1, *tokens)
    torch.testing.assert_close(prior.block(EVERYTHING).expand_as(wanted), wanted)
    last = [slice(size // 2, None) for size in (b, g, *tokens)]
    part = wanted[tuple(last)]
    torch.testing.assert_close(prior.block(Block(*last)).expand_as(part), part)
    rows = torch.arange(tokens[0]).flip(0)
    picked = prior.block(Block(slice(1, 2), slice(0, 2), rows, slice(None)))
    torch.testing.assert_close(picked.expand(1, 2, *tokens), wanted[1:2, :2, rows])
    places = torch.meshgrid(*(torch.arange(size) for size in wanted.shape), indexing="ij")
    torch.testing.assert_close(prior.score(*places), wanted)


@each("shape", [(), (2,), (3, 2), (3, 1)])
def test_gradients_of_the_length(shape):
    prior = prior_of(4, 3, *shape)
    places = torch.meshgrid(*(torch.arange(size) for size in (3, 2, 4, 3)), indexing="ij")
    block = Block(slice(None), slice(None), slice(1, 3), slice(None))

    def run(length: Tensor) -> tuple[Tensor, Tensor]:
        other = DistancePrior(prior.query_positions, prior.key_positions, length)
        return other.block(block), other.score(*places)

    assert gradcheck(run, prior.length.requires_grad_())


@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_tokens_in_the_same_place_give_finite_gradients(backend):
    prior = DistancePrior(P.double(), P.double(), torch.tensor(1.5).double().requires_grad_())
    x = draw(1, 2, 4, 3, seed=3).requires_grad_()
    result = probabilistic_attention(
        x, x, x, log_prior=prior, key_adaptation=KeyAdaptation(2), backend=backend
    )
    outputs = result.values.square().sum() + result.log_evidence.sum()
    gradients = torch.autograd.grad(outputs, (x, prior.length))
    assert gradients[0].isfinite().all()
    assert gradients[0].abs().max() > 1e-3
    assert gradients[1] == 0  # all distances are


@each("backend", ["reference", "chunked"])
def test_distances_have_the_dtype_of_the_tokens(backend):
    x = draw(1, 1, 12, 3)
    prior = DistancePrior.on_map(3, 4, length=3.0)
    written_out = dense(prior, 1, 1)
    for tokens, bound in ((x, 1e-15), (x.float(), 1e-6)):
        got, wanted = (
            probabilistic_attention(tokens, tokens, tokens, log_prior=of, backend=backend).values
            for of in (prior, written_out.to(tokens.dtype))
        )
        assert got.dtype == tokens.dtype
        assert (got - wanted).abs().max() < bound


@each("tokens", [5, 60])
@each("offset", [0.0, 0.3])
def test_distances_keep_their_digits_in_single_precision(offset, tokens):
    """Those of a token to itself above all, on a map of 256 pixels and between its pixels."""
    positions = (256 * draw(tokens, 2).sigmoid()).round().float() + offset
    prior = DistancePrior(positions, positions, ONE)
    rows = positions.double()
    wanted = -(rows[:, None] - rows).square().sum(-1).sqrt()
    error = (prior.block(EVERYTHING)[0, 0].double() - wanted).abs()
    assert error.max() < 1e-4
    assert error.diagonal().max() == 0


@each(
    ("fields", "message"),
    [
        ((P[0], P, ONE), "query_positions"),
        ((P, P.clone().requires_grad_(), ONE), "`key_positions` .*gradient"),
        ((P, P, 2.0), "length"),
        ((P, P[None], ONE), "key_positions"),
        ((P.long(), P, ONE), "query_positions"),
        ((P[:, :0], P[:, :0], ONE), "query_positions"),
        ((P, P[:, :1], ONE), "same number of coordinates, got 2 and 1"),
        ((P, P, ONE.expand(1, 1, 1)), "length"),
    ],
)
def test_wrong_fields_are_named(fields, message):
    with pytest.raises((ValueError, TypeError), match=message):
        DistancePrior(*fields)


@pytest.mark.parametrize("prior", [DistancePrior.on_map(2, 3), DistancePrior(P, P, torch.ones(3))])
def test_another_number_of_tokens_or_heads_is_named(prior):
    x = torch.zeros(1, 2, 4, 3)
    refused(ValueError, lambda: probabilistic_attention(x, x, x, log_prior=prior), "log_prior")
