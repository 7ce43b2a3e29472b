"""Attention layers on maps: projections, heads, positions; standard and local attention."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseg.errors import check_least, check_name
from probseg.ops.axial import Axis, check_axis, from_lines, line_mask, to_lines
from probseg.ops.edges import EdgePosterior, gaussian_edges, row_blocks
from probseg.ops.numerics import working_dtype
from probseg.ops.position import FactoredPosition, FullPosition, RelativePosition, cells
from probseg.ops.priors import WindowPrior


class PositionEmbedding(nn.Module, ABC):
    """Tables for a nominal size of the map, with 1 across a line; other sizes interpolate them.

    Embeddings start with standard deviation `1 / sqrt(channels)`, so that their dot products with
    queries of unit variance have unit variance.
    """

    def __init__(self, height: int, width: int, channels: int) -> None:
        super().__init__()
        for name, size in (("height", height), ("width", width)):
            check_least(name, size)
        self.channels = channels
        self.std = channels**-0.5

    def reset_parameters(self) -> None:
        """Draw the tables anew."""
        for table in self.parameters():
            nn.init.normal_(table, std=self.std)

    def forward(self, height: int, width: int) -> RelativePosition:
        """Return the embeddings for a map of this size."""
        return self.tables().resized(height, width)

    @abstractmethod
    def tables(self) -> RelativePosition:
        """Return the embeddings of the nominal size."""

    def _table(self, *offsets: int) -> nn.Parameter:
        return nn.Parameter(torch.randn(*offsets, self.channels) * self.std)


class FactoredPositionEmbedding(PositionEmbedding):
    """A table for the rows and one for the columns, see `FactoredPosition`."""

    def __init__(self, height: int, width: int, channels: int, *, keys: bool = True) -> None:
        super().__init__(height, width, channels)
        self.query_height = self._table(2 * height - 1)
        self.query_width = self._table(2 * width - 1)
        self.key_height = self._table(2 * height - 1) if keys else None
        self.key_width = self._table(2 * width - 1) if keys else None

    def tables(self) -> FactoredPosition:
        """Return the embeddings of the nominal size."""
        return FactoredPosition(
            self.query_height, self.query_width, self.key_height, self.key_width
        )


class FullPositionEmbedding(PositionEmbedding):
    """An embedding for each offset, see `FullPosition`."""

    def __init__(self, height: int, width: int, channels: int, *, keys: bool = True) -> None:
        super().__init__(height, width, channels)
        self.query = self._table(2 * height - 1, 2 * width - 1)
        self.key = self._table(2 * height - 1, 2 * width - 1) if keys else None

    def tables(self) -> FullPosition:
        """Return the embeddings of the nominal size."""
        return FullPosition(self.query, self.key)


LONG_LINE = 64
"""Pixels beyond which the embeddings of a line are cheaper pair by pair than as channels."""

POSITIONS: dict[str, Callable[..., PositionEmbedding]] = {
    "factored": FactoredPositionEmbedding,
    "full": FullPositionEmbedding,
}


def expected_offsets(edges: EdgePosterior, table: Tensor) -> Tensor:
    """Return the expectation of what belongs to the offsets of edges, `sum_j w_ij r_{j-i}`.

    Edges lead from each pixel of a map to all of its pixels, in row-major order; the table of
    offsets is `(2H-1, 2W-1, V)`, the result `(B, G, N, V)` in the dtype of the probabilities.
    """
    height, width = ((side + 1) // 2 for side in table.shape[:2])
    rows, columns = cells(height, width, table.device)
    edges, parts = edges.prepared(), []
    table = table.to(working_dtype(table.dtype))  # of the probabilities
    for block in row_blocks(edges):
        down = rows - rows[block, None] + height - 1  # (n, N)
        right = columns - columns[block, None] + width - 1
        probability = edges.log_probability(block).exp()  # (B, G, n, N)
        parts.append(torch.einsum("bgnm,nmv->bgnv", probability, table[down, right]))
    return torch.cat(parts, dim=-2)


Maps = Tensor | tuple[Tensor, ...]
"""A map `(B, C, H, W)`, or several to be concatenated along the channels."""


class Shared(TypedDict, total=False):
    """Arguments of `Attention2d` that all layers have, for those that hand them on."""

    num_heads: int
    head_channels: int
    value_in_channels: int | None
    axis: Axis
    span: int | None
    position: str | None
    position_size: tuple[int, int]
    position_keys: bool
    position_values: bool
    one_projection: bool


class Attention2d(nn.Module, ABC):
    """Attention among the pixels of a map.

    Queries and keys are projected from the features, values from the value features. Clicks, which
    must not change the weights of attention, enter the value features only. There is no
    projection of the output, the expectation of the values under a posterior over edges that
    subclasses define.

    Args:
        in_channels: Channels of the features.
        out_channels: Channels of the output, divided evenly among the heads.
        num_heads: Number of heads `G`.
        head_channels: Channels `D` of queries and keys in each head.
        value_in_channels: Channels of the value features; None is `in_channels`.
        axis: "height" lets a pixel see its column, "width" its row, "full" the whole map.
        span: Window along the axis: a pixel sees those at most `span // 2` away, 65 pixels for 64;
            None is the whole line. Only for the axes "height" and "width".
        position: Relative position embeddings: None, "factored" into rows and columns, or "full",
            one for each offset. Along the axes "height" and "width" the two are the same function.
        position_size: Height and width of the map that the embeddings are learnt for; for maps of
            other sizes they are interpolated.
        position_keys: Whether keys have position embeddings, too, and not only queries.
        position_values: Whether values have them, too: the `r^v` of position-sensitive axial
            attention (Wang et al., 2020), one for each offset. They join the values that are read
            out, and start at 0. The posterior of each line is then written out, which takes memory
            for all pairs of its pixels in training.
        one_projection: Whether the queries are the keys, too, so that keys that adapt to queries
            stay in the space that they begin in.

    Raises:
        ValueError: If an argument is out of range, or the mechanism has no use for it.
        UnknownNameError: If there is no axis or position of this name.

    Attributes:
        no_position: Why the mechanism cannot use position embeddings; None where it can.
        no_span: Why it cannot use a span; None where it can.
        has_keys: Whether pixels attend to each other. If they attend to learnt tokens instead,
            there is no projection of keys.
    """

    no_position: ClassVar[str | None] = None
    no_span: ClassVar[str | None] = None
    has_keys: ClassVar[bool] = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_heads: int = 1,
        head_channels: int = 32,
        value_in_channels: int | None = None,
        axis: Axis = "full",
        span: int | None = None,
        position: str | None = None,
        position_size: tuple[int, int] = (16, 16),
        position_keys: bool = True,
        position_values: bool = False,
        one_projection: bool = False,
    ) -> None:
        super().__init__()
        check_axis(axis, span)
        for option, value, reason in (
            ("position", position, self.no_position),
            ("span", span, self.no_span),
        ):
            if value is not None and reason is not None:
                raise ValueError(
                    f"`{option}` must be None (null in a configuration) for {type(self).__name__}, "
                    f"got {value!r}: {reason}"
                )
        if position is not None:
            check_name("position", position, POSITIONS)
        if num_heads < 1 or out_channels % num_heads:
            raise ValueError(
                f"`out_channels` must be divisible by `num_heads`, got {out_channels} and "
                f"{num_heads}; each head infers `out_channels // num_heads` of the channels"
            )
        self.num_heads = num_heads
        self.head_channels = head_channels
        self.axis: Axis = axis
        self.span = span
        self.value_in_channels = in_channels if value_in_channels is None else value_in_channels
        self.query = Projection(in_channels, num_heads * head_channels)
        self.key: Projection | None = None
        if self.has_keys and not one_projection:
            self.key = Projection(in_channels, num_heads * head_channels)
        self.value = Projection(self.value_in_channels, out_channels)
        self.position = None
        size = line_size(axis, *position_size)
        if position is not None:
            self.position = POSITIONS[position](*size, head_channels, keys=position_keys)
        self.value_position: FullPositionEmbedding | None = None
        if position_values:
            if position is None:
                raise ValueError(
                    "`position_values` must be False without position embeddings of the queries, "
                    "got True; set `position` to 'full' or 'factored'"
                )
            channels = out_channels // num_heads
            self.value_position = FullPositionEmbedding(*size, channels, keys=False)
            self.value_position.std = 0.0
            nn.init.zeros_(self.value_position.query)

    def reset_parameters(self) -> None:
        """Draw all parameters and buffers anew, as for a layer that was built on `meta`."""
        reset_parts(self)

    def forward(self, features: Maps, value_features: Maps | None = None) -> Tensor:
        """Let each pixel gather values from the pixels it sees.

        Args:
            features: `(B, in_channels, H, W)`; a tuple of maps stands for their concatenation
                along the channels, which is then never written.
            value_features: `(B, value_in_channels, H, W)`, or such a tuple; None is `features`.

        Returns:
            `(B, out_channels, H, W)`.

        Raises:
            ValueError: If the number of channels is another one.
        """
        queries, keys, values = self.projected(features, value_features)
        attended = self.attend_maps(queries, keys, values)
        return self.with_offsets(attended, queries, keys).flatten(1, 2)

    def projected(
        self, features: Maps, value_features: Maps | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project queries, keys `(B, G, D, H, W)` and values `(B, G, V, H, W)`."""
        sources = features if value_features is None else value_features
        parts = (sources,) if isinstance(sources, Tensor) else sources
        name = "features" if value_features is None else "value_features"
        if any(part.ndim != 4 for part in parts):
            raise ValueError(
                f"`{name}` must be maps (B, C, H, W), got {[tuple(p.shape) for p in parts]}; for "
                "tokens (B, N, C) there is `probseg.attention.ProbabilisticAttention`"
            )
        channels = sum([part.shape[1] for part in parts])
        if channels != self.value_in_channels:
            raise ValueError(
                f"`{name}` must have {self.value_in_channels} channels to project values from, got "
                f"{channels}; set `value_in_channels` or pass `value_features`"
            )
        values = self._project(self.value, sources)
        return *self._queries_and_keys(features), values

    def posterior(self, features: Maps) -> EdgePosterior:
        """Return the posterior over the edges from each pixel to those it sees.

        With the axis "full", `posterior(features).expect(values)` is the output of the layer for
        values of the pixels `(B, G, H * W, V)`. Along the other axes, each line is an item of the
        batch, see `probseg.ops.axial.to_lines`.

        Args:
            features: As in `forward`.
        """
        return self._edges_of_maps(*self._queries_and_keys(features))

    def attend_maps(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Infer the value of each pixel: maps `(B, G, D, H, W)` and values to `(B, G, V, H, W)`."""
        expected = self.gather(self._edges_of_maps(queries, keys), to_lines(values, self.axis))
        return from_lines(expected, self.axis, *values.shape[-2:])

    def with_offsets(self, attended: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        """Add the expectation of the values' position embeddings, `sum_j w_ij r^v_{j-i}`.

        What was read out, `(B, G, V, H, W)`, is returned as it is without such embeddings.
        """
        if self.value_position is None:
            return attended
        height, width = queries.shape[-2:]
        table = self.value_position.tables().resized(*line_size(self.axis, height, width)).query
        offsets = expected_offsets(self._edges_of_maps(queries, keys), table)
        return attended + from_lines(offsets, self.axis, height, width).to(attended.dtype)

    def gather(self, edges: EdgePosterior, values: Tensor) -> Tensor:
        """Return the expectation `(B, G, N, V)` of the values of the keys, `(B, G, M, V)`."""
        return edges.expect(values)

    def extra_repr(self) -> str:
        """Return the settings that `print` shows."""
        shown = {"num_heads": self.num_heads, "axis": self.axis, "span": self.span}
        settings = getattr(self, "settings", None)  # of the probabilistic layer
        if settings is not None:
            shown |= {
                "key_iterations": settings.key_adaptation.iterations,
                "propagation_iterations": settings.value_propagation.iterations,
            }
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())

    @abstractmethod
    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the posterior over the edges of the pixels of each line.

        Args:
            queries: `(B, G, N, D)`, one line of the map for each item.
            keys: `(B, G, N, D)`; the queries in layers without keys.
            log_mask: 0 where a pixel sees another one and -inf where not, `(N, N)`; None where
                all see all.
            size: Height and width of the map.
        """

    def _edges_of_maps(self, queries: Tensor, keys: Tensor) -> EdgePosterior:
        """Infer the posterior for maps `(B, G, D, H, W)`."""
        height, width = queries.shape[-2:]
        mask = line_mask(self.axis, height, width, self.span, queries.device)
        lines = to_lines(queries, self.axis)
        others = lines if keys is queries else to_lines(keys, self.axis)
        return self.edges(lines, others, mask, (height, width))

    def _queries_and_keys(self, features: Maps) -> tuple[Tensor, Tensor]:
        """Project both, each `(B, G, D, H, W)`."""
        queries = self._project(self.query, features)
        if self.key is None:
            return queries, queries
        return queries, self._project(self.key, features)

    def _project(self, convolution: nn.Conv2d, maps: Maps) -> Tensor:
        """Apply a 1x1 convolution without bias, and split its channels into heads."""
        if isinstance(maps, Tensor) or len(maps) == 1:
            projected: Tensor = convolution(maps if isinstance(maps, Tensor) else maps[0])
        elif type(convolution) is not Projection:  # adapted or wrapped: weights are not all of it
            projected = convolution(torch.cat(maps, dim=1))
        else:  # as of their concatenation
            weights = torch.split(convolution.weight, [part.shape[1] for part in maps], dim=1)
            projected = functools.reduce(torch.add, map(F.conv2d, maps, weights))
        return torch.unflatten(projected, 1, (self.num_heads, -1))

    def position_tables(self, height: int, width: int) -> RelativePosition | None:
        """Return the position embeddings for the lines of a map of this size."""
        if self.position is None:
            return None
        size = line_size(self.axis, height, width)
        tables: RelativePosition = self.position(*size)
        if self.axis == "full":
            return tables
        # Of both ways, which give the same, a graph for all sizes holds one.
        long = not torch.compiler.is_exporting() and max(size) > LONG_LINE
        if long or self.value_position is not None:
            return tables.full() if isinstance(tables, FactoredPosition) else tables
        return tables.factored() if isinstance(tables, FullPosition) else tables


def reset_parts(module: nn.Module) -> None:
    """Reset the parameters of all modules inside of one."""
    for part in module.modules():
        reset = getattr(part, "reset_parameters", None)
        if part is not module and reset is not None:
            reset()


def line_size(axis: Axis, height: int, width: int) -> tuple[int, int]:
    """Return the size of a map that is one of the lines along the axis."""
    return (height if axis != "width" else 1), (width if axis != "height" else 1)


class Projection(nn.Conv2d):
    """A 1x1 convolution without bias.

    It starts so that features of unit variance give queries and keys of unit variance, and thus
    scaled logits too; or with zeros.
    """

    def __init__(self, in_channels: int, out_channels: int, *, zeros: bool = False) -> None:
        self.zeros = zeros
        super().__init__(in_channels, out_channels, kernel_size=1, bias=False)

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        super().reset_parameters()  # which draws, too: a seed goes on to mean the same weights
        if self.zeros:
            nn.init.zeros_(self.weight)
        else:
            nn.init.normal_(self.weight, std=self.in_channels**-0.5)


class StandardAttention2d(Attention2d):
    """Softmax attention with scale `1 / sqrt(D)`, with the arguments of `Attention2d`."""

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the posterior over edges, see `Attention2d`."""
        return gaussian_edges(
            queries, keys, log_mask=log_mask, position=self.position_tables(*size)
        )


class LocalAttention2d(Attention2d):
    """Standard attention with a prior that rules out edges longer than a radius.

    What sparse attention leaves out is a prior over edges that is 0 there (Singh & Buckley, 2023,
    §5.1.2). Memory is linear; the time is still that of all pairs.

    Args:
        radius: A pixel sees those at most this many rows and columns away: a square of side
            `2 radius + 1` with the axis "full", that part of the line with the others.
        **shared: As in `Attention2d`.

    Raises:
        ValueError: If the radius is negative.
    """

    no_span: ClassVar[str | None] = "the radius says how far a pixel sees along a line, too"

    def __init__(
        self, in_channels: int, out_channels: int, *, radius: int = 7, **shared: Unpack[Shared]
    ) -> None:
        super().__init__(in_channels, out_channels, **shared)
        check_least("radius", radius, 0)
        self.radius = radius

    def edges(
        self, queries: Tensor, keys: Tensor, log_mask: Tensor | None, size: tuple[int, int]
    ) -> EdgePosterior:
        """Infer the posterior over edges, see `Attention2d`."""
        height, width = line_size(self.axis, *size)
        window = WindowPrior.on_map(height, width, self.radius, queries.device)
        return gaussian_edges(queries, keys, log_mask=window, position=self.position_tables(*size))
