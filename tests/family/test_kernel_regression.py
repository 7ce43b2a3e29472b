"""Nadaraya-Watson kernel regression against its formula in loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from probseg.family.kernels import kernel_edges, nadaraya_watson
from support.ops_cases import draw
from support.rows import each


def looped(queries: Tensor, keys: Tensor, values: Tensor, width: Tensor) -> Tensor:
    """`sum_j K(w (q - k_j)) v_j / sum_l K(w (q - k_l))`, for w (B, G, 1)."""
    outputs = torch.zeros(*queries.shape[:-1], values.shape[-1], dtype=torch.float64)
    for b, g, i in torch.cartesian_prod(*map(torch.arange, queries.shape[:3])).reshape(-1, 3):
        kernels = [
            math.exp(-0.5 * sum(((queries[b, g, i] - key) * width[b, g, 0]) ** 2))
            for key in keys[b, g]
        ]
        for kernel, value in zip(kernels, values[b, g], strict=True):
            outputs[b, g, i] += kernel / sum(kernels) * value
    return outputs


@given(
    st.tuples(*(st.integers(1, 4),) * 4),
    st.sampled_from(["float", "number", "heads", "items"]),
    st.integers(0, 99),
)
def test_it_is_the_weighted_mean(sizes, kind, seed):
    n, m, d, v = sizes
    shape = {"float": (), "number": (1,), "heads": (2, 1), "items": (2, 2, 1)}[kind]
    width = draw(*shape, seed=seed + 3).abs() + 0.2
    queries, keys, values = (
        draw(2, 2, *size, seed=seed + i) for i, size in enumerate(((n, d), (m, d), (m, v)))
    )
    given_width = float(width) if kind == "float" else width
    found = nadaraya_watson(queries, keys, values, bandwidth_inverse=given_width)
    torch.testing.assert_close(found, looped(queries, keys, values, width.expand(2, 2, 1)))


@pytest.mark.parametrize("shape", [(), (2, 1), (2, 2, 1)])
def test_gradients(shape):
    queries, keys, values = draw(2, 2, 4, 3), draw(2, 2, 5, 3, seed=1), draw(2, 2, 5, 2, seed=2)
    width = draw(*shape, seed=3).abs() + 0.5
    inputs = [tensor.requires_grad_() for tensor in (queries, keys, values, width)]
    assert gradcheck(lambda q, k, v, w: nadaraya_watson(q, k, v, bandwidth_inverse=w), inputs)


def test_a_mask_hides_keys():
    queries, keys, values = draw(1, 1, 3, 2), draw(1, 1, 4, 2, seed=1), draw(1, 1, 4, 2, seed=2)
    mask = torch.tensor([0.0, 0.0, -math.inf, 0.0])
    found = nadaraya_watson(queries, keys, values, log_mask=mask)
    seen = [0, 1, 3]
    wanted = nadaraya_watson(queries, keys[:, :, seen], values[:, :, seen])
    torch.testing.assert_close(found, wanted)
    weights = kernel_edges(queries, keys, log_mask=mask).log_probability(slice(None)).exp()
    torch.testing.assert_close(weights @ values, wanted)


@each(
    ("width", "message"),
    [
        (0.0, "bandwidth_inverse"),
        (-1.0, "above 0, got -1.0"),
        (math.inf, "must be finite"),
        (torch.ones(4), r"shared by the keys.*\(4,\).*gaussian_edges"),
        (torch.ones(1, 1, 4), r"shared by the keys.*\(1, 1, 4\)"),
    ],
)
def test_wrong_bandwidths_are_named(width, message):
    x = torch.zeros(1, 1, 4, 2)
    with pytest.raises(ValueError, match=message):
        nadaraya_watson(x, x, x, bandwidth_inverse=width)
