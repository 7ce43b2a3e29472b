"""Shared parts of the hand-written gradients of the backends."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx


class Context(FunctionCtx):
    """Autograd's context between forward and backward, with its undeclared attributes."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]


def refuse_double_backward(backend: str) -> None:
    """Raise where autograd records the backward pass to differentiate it again."""
    if torch.is_grad_enabled():
        msg = (
            f"`backend` {backend!r} cannot be differentiated twice (create_graph=True); use "
            "backend='reference'"
        )
        raise RuntimeError(msg)
