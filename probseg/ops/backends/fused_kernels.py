"""PyTorch's fused attention kernels under one signature.

They are called below `torch.nn.functional.scaled_dot_product_attention`, which hides the log
evidence, and silently writes out all pairs if the widths of keys and values differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

FLASH_WIDTH = 192  # the widest head that CUDA's flash kernel differentiates on all devices
ATEN = torch.ops.aten
ALIGNMENT = 8  # channels of CUDA's kernels come in multiples of it


class Recorded(NamedTuple):
    """Arguments of the backward pass of a kernel; all widths are the same.

    Args:
        d_attended: Gradient of the attended values, `(B, G, N, V)`.
        queries: `(B, G, N, D)`.
        keys: `(B, G, M, D)`.
        values: `(B, G, M, V)`.
        attended: `(B, G, N, V)`.
        log_evidence: As the forward pass returned it, which may be padded.
        state: Further results of the forward pass.
        pairs: Prior of pairs, or None.
        scale: Factor of the dot products.
    """

    d_attended: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor
    attended: Tensor
    log_evidence: Tensor
    state: Sequence[Any]
    pairs: Tensor | None
    scale: float


class Kernel(NamedTuple):
    """Forward and backward pass of a stock kernel.

    `forward(queries, keys, values, pairs, scale)` returns the attended values, the log evidence
    and its state; `backward(recorded)` the gradients of queries, keys and values.
    """

    forward: Callable[..., Sequence[Any]]
    backward: Callable[[Recorded], Sequence[Tensor]]


def choose_kernel(queries: Tensor, width: int, pairs: Tensor | None) -> Kernel:
    """Return the kernel for queries of this device and dtype, and for keys of this width."""
    if queries.device.type == "cpu":
        return Kernel(_cpu_forward, _cpu_backward)
    half = queries.dtype in (torch.float16, torch.bfloat16)
    # The backward pass has one more channel, and has to fit the same kernel.
    narrow = width + ALIGNMENT <= FLASH_WIDTH
    if half and pairs is None and narrow and _has_flash(queries.device):
        return Kernel(_flash_forward, _flash_backward)
    return Kernel(_efficient_forward, _efficient_backward)


def _has_flash(device: torch.device) -> bool:
    """Return whether PyTorch has the flash kernel, and the device can run it."""
    built = torch.backends.cuda.is_flash_attention_available()
    return built and torch.cuda.get_device_capability(device) >= (8, 0)


def kernel_width(queries: Tensor, values: Tensor) -> int:
    """Return the number of channels to which queries, keys and values are to be padded."""
    width = max(queries.shape[-1], values.shape[-1])
    return width if queries.device.type == "cpu" else -(-width // ALIGNMENT) * ALIGNMENT


def pad(width: int, *tensors: Tensor) -> list[Tensor]:
    """Pad the channels with zeros; the kernels misread channels that are not contiguous."""
    missing = [width - tensor.shape[-1] for tensor in tensors]
    return [
        (F.pad(tensor, (0, count)) if count else tensor).contiguous()
        for tensor, count in zip(tensors, missing, strict=True)
    ]


def _cpu_forward(
    queries: Tensor, keys: Tensor, values: Tensor, pairs: Tensor | None, scale: float
) -> Sequence[Any]:
    results: Sequence[Any] = ATEN._scaled_dot_product_flash_attention_for_cpu(
        queries, keys, values, attn_mask=_expand(pairs, queries, keys), scale=scale
    )
    return results


def _cpu_backward(recorded: Recorded) -> Sequence[Tensor]:
    gradients: Sequence[Tensor] = ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
        *recorded[:6],
        0.0,
        False,
        attn_mask=_expand(recorded.pairs, recorded.queries, recorded.keys),
        scale=recorded.scale,
    )
    return gradients


def _flash_forward(
    queries: Tensor, keys: Tensor, values: Tensor, pairs: None, scale: float
) -> Sequence[Any]:
    del pairs
    results: Sequence[Any] = ATEN._scaled_dot_product_flash_attention(
        queries, keys, values, scale=scale
    )
    return results[:-1]  # the last one is for debugging


def _flash_backward(recorded: Recorded) -> Sequence[Tensor]:
    starts_and_lengths, random_state = recorded.state[:4], recorded.state[4:]
    gradients: Sequence[Tensor] = ATEN._scaled_dot_product_flash_attention_backward(
        *recorded[:6], *starts_and_lengths, 0.0, False, *random_state, scale=recorded.scale
    )
    return gradients


def _efficient_forward(
    queries: Tensor, keys: Tensor, values: Tensor, pairs: Tensor | None, scale: float
) -> Sequence[Any]:
    results: Sequence[Any] = ATEN._scaled_dot_product_efficient_attention(
        queries, keys, values, _align(pairs, queries, keys), True, scale=scale
    )
    return results


def _efficient_backward(recorded: Recorded) -> Sequence[Tensor]:
    gradients: Sequence[Tensor] = ATEN._scaled_dot_product_efficient_attention_backward(
        *recorded[:4],
        _align(recorded.pairs, recorded.queries, recorded.keys),
        recorded.attended,
        recorded.log_evidence,
        *recorded.state,
        0.0,
        [True, True, True, False],
        scale=recorded.scale,
    )
    return gradients[:3]


def _expand(pairs: Tensor | None, queries: Tensor, keys: Tensor) -> Tensor | None:
    """Let a prior cover all pairs without writing it out."""
    if pairs is None:
        return None
    return pairs.expand(*queries.shape[:-1], keys.shape[-2])  # (B, G, N, M)


def _align(pairs: Tensor | None, queries: Tensor, keys: Tensor) -> Tensor | None:
    """Give the rows of a prior the length in memory that CUDA's kernel wants."""
    if pairs is None:
        return None
    columns = keys.shape[-2]
    rows = pairs.expand(*pairs.shape[:-1], columns).contiguous()
    rows = F.pad(rows, (0, -columns % 16))[..., :columns]
    return rows.expand(*queries.shape[:-1], columns)  # (B, G, N, M)
