"""Both primitives by PyTorch's stock fused attention kernels, on the CPU and on CUDA.

The kernels return the log evidence but give it no gradient, and take no prior that needs one. Both
are got from them nevertheless:

* A prior of the units is one more channel of the keys, against a channel of ones in the queries.
* The kernels' backward pass has `dS = w (dO Vᵀ - rowsum(dO O))`. One more channel with `V = 0`,
  `O = -1` and `dO = dL` leaves the first term alone and turns the second into
  `rowsum(dO O) - dL`, which is the gradient through the log evidence too.
* `assign` is `attend` twice: once for the evidence `L_i` and once with the roles swapped,
  where `softmax_i(S_ik - L_i)` are the shares of a key's mass and their log-sum-exp is its log.

The kernels are called below `torch.nn.functional.scaled_dot_product_attention`, which hides the log
evidence, and silently writes out all pairs if the widths of keys and values differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from probseg.ops.backends.interface import (
    Assigned,
    Attended,
    Context,
    PairwisePrior,
    Terms,
    is_unit,
    needs_gradient,
    refuse_double_backward,
)
from probseg.ops.numerics import full_precision, working_dtype

FLASH_WIDTH = 192  # the widest head that CUDA's flash kernel differentiates on all devices
ATEN = torch.ops.aten
ALIGNMENT = 8  # channels of CUDA's kernels come in multiples of it


Kernel = Literal["cpu", "flash", "efficient"]
"""A stock kernel."""


def choose_kernel(queries: Tensor, width: int, pairs: Tensor | None) -> Kernel:
    """Return the kernel for queries of this device and dtype, and for keys of this width."""
    if queries.device.type == "cpu":
        return "cpu"
    half = queries.dtype in (torch.float16, torch.bfloat16)
    # The backward pass has one more channel, and has to fit the same kernel.
    narrow = width + ALIGNMENT <= FLASH_WIDTH
    flash = torch.backends.cuda.is_flash_attention_available()
    if (
        half
        and pairs is None
        and narrow
        and flash
        and torch.cuda.get_device_capability(queries.device) >= (8, 0)
    ):
        return "flash"
    return "efficient"


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


def run_forward(
    kernel: Kernel, tensors: Sequence[Tensor], pairs: Tensor | None, scale: float
) -> Sequence[Any]:
    """Return the attended values, the log evidence, and the state of a kernel.

    The tensors, of the same width, are queries, keys and values.
    """
    queries, keys, _ = tensors
    if kernel == "cpu":
        attended, log_evidence = ATEN._scaled_dot_product_flash_attention_for_cpu(
            *tensors, attn_mask=_expand(pairs, queries, keys), scale=scale
        )  # compilers of PyTorch 2.8 take the log evidence for float32, also where it is float64
        results: Sequence[Any] = attended, log_evidence.to(working_dtype(queries.dtype))
    elif kernel == "flash":
        results = ATEN._scaled_dot_product_flash_attention(*tensors, scale=scale)
        results = results[:-1]  # the last one is for debugging
    else:
        results = ATEN._scaled_dot_product_efficient_attention(
            *tensors, _align(pairs, queries, keys), True, scale=scale
        )
    return results


def run_backward(
    kernel: Kernel,
    tensors: Sequence[Tensor],
    state: Sequence[Any],
    pairs: Tensor | None,
    scale: float,
) -> Sequence[Tensor]:
    """Return the gradients of queries, keys and values, for the state of the forward pass.

    The tensors, of the same width, are the gradient of the attended values, queries, keys, values,
    attended values, and the log evidence as it was returned, which may be padded.
    """
    gradients: Sequence[Tensor]
    _, queries, keys, _, attended, log_evidence = tensors
    if kernel == "cpu":
        gradients = ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
            *tensors, 0.0, False, attn_mask=_expand(pairs, queries, keys), scale=scale
        )
    elif kernel == "flash":
        starts_and_lengths, random_state = state[:4], state[4:]
        gradients = ATEN._scaled_dot_product_flash_attention_backward(
            *tensors, *starts_and_lengths, 0.0, False, *random_state, scale=scale
        )
    else:
        prior, wanted = _align(pairs, queries, keys), [True, True, True, False]
        gradients = ATEN._scaled_dot_product_efficient_attention_backward(
            *tensors[:4], prior, attended, log_evidence, *state, 0.0, wanted, scale=scale
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


HALF_PRECISION: frozenset[str] = frozenset({"cuda"})

HIDDEN = 1e30
"""Magnitude in the place of -inf, which would turn to NaN in products with 0."""


def refuse(queries: Tensor, keys: Tensor, payload: Tensor, terms: Terms) -> str | None:
    """Return why a call is not supported; None if it is."""
    del payload
    device = queries.device.type
    if device not in ("cpu", "cuda"):
        return f"PyTorch has fused kernels with a log evidence for cpu and cuda, not for {device}"
    if device == "cuda" and queries.dtype == torch.float64:
        return "the fused kernels on CUDA do not compute in float64"
    if queries.numel() == 0 or keys.numel() == 0:
        return "the fused kernels take no empty tensors"
    for term in terms:
        if isinstance(term, PairwisePrior):
            return f"a fused kernel cannot compute the pairs of a {type(term).__name__}"
        if not is_unit(term) and needs_gradient(term):
            return "the fused kernels give no gradient to a log prior of pairs"
    return None


def attend(queries: Tensor, keys: Tensor, values: Tensor, terms: Terms, scale: float) -> Attended:
    """Average the values of the keys by each query's responsibilities, see `reference`."""
    return Attended(*_fused(queries, keys, values, _split(terms), scale))


def assign(
    queries: Tensor, keys: Tensor, observations: Tensor, terms: Terms, scale: float
) -> Assigned:
    """Average the observations of the queries by each key's responsibilities, see `reference`."""
    prior = _split(terms)
    if prior.units is not None:
        # What all keys share changes no responsibility. The log mass is a sum of the prior and of
        # its negative in the evidence, which would lose the digits of a large one.
        largest = prior.units.detach().amax(-1, keepdim=True)  # (B, G, 1, 1), sizes may be 1
        prior = _Prior(prior.units - largest.where(largest > -inf, 0.0), prior.pairs)
    _, log_evidence = _fused(queries, keys, keys.detach(), prior, scale)  # (B, G, N)
    # A query that sees no key has no pair that is not hidden, whatever is subtracted there.
    evidence = log_evidence.where(log_evidence > -inf, 0.0).unsqueeze(-2)  # (B, G, 1, N)
    swapped = _Prior(-evidence, None if prior.pairs is None else prior.pairs.mT)
    means, log_mass = _fused(keys, queries, observations, swapped, scale)
    if prior.units is not None:
        log_mass = log_mass + prior.units.squeeze(-2)
    # Nothing flows back through a mass of -inf, by whichever way it became so.
    seen = log_mass > -inf
    return Assigned(means.where(seen.unsqueeze(-1), 0.0), log_mass.where(seen, -inf))


class _Prior(NamedTuple):
    """The terms of a prior by the way in which the kernels take them."""

    units: Tensor | None  # broadcasts to (B, G, 1, M)
    pairs: Tensor | None  # broadcasts to (B, G, N, M)


def _split(terms: Terms) -> _Prior:
    units: Tensor | None = None
    pairs: Tensor | None = None
    for term in terms:
        assert isinstance(term, Tensor), "refuse() lets no other prior through"
        if is_unit(term):
            units = term if units is None else units + term
        else:
            pairs = term.detach() if pairs is None else pairs + term.detach()
    return _Prior(units, pairs)


def _fused(
    queries: Tensor, keys: Tensor, values: Tensor, prior: _Prior, scale: float
) -> tuple[Tensor, Tensor]:
    """Call a kernel; a query all of whose pairs are hidden gets 0 and a log evidence of -inf."""
    if scale == 0.0:  # the channel of the prior is divided by it
        queries, scale = 0.0 * queries, 1.0
    if scale < 0.0:  # the kernels take the largest logit for that of the largest product
        queries, scale = -queries, -scale
    units, pairs = prior.units, prior.pairs
    # Compilers refuse an autograd function that is given one tensor twice.
    if keys is queries:
        keys = keys.view_as(keys)
    if values is queries or values is keys:
        values = values.view_as(values)
    if units is None and pairs is None:
        attended, log_evidence = _Fused.apply(queries, keys, values, None, scale)
        return attended, log_evidence
    # A prior of pairs would be rounded to the kernel's dtype, and float16 has no room for HIDDEN.
    if pairs is not None or queries.dtype == torch.float16:
        dtype = working_dtype(queries.dtype)
        queries, keys, values = queries.to(dtype), keys.to(dtype), values.to(dtype)
    if units is not None:
        channels = _channels(units / scale, keys)  # (B, G, M, 1 or 3)
        ones = queries.new_ones(*queries.shape[:-1], channels.shape[-1])
        queries = torch.cat([queries, ones], dim=-1)
        keys = torch.cat([keys, channels], dim=-1)
    if pairs is not None:
        pairs = pairs.clamp_min(-HIDDEN).contiguous()  # the kernels misread other layouts
    attended, log_evidence = _Fused.apply(queries, keys, values, pairs, scale)
    alive = log_evidence > -0.1 * HIDDEN * min(1.0, scale)
    return attended.where(alive.unsqueeze(-1), 0.0), log_evidence.where(alive, -inf)


def _channels(units: Tensor, keys: Tensor) -> Tensor:
    """Turn a prior of the units into channels of the keys.

    bfloat16 holds too few digits for it: there it is the sum of three channels.
    """
    rest = units.clamp(-HIDDEN, HIDDEN).mT.expand(*keys.shape[:-1], 1)  # (B, G, M, 1)
    if keys.dtype == rest.dtype:
        return rest
    parts: list[Tensor] = []
    for _ in range(3):
        parts.append(rest.to(keys.dtype))
        rest = rest - parts[-1].to(rest.dtype).detach()
    # Gradients flow through the first part alone: through each of them they would count thrice.
    return torch.cat([parts[0], parts[1].detach(), parts[2].detach()], dim=-1)


class _Context(Context):
    kernel: Kernel
    state: Sequence[Any]
    scale: float


class _Fused(torch.autograd.Function):
    """A fused kernel whose log evidence has a gradient."""

    @staticmethod
    def forward(
        ctx: _Context,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        pairs: Tensor | None,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        width = kernel_width(queries, values)
        kernel = choose_kernel(queries, width, pairs)
        padded = pad(width, queries, keys, values)
        attended, log_evidence, *state = run_forward(kernel, padded, pairs, scale)
        attended = attended[..., : values.shape[-1]]
        ctx.save_for_backward(queries, keys, values, pairs, attended, log_evidence)  # type: ignore[arg-type]
        ctx.kernel, ctx.state, ctx.scale = kernel, state, scale
        return attended, log_evidence[..., : queries.shape[-2]]

    @staticmethod
    def backward(
        ctx: _Context, d_attended: Tensor | None, d_evidence: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        refuse_double_backward("sdpa")
        queries, keys, values, pairs, attended, log_evidence = ctx.saved_tensors
        value_width = values.shape[-1]
        if d_attended is None:
            d_attended = torch.zeros_like(attended)
        if d_evidence is not None:
            minus_one = attended.new_full((*attended.shape[:-1], 1), -1.0)
            attended = torch.cat([attended, minus_one], dim=-1)
            d_evidence = d_evidence.unsqueeze(-1).to(attended.dtype)
            d_attended = torch.cat([d_attended, d_evidence], dim=-1)
            values = F.pad(values, (0, 1))
        width = kernel_width(queries, values)
        d_attended, q, k, v, attended = pad(width, d_attended, queries, keys, values, attended)
        tensors = d_attended, q, k, v, attended, log_evidence
        with full_precision(queries.device):
            gradients = run_backward(ctx.kernel, tensors, ctx.state, pairs, ctx.scale)
        d_queries, d_keys = (gradient[..., : queries.shape[-1]] for gradient in gradients[:2])
        return d_queries, d_keys, gradients[2][..., :value_width], None, None
