import pytest
import torch
import torch.nn.functional as F

from probseg.export.graphs import Replaced, adaptive_avg_pool2d, solve


@pytest.mark.parametrize(("size", "grid"), [((12, 9), (4, 3)), ((10, 13), (4, 8)), ((3, 5), 8)])
def test_pooling_is_pytorchs(size, grid):
    maps = torch.randn(2, 3, *size, dtype=torch.float64)
    expected = F.adaptive_avg_pool2d(maps, grid)
    torch.testing.assert_close(adaptive_avg_pool2d(maps, grid), expected)


def test_solutions_of_the_classifiers_systems():
    rows = 30 * torch.randn(2, 50, 33)
    matrix = 10 * torch.eye(33) + rows.mT @ rows / 50
    target = torch.randn(2, 33)
    expected = torch.linalg.solve(matrix.double(), target.double())
    torch.testing.assert_close(solve(matrix, target).double(), expected, rtol=1e-3, atol=1e-5)


def test_pooling_is_replaced_inside_of_the_context():
    """A product of matrices is float32 arithmetic in another order than a mean."""
    maps = torch.randn(1, 64, 30, 30)
    with Replaced():
        pooled = F.adaptive_avg_pool2d(maps, 7)
    assert torch.equal(pooled, adaptive_avg_pool2d(maps, 7))
    assert not torch.equal(pooled, F.adaptive_avg_pool2d(maps, 7))
