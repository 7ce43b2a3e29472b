"""Implementations of the two attention primitives; `reference` specifies the others."""

import torch

from probseg.ops.backends import chunked, flex, reference, sdpa
from probseg.ops.backends.interface import WRITTEN_OUT, Backend, Primitive

BACKENDS: dict[str, Backend] = {
    "reference": reference,
    "chunked": chunked,
    "sdpa": sdpa,
    "flex": flex,
}


def transformed() -> bool:
    """Return whether `torch.func`, forward-mode differentiation or `torch.jit` looks on."""
    if torch.compiler.is_compiling():
        return False
    stack = torch._C._functorch.peek_interpreter_stack()
    is_forward_mode = torch.autograd.forward_ad._current_level >= 0
    return stack is not None or is_forward_mode or torch.jit.is_tracing()


def preference(primitive: Primitive, device: torch.device, pairs: int) -> list[Backend]:
    """Return the backends that "auto" tries, the fastest first; the last one never refuses.

    On the CPU this follows `benchmarks/results/backends_cpu.csv`: fused kernels are the fastest
    to average by rows, and tiles to average by columns. To write out all pairs is faster in
    training with 128 tokens, by up to a seventh, and slower beyond. On CUDA it follows the number
    of passes over the pairs. "flex" is left to an explicit choice, because it compiles for each new
    shape.
    """
    if torch.compiler.is_exporting() or device.type == "meta" or transformed():
        return [reference]  # of plain operators of any size
    # The loop over the tiles cannot be part of a compiled graph.
    if torch.compiler.is_compiling() and pairs <= WRITTEN_OUT:
        return [sdpa, reference]
    if primitive == "assign" and device.type == "cpu" and not torch.compiler.is_compiling():
        return [chunked]
    return [sdpa, chunked]
