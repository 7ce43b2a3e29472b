"""Attention along the rows or the columns of a map (Ho et al., 2019; Wang et al., 2020)."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from probseg.errors import check_name
from probseg.ops.checks import check_like, check_shape, check_units
from probseg.ops.numerics import working_dtype
from probseg.ops.position import RelativePosition
from probseg.ops.probabilistic import as_fixed, infer
from probseg.ops.settings import STANDARD, InferenceSettings

Axis = Literal["full", "height", "width"]


def axial_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    settings: InferenceSettings = STANDARD,
    *,
    axis: Axis,
    span: int | None = None,
    position: RelativePosition | None = None,
    initial_values: Tensor | None = None,
    fixed_values: Tensor | None = None,
    fixed_mask: Tensor | None = None,
) -> Tensor:
    """Apply `probabilistic_attention` to the lines of a map; each line is a separate mixture.

    Args:
        queries: `(B, G, D, H, W)`.
        keys: `(B, G, D, H, W)`.
        values: `(B, G, V, H, W)`.
        settings: The same for all lines.
        axis: "height" lets a pixel see its column, "width" its row, "full" the whole map.
        span: Size of the window along the line: a pixel sees those at most `span // 2` away; None
            is the whole line.
        position: Tables for a line: for a map of `H x 1` with the axis "height", of `1 x W`
            with "width".
        initial_values: `(B, G, V, H, W)`.
        fixed_values: `(B, G, V, H, W)`. They propagate within their own line; without them,
            nothing does.
        fixed_mask: Bool, `(B, H, W)`.

    Returns:
        The inferred values, shape `(B, G, V, H, W)`.

    Raises:
        ValueError: If a map has another shape, or the span is wrong; and as
            `probabilistic_attention` does.
        TypeError: If a dtype is wrong.
        UnknownNameError: If there is no axis of this name.
    """
    check_axis(axis, span)
    named = {"queries": queries, "keys": keys, "values": values}
    if initial_values is not None:
        named["initial_values"] = initial_values
    if fixed_values is not None:
        named["fixed_values"] = fixed_values
    for name, maps in named.items():
        if maps.ndim != 5:
            raise ValueError(
                f"`{name}` must be a map of shape (B, G, C, H, W), got {tuple(maps.shape)}; use "
                "probabilistic_attention for tokens"
            )
        channels = values.shape[2] if name.endswith("values") else queries.shape[2]
        expected = (*queries.shape[:2], channels, *queries.shape[-2:])
        check_shape(name, maps, expected, "(B, G, C, H, W)")
    if initial_values is not None:
        check_like("initial_values", initial_values, queries)
    tokens, units, unit_values = (to_lines(maps, "full") for maps in (queries, keys, values))
    check_units(tokens, units, unit_values, payload_name="values", payload_of="keys")
    return infer_lines(
        queries,
        keys,
        values,
        settings,
        axis=axis,
        span=span,
        position=position,
        initial_values=initial_values,
        fixed_values=fixed_values,
        fixed_mask=fixed_mask,
    )


def infer_lines(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    settings: InferenceSettings,
    *,
    axis: Axis,
    span: int | None,
    position: RelativePosition | None,
    initial_values: Tensor | None = None,
    fixed_values: Tensor | None = None,
    fixed_mask: Tensor | None = None,
) -> Tensor:
    """Compute `axial_attention` for maps that are known to fit together; it checks the mask."""
    height, width = queries.shape[-2:]
    lines, unit_values = to_lines(queries, axis), to_lines(values, axis)
    if fixed_values is not None:
        fixed_values = to_lines(fixed_values, axis)
    if fixed_mask is not None:
        check_shape("fixed_mask", fixed_mask, (queries.shape[0], height, width), "(B, H, W)")
        fixed_mask = to_lines(fixed_mask[:, None, None], axis)[:, 0, :, 0]  # (B * lines, length)
    mask = line_mask(axis, height, width, span, queries.device)
    inferred = infer(
        lines,
        to_lines(keys, axis),
        unit_values,
        settings,
        log_mask=() if mask is None else (mask[None, None].to(working_dtype(queries.dtype)),),
        initial_values=None if initial_values is None else to_lines(initial_values, axis),
        fixed=as_fixed(fixed_values, fixed_mask, lines, unit_values),
        position=position,
    )
    return from_lines(inferred.values.to(queries.dtype), axis, height, width)


def to_lines(maps: Tensor, axis: Axis) -> Tensor:
    """Turn the lines of a map `(B, G, C, H, W)` into sequences of tokens.

    `(B, G, H * W, C)` for "full", `(B * W, G, H, C)` for "height", `(B * H, G, W, C)` for "width".
    """
    if axis == "full":
        return maps.flatten(-2).mT  # (B, G, H * W, C)
    if axis == "height":
        return maps.permute(0, 4, 1, 3, 2).flatten(0, 1)  # (B * W, G, H, C)
    return maps.permute(0, 3, 1, 4, 2).flatten(0, 1)  # (B * H, G, W, C)


def from_lines(lines: Tensor, axis: Axis, height: int, width: int) -> Tensor:
    """Turn sequences of tokens back into a map `(B, G, C, H, W)`, the inverse of `to_lines`."""
    heads, channels = lines.shape[1], lines.shape[-1]
    if axis == "full":
        return lines.mT.reshape(-1, heads, channels, height, width)  # (B, G, C, H, W)
    if axis == "height":
        columns = lines.reshape(-1, width, heads, height, channels)  # (B, W, G, H, C)
        return columns.permute(0, 2, 4, 3, 1)  # (B, G, C, H, W)
    rows = lines.reshape(-1, height, heads, width, channels)  # (B, H, G, W, C)
    return rows.permute(0, 2, 4, 1, 3)  # (B, G, C, H, W)


def span_mask(length: int, span: int, device: torch.device | None = None) -> Tensor:
    """Return the band `|i - j| <= span // 2`: 0 inside, -inf outside, shape `(L, L)`."""
    position = torch.arange(length, device=device)
    distance = (position[:, None] - position).abs()  # (L, L)
    return torch.zeros(length, length, device=device).masked_fill(distance > span // 2, -math.inf)


def line_mask(
    axis: Axis, height: int, width: int, span: int | None, device: torch.device | None = None
) -> Tensor | None:
    """Return the mask of the lines of a map, `(L, L)`, or None if each line sees itself whole."""
    length = height if axis == "height" else width
    if span is None or span // 2 >= length - 1:
        return None
    return span_mask(length, span, device)


def check_axis(axis: str, span: int | None) -> None:
    """Check an axis and the span that goes with it."""
    check_name("axis", axis, get_args(Axis))
    if span is not None and axis == "full":
        raise ValueError(
            f"`span` must be None with axis='full', got {span}; choose axis 'height' or 'width'"
        )
    if span is not None and span < 1:
        raise ValueError(
            f"`span` must be at least 1 (the pixel itself), got {span}; None is the whole line"
        )
