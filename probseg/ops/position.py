"""Relative position embeddings in the likelihood and the prior (Gabbur et al., 2021, Eqs. 25-26).

Query i and unit j on an `H x W` map have the embeddings `r^q` and `r^k` of their offset
`j - i`. The likelihood gains a Gaussian of the query around `r^q`, the prior one of the key
around `r^k`, and the prior's magnitudes cancel every norm, so that the logits become::

    S_ij = alpha_j (q_i·xi_j + q_i·r^q_{j-i} + xi_j·r^k_{j-i})

for one `alpha`. Otherwise the second Gaussian adds `D/2 log alpha_j - alpha_j/2 |q_i|²`, and that
of the prior, where there is an `r^k`, its normaliser `D/2 log alpha_j`. Both equations are read as
products of densities that are not normalised again: with the normalised one that Eq. 25 mentions,
`xi_j` and `r^q` would interact and Eq. 26 would not give these logits.

Offsets are counted in pixels from `-(H-1)` to `H-1`; a line of `L` tokens is a map of
`1 x L` or `L x 1`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from probseg.ops.backends.interface import Block, PairwisePrior, take_block
from probseg.ops.checks import check_device


@dataclass(frozen=True, eq=False)
class FullPositionPrior(PairwisePrior):
    """`alpha_j (q_i·r^q_{j-i} + xi_j·r^k_{j-i})` for a table of full offsets, block by block."""

    queries: Tensor  # (B, G, N, D)
    keys: Tensor  # (B, G, M, D)
    precision: Tensor  # (B, G, M), sizes may be 1
    query_table: Tensor  # (G, 2H-1, 2W-1, D), G may be 1
    key_table: Tensor | None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """See `PairwisePrior`."""
        batch, heads, count, _ = self.queries.shape
        return batch, heads, count, count

    @property
    def numbers_per_pair(self) -> int:
        """See `PairwisePrior`: two tables, each with twice as many offsets as there are units."""
        return 8

    def part(self, name: str, batch: slice, heads: slice) -> tuple[slice, ...]:
        """See `PairwisePrior`."""
        if name in ("queries", "keys"):
            return batch, heads
        tensor = getattr(self, name)
        if name == "precision":
            return tuple(
                slice(None) if size == 1 else some
                for some, size in zip((batch, heads), tensor.shape[:2], strict=True)
            )
        return (slice(None) if len(tensor) == 1 else heads,)

    @property
    def row_multiple(self) -> int:
        """See `PairwisePrior`: the rows of the map are cheapest as a whole."""
        return self._map_size()[1]

    def block(self, block: Block) -> Tensor:
        """See `PairwisePrior`."""
        if isinstance(block.rows, Tensor) or isinstance(block.columns, Tensor):
            scores = self._some_pairs(block)
        else:
            scores = self._map_rows(block)[..., block.columns]
        precision = take_block(self.precision.unsqueeze(-2), block, scores.dtype)
        return precision * scores  # (b, g, n, m)

    def _some_pairs(self, block: Block) -> Tensor:
        """Look up the embedding of each pair: `D` numbers a pair, for few pairs."""
        height, width = self._map_size()
        y, x = cells(height, width, self.queries.device)
        down = y[block.columns] - y[block.rows, None] + height - 1  # (n, m)
        right = x[block.columns] - x[block.rows, None] + width - 1  # (n, m)
        queries = self.queries[block.batch, block.heads][:, :, block.rows]  # (b, g, n, D)
        keys = self.keys[block.batch, block.heads][:, :, block.columns]  # (b, g, m, D)
        table = _take_heads(self.query_table, block)[:, down, right]  # (g, n, m, D)
        scores = torch.einsum("bgnd,gnmd->bgnm", queries, table)
        if self.key_table is None:
            return scores
        table = _take_heads(self.key_table, block)[:, down, right]  # (g, n, m, D)
        return scores + torch.einsum("bgmd,gnmd->bgnm", keys, table)

    def _map_rows(self, block: Block) -> Tensor:
        """Multiply whole rows of the map with the tables and shear the results into place."""
        height, width = self._map_size()
        assert isinstance(block.rows, slice), "single rows are looked up pair by pair"
        top, bottom, whole = 0, height, block.rows == slice(None)
        if not whole:
            first, last, _ = block.rows.indices(height * width)
            top, bottom = first // width, -(-last // width)
        queries = self.queries[block.batch, block.heads]
        keys = self.keys[block.batch, block.heads]
        grid = (*keys.shape[:2], height, width, keys.shape[-1])
        queries = queries.reshape(grid)[:, :, top:bottom]  # (b, g, y, w, D)
        keys = keys.reshape(grid)  # (b, g, h, x, D)
        down = torch.arange(height, device=queries.device) + height - 1
        down = down - torch.arange(top, bottom, device=queries.device)[:, None]  # (y, h)
        right = torch.arange(width, device=queries.device) + width - 1
        right = right - torch.arange(width, device=queries.device)[:, None]  # (w, x)
        sizes = (*queries.shape[:4], height, width)  # (b, g, y, w, h, x)

        table = _take_heads(self.query_table, block)[:, down]  # (g, y, h, 2W-1, D)
        scores = torch.einsum("bgywd,gyhtd->bgywht", queries, table)
        scores = scores.gather(-1, right[:, None, :].expand(sizes))
        if self.key_table is not None:
            table = _take_heads(self.key_table, block)[:, down]  # (g, y, h, 2W-1, D)
            of_keys = torch.einsum("bghxd,gyhtd->bgyhxt", keys, table)
            of_keys = of_keys.permute(0, 1, 2, 5, 3, 4)  # (b, g, y, 2W-1, h, x)
            scores = scores + of_keys.gather(3, right[:, None, :].expand(sizes))
        flat = scores.flatten(4).flatten(2, 3)  # (b, g, y w, M)
        return flat if whole else flat[:, :, first - top * width : last - top * width]

    def _map_size(self) -> tuple[int, int]:
        rows, columns = self.query_table.shape[1:3]
        return (rows + 1) // 2, (columns + 1) // 2


def cells(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the rows and the columns of the tokens of a map, `(H W,)` each.

    Not by division: ONNX knows no remainder by a size that may vary.
    """
    sides = (torch.arange(side, device=device) for side in (height, width))
    rows, columns = torch.meshgrid(*sides, indexing="ij")
    return rows.flatten(), columns.flatten()


def _take_heads(table: Tensor, block: Block) -> Tensor:
    return table[block.heads] if len(table) > 1 else table


class Channels(NamedTuple):
    """More channels of queries and keys, whose dot products are part of the logits."""

    queries: Tensor  # (B, G, N, C)
    keys: Tensor  # (B, G, M, C)


@dataclass(frozen=True, eq=False)
class FactoredPosition:
    """Embeddings that are sums of one for the rows and one for the columns: `r = rh_dy + rw_dx`.

    They cost `H + W` more channels for each pair of tables. On long lines, `full()` is cheaper.

    Args:
        query_height: `(2H-1, D)`, or `(G, 2H-1, D)` for each head its own.
        query_width: `(2W-1, D)` or `(G, 2W-1, D)`.
        key_height: As `query_height`; None leaves `r^k` out.
        key_width: As `query_width`.
    """

    query_height: Tensor
    query_width: Tensor
    key_height: Tensor | None = None
    key_width: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.key_height is None) != (self.key_width is None):
            raise ValueError(
                "`key_height` and `key_width` belong together, got one without the other"
            )
        for name, table in _tables(self).items():
            _check_table(name, table, (2, 3), "(2H-1, D) or (G, 2H-1, D)", odd=(-2,))
        for name in ("height", "width"):
            _check_pair(name, getattr(self, f"query_{name}"), getattr(self, f"key_{name}"), 2)

    @property
    def has_keys(self) -> bool:
        """Whether keys have embeddings."""
        return self.key_height is not None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the map."""
        return (self.query_height.shape[-2] + 1) // 2, (self.query_width.shape[-2] + 1) // 2

    def to(self, dtype: torch.dtype) -> Self:
        """Return the same embeddings in another dtype."""
        return replace(self, **{name: table.to(dtype) for name, table in _tables(self).items()})

    def resized(self, height: int, width: int) -> Self:
        """Interpolate the tables for a map of another size, keeping the place of offset 0."""
        sizes = {"height": height, "width": width}
        tables = {
            name: _interpolate(table, 2 * sizes[name.split("_")[1]] - 1)
            for name, table in _tables(self).items()
        }
        return replace(self, **tables)

    def full(self) -> FullPosition:
        """Return the same embeddings with one vector per offset."""
        sums = (
            None if rows is None or columns is None else rows.unsqueeze(-2) + columns.unsqueeze(-3)
            for rows, columns in (
                (self.query_height, self.query_width),
                (self.key_height, self.key_width),
            )
        )  # (2H-1, 2W-1, D) or (G, 2H-1, 2W-1, D)
        query, key = sums
        assert query is not None, "the tables of the queries are always there"
        return FullPosition(query, key)

    def channels(self, queries: Tensor, keys: Tensor) -> Channels:
        """Write `q_i·r^q_{j-i} + xi_j·r^k_{j-i}` as dot products, `(B, G, H W, C)`.

        `q_i·rh_{a - y_i}` for all rows `a` of the map against the one-hot row of the key, the
        same for the columns, and the mirror image for the tables of the keys.
        """
        height, width = self.size
        y, x = cells(height, width, queries.device)
        axes = (
            (y, height, self.query_height, self.key_height),
            (x, width, self.query_width, self.key_width),
        )
        left: list[Tensor] = []
        right: list[Tensor] = []
        for place, length, query_table, key_table in axes:
            # Seen from i, the offset of line a is a - place_i; seen from j, that of line a is
            # place_j - a.
            offsets = torch.arange(length, device=queries.device) - place[:, None]  # (N, length)
            one_hot = (offsets == 0).to(queries.dtype)  # F.one_hot fixes the length when traced
            one_hot = one_hot.expand(*queries.shape[:-1], length)  # (B, G, N, length)
            left.append(_dot_table(queries, query_table, offsets))
            right.append(one_hot)
            if key_table is not None:
                left.append(one_hot)
                right.append(_dot_table(keys, key_table, -offsets))
        return Channels(torch.cat(left, dim=-1), torch.cat(right, dim=-1))


@dataclass(frozen=True, eq=False)
class FullPosition:
    """An embedding for each of the `(2H-1)(2W-1)` offsets on a map.

    Gabbur et al. (2021, §4.1) count `2HW - 1`, as many as there are differences of flattened
    indices; among those, offsets that wrap around a line share one.

    The logits of pairs are computed block by block: by the "chunked" and "reference" backends.

    Args:
        query: `(2H-1, 2W-1, D)`, or `(G, 2H-1, 2W-1, D)` for each head its own.
        key: As `query`; None leaves `r^k` out.
    """

    query: Tensor
    key: Tensor | None = None

    def __post_init__(self) -> None:
        for name, table in _tables(self).items():
            letters = "(2H-1, 2W-1, D) or (G, 2H-1, 2W-1, D)"
            _check_table(name, table, (3, 4), letters, odd=(-3, -2))
        _check_pair("", self.query, self.key, 3)

    @property
    def has_keys(self) -> bool:
        """Whether keys have embeddings."""
        return self.key is not None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the map."""
        rows, columns = self.query.shape[-3:-1]
        return (rows + 1) // 2, (columns + 1) // 2

    def to(self, dtype: torch.dtype) -> Self:
        """Return the same embeddings in another dtype."""
        return replace(self, **{name: table.to(dtype) for name, table in _tables(self).items()})

    def resized(self, height: int, width: int) -> Self:
        """Interpolate the tables for a map of another size, keeping the place of offset 0."""
        tables = {}
        for name, table in _tables(self).items():
            rows = _interpolate(table.flatten(-2), 2 * height - 1)  # (G, 2H-1, (2W-1) D)
            rows = rows.reshape(*rows.shape[:-1], *table.shape[-2:])  # (G, 2H-1, 2W-1, D)
            columns = _interpolate(rows.transpose(-3, -2).flatten(-2), 2 * width - 1)
            columns = columns.reshape(*columns.shape[:-1], 2 * height - 1, -1)  # (G, 2W-1, 2H-1, D)
            tables[name] = columns.transpose(-3, -2)
        return replace(self, **tables)

    def factored(self) -> FactoredPosition:
        """Return the same embeddings of a line, a map of one row or one column, as its table."""
        tables: dict[str, Tensor] = {}
        for name, table in _tables(self).items():
            is_column = self.size[1] == 1
            along = table[..., 0, :] if is_column else table[..., 0, :, :]
            across = torch.zeros_like(along[..., :1, :])
            tables[f"{name}_height"] = along if is_column else across
            tables[f"{name}_width"] = across if is_column else along
        return FactoredPosition(**tables)

    def prior(self, queries: Tensor, keys: Tensor, precision: float | Tensor) -> FullPositionPrior:
        """Return `alpha_j (q_i·r^q_{j-i} + xi_j·r^k_{j-i})` as a prior of pairs."""
        alpha = torch.as_tensor(precision, dtype=queries.dtype, device=queries.device)
        alpha = alpha[(None,) * (3 - alpha.ndim)]  # (B, G, M), sizes may be 1
        query = self.query[(None,) * (4 - self.query.ndim)]  # (G, 2H-1, 2W-1, D)
        key = None if self.key is None else self.key[(None,) * (4 - self.key.ndim)]
        if self.size[1] == 1:  # a column is cheaper as a row, and has the same tokens
            query = query.transpose(1, 2)
            key = None if key is None else key.transpose(1, 2)
        return FullPositionPrior(queries, keys, alpha, query, key)


RelativePosition = FactoredPosition | FullPosition


def check_position(position: RelativePosition, queries: Tensor, keys: Tensor) -> None:
    """Check that the tables fit queries `(B, G, N, D)` and keys `(B, G, M, D)` of their map."""
    height, width = position.size
    for name, tokens in (("queries", queries), ("keys", keys)):
        if tokens.shape[-2] != height * width:
            raise ValueError(
                f"`{name}` must be the {height} x {width} = {height * width} tokens of the map "
                f"that `position` has tables for, got {tokens.shape[-2]}; use `position.resized`"
            )
    channel_count, heads = queries.shape[-1], queries.shape[1]
    shared = 3 if isinstance(position, FullPosition) else 2
    for name, table in _tables(position).items():
        if table.shape[-1] != channel_count or (table.ndim > shared and table.shape[0] != heads):
            raise ValueError(
                f"`position.{name}` must have {channel_count} channels, and {heads} heads if it "
                f"has any, got shape {tuple(table.shape)}; build it for the heads' width"
            )
        check_device(f"position.{name}", table, queries.device)


def _tables(position: RelativePosition) -> dict[str, Tensor]:
    named = {field.name: getattr(position, field.name) for field in fields(position)}
    return {name: table for name, table in named.items() if table is not None}


def _check_table(
    name: str, table: Tensor, ranks: tuple[int, int], letters: str, *, odd: tuple[int, ...]
) -> None:
    fits = table.ndim in ranks and all(table.shape[dim] % 2 == 1 for dim in odd)
    if not fits or not table.is_floating_point():
        raise ValueError(
            f"`{name}` must be floating point of shape {letters}, got {table.dtype} "
            f"{tuple(table.shape)}; the number of offsets of a line is odd"
        )


def _check_pair(axis: str, query: Tensor, key: Tensor | None, rank: int) -> None:
    if key is not None and key.shape[-rank:] != query.shape[-rank:]:
        query_name, key_name = (f"{of}_{axis}".rstrip("_") for of in ("query", "key"))
        raise ValueError(
            f"`{key_name}` must have the size {tuple(query.shape[-rank:])} of `{query_name}`, got "
            f"{tuple(key.shape[-rank:])}"
        )


def _interpolate(table: Tensor, length: int) -> Tensor:
    """Interpolate a table of offsets `(G, 2L-1, C)` or `(2L-1, C)` linearly to a new length."""
    if isinstance(length, int) and table.shape[-2] == length:  # not in a graph for all sizes
        return table
    lines = table.mT if table.ndim == 3 else table.mT[None]  # (G, C, 2L-1)
    # The ends stay the ends, and with an odd number on both sides the middle stays the middle: but
    # for rounding, and in a single offset it is what counts.
    resized = F.interpolate(lines, size=length, mode="linear", align_corners=True)
    middle, half = lines.shape[-1] // 2, length // 2
    centre = lines[..., middle : middle + 1]
    resized = torch.cat([resized[..., :half], centre, resized[..., half + 1 :]], dim=-1)
    return resized.mT if table.ndim == 3 else resized[0].mT


def _dot_table(vectors: Tensor, table: Tensor, offsets: Tensor) -> Tensor:
    """Multiply vectors `(B, G, N, D)` with the embeddings at their offsets `(N, L)`."""
    scores = vectors @ table.mT  # (B, G, N, 2L-1)
    index = offsets + (table.shape[-2] - 1) // 2  # (N, L)
    return scores.gather(-1, index.expand(*scores.shape[:-1], index.shape[-1]))  # (B, G, N, L)
