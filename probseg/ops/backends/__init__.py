"""Implementations of the two attention primitives; ``reference`` specifies the others."""

from torch import Tensor

from probseg.ops.backends import chunked, flex, reference, sdpa
from probseg.ops.backends.interface import Backend, Primitive

BACKENDS: dict[str, Backend] = {
    "reference": reference,
    "chunked": chunked,
    "sdpa": sdpa,
    "flex": flex,
}

SMALL = 2**18
"""Number of logits up to which writing them out is fastest, see benchmarks/backends.py."""


def preference(primitive: Primitive, queries: Tensor, keys: Tensor) -> list[Backend]:
    """Return the backends that "auto" tries, the fastest first; the last one never refuses.

    On the CPU the order follows ``benchmarks/results/backends.csv``. On CUDA it follows the number
    of passes over the logits; "flex" is left to an explicit choice, because it compiles for each
    new shape.
    """
    pairs = queries.shape[:-1].numel() * keys.shape[-2]
    if pairs <= SMALL:
        return [reference]
    if primitive == "assign" and queries.device.type == "cpu":
        return [chunked]
    return [sdpa, chunked]
