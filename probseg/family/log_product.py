"""The product of two matrices of probabilities that are given by their logarithms."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from probseg.ops.backends.gradients import Context


def log_product(left: Tensor, right: Tensor) -> Tensor:
    """Return `log sum_k exp(left_ik + right_kj)`.

    The exponentials are never multiplied, as their products would underflow. A loop over k keeps
    memory at a few results, in both directions.

    Args:
        left: `(B, G, N, K)`, float32 or float64; -inf is a probability of 0.
        right: `(B, G, K, M)`, likewise.

    Returns:
        `(B, G, N, M)`; -inf, without gradient, where no k has any probability.

    Raises:
        RuntimeError: In the backward pass, if it is to be differentiated again.
    """
    result: Tensor = _LogProduct.apply(left, right)
    return result


class _LogProduct(torch.autograd.Function):
    """With the shares `s_ijk = exp(left_ik + right_kj - result_ij)` of each k.

    `dleft_ik = sum_j s_ijk dresult_ij` and `dright_kj = sum_i s_ijk dresult_ij`.
    """

    @staticmethod
    def forward(ctx: Context, left: Tensor, right: Tensor) -> Tensor:
        shape = (*left.shape[:-1], right.shape[-1])
        highest = left.new_full(shape, -math.inf)
        for k in range(left.shape[-1]):
            torch.maximum(highest, _through(left, right, k), out=highest)
        highest.masked_fill_(highest == -math.inf, 0.0)
        total = left.new_zeros(shape)
        for k in range(left.shape[-1]):
            total += _through(left, right, k).sub_(highest).exp_()
        result = total.log_().add_(highest)
        ctx.save_for_backward(left, right, result)
        return result

    @staticmethod
    def backward(ctx: Context, d_result: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled():
            msg = (
                "log probabilities of edges through bases cannot be differentiated twice "
                "(create_graph=True); write them out from SoftmaxEdges of the bases"
            )
            raise RuntimeError(msg)
        left, right, result = ctx.saved_tensors
        impossible = result == -math.inf
        finite = result.masked_fill(impossible, 0.0)
        wanted = d_result.masked_fill(impossible, 0.0)
        d_left, d_right = torch.zeros_like(left), torch.zeros_like(right)
        for k in range(left.shape[-1]):
            part = _through(left, right, k).sub_(finite).exp_().mul_(wanted)
            d_left[..., k], d_right[..., k, :] = part.sum(-1), part.sum(-2)
        return d_left, d_right


def _through(left: Tensor, right: Tensor, k: int) -> Tensor:
    return left[..., k, None] + right[..., k, None, :]
