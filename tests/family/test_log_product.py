"""Products of matrices of probabilities in the log, against the products themselves."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probseg.family.low_rank import log_product
from support.ops_cases import draw


@given(st.tuples(*(st.integers(1, 5),) * 3), st.integers(0, 99))
def test_it_is_the_log_of_a_product(sizes, seed):
    n, k, m = sizes
    left, right = draw(2, 3, n, k, seed=seed), draw(2, 3, k, m, seed=seed + 1)
    found = log_product(left, right)
    torch.testing.assert_close(found, (left.exp() @ right.exp()).log())


def test_nothing_underflows():
    left, right = draw(1, 1, 3, 2) - 600, draw(1, 1, 2, 4, seed=1) - 700
    torch.testing.assert_close(log_product(left, right), log_product(left + 600, right) - 600)
    assert log_product(left.float(), right.float()).isfinite().all()


def test_gradients_also_where_nothing_is_possible():
    left, right = draw(1, 2, 3, 4), draw(1, 2, 4, 5, seed=1)
    left[:, :, 1] = left[..., 2] = right[..., 2, :] = right[..., 3] = -math.inf
    possible = torch.ones(1, 2, 3, 5).bool()
    possible[:, :, 1] = possible[..., 3] = False
    left.requires_grad_(), right.requires_grad_()
    found = log_product(left, right)
    assert torch.equal(found > -math.inf, possible)
    weights = draw(*found.shape, seed=2)
    gradients = torch.autograd.grad(found, (left, right), weights)
    seen = [0, 1, 3]
    product = left[..., seen].exp() @ right[..., seen, :].exp()
    wanted = torch.where(possible, weights / product, 0.0)
    torch.testing.assert_close(gradients[0], left.exp() * (wanted @ right.exp().mT))
    torch.testing.assert_close(gradients[1], right.exp() * (left.exp().mT @ wanted))


def test_gradients_of_gradients_are_refused():
    left, right = draw(1, 1, 3, 2).requires_grad_(), draw(1, 1, 2, 3, seed=1)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        torch.autograd.grad(log_product(left, right).sum(), left, create_graph=True)
