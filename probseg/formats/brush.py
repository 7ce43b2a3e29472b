"""Run lengths of Label Studio's brush (`"format": "rle"`).

A stream of bits, highest first in each byte, over the values of an RGBA picture in rows. Its head
has 32 bits for the number of values, 5 for the bits of a value less 1, and four times 4 for the
four widths of lengths less 1. Blocks follow: one bit (1 for a run of one value, 0 for single
values), two bits that choose the width of the length, the length less 1, and the value or values.
The object is where alpha, the fourth channel, is above 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from probseg.formats.regions import Mask, Numbers, Region, as_region, from_spans, spans

CHANNELS = 4
VALUE_BITS = 8
LENGTH_BITS = (3, 4, 8, 16)  # widths of lengths; a block has `2 ** width` values at most


def encode(mask: Mask | Region) -> list[int]:
    """Encode a mask as Label Studio writes it: each pixel of the object is 255 in all channels."""
    region = as_region(mask)
    pixels = region.size[0] * region.size[1]
    borders = np.stack(spans(region, by_rows=True), axis=1).ravel()
    lengths = CHANNELS * np.diff(
        borders, prepend=0, append=pixels
    )  # background and object by turns
    longest = 1 << LENGTH_BITS[-1]
    blocks = -(-lengths // longest)
    sizes = np.full(blocks.sum(), longest, dtype=np.int64)
    filled = blocks > 0
    last = np.cumsum(blocks[filled]) - 1
    sizes[last] = (lengths - longest * (blocks - 1))[filled]
    values = np.repeat(np.where(np.arange(len(lengths)) % 2, 255, 0), blocks)
    choice = np.searchsorted([1 << bits for bits in LENGTH_BITS], sizes)
    widths = np.array(LENGTH_BITS)[choice]
    head = [(CHANNELS * pixels, 32), (VALUE_BITS - 1, 5)]
    head += [(bits - 1, 4) for bits in LENGTH_BITS]
    ones = np.ones_like(sizes)
    fields = np.stack([ones, choice, sizes - 1, values], axis=1).ravel()
    bits = np.stack([ones, 2 * ones, widths, VALUE_BITS * ones], axis=1).ravel()
    numbers = np.concatenate([[number for number, _ in head], fields])
    counts = np.concatenate([[count for _, count in head], bits])
    ends = np.cumsum(counts)
    shifts = np.repeat(ends, counts) - 1 - np.arange(ends[-1])  # the highest bit comes first
    return np.packbits((np.repeat(numbers, counts) >> shifts & 1).astype(bool)).tolist()


def decode(rle: Sequence[int], size: tuple[int, int]) -> Region:
    """Decode the bytes of the key `rle` as a mask of a `size` `(H, W)`."""
    try:
        stream = _Stream(bytes(rle))
        count = stream.read(32)
        if count != CHANNELS * size[0] * size[1]:
            raise ValueError(
                f"`rle` has {count} values, an RGBA picture of {size[1]} x {size[0]} has "
                f"{CHANNELS * size[0] * size[1]}; check original_width and original_height"
            )
        begins, ends = _opaque(stream, count)
    except EOFError as error:
        raise ValueError(
            f"`rle` is cut off, or damaged, within its {len(rle)} bytes; export the file again"
        ) from error
    return from_spans(begins, ends, size, by_rows=True)


def _opaque(stream: _Stream, count: int) -> tuple[Numbers, Numbers]:
    """Return where pixels begin and end whose alpha is above 0, of `count` values."""
    value_bits = stream.read(5) + 1
    widths = [stream.read(4) + 1 for _ in range(4)]
    begins: list[Numbers] = []
    ends: list[Numbers] = []
    done = 0
    while done < count:
        is_run = stream.read(1)
        end = done + 1 + stream.read(widths[stream.read(2)])
        if end > count:
            raise EOFError
        first, last = done // CHANNELS, end // CHANNELS  # pixels whose alpha is in the block
        if is_run:
            if stream.read(value_bits):
                begins.append(np.array([first]))
                ends.append(np.array([last]))
        else:
            values = stream.read_many(end - done, value_bits)
            alpha = first + np.flatnonzero(values[CHANNELS * (first + 1) - 1 - done :: CHANNELS])
            begins.append(alpha)
            ends.append(alpha + 1)
        done = end
    if not begins:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return np.concatenate(begins), np.concatenate(ends)


class _Stream:
    """Reads numbers from bytes, bit by bit."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def _take(self, bits: int) -> bytes:
        """Move on by a number of bits, and return the bytes that hold them."""
        start, self._position = self._position, self._position + bits
        if self._position > 8 * len(self._content):
            raise EOFError
        return self._content[start // 8 : -(-self._position // 8)]

    def read(self, bits: int) -> int:
        """Read an integer of `bits` bits."""
        part = self._take(bits)
        return int.from_bytes(part, "big") >> (-self._position % 8) & ((1 << bits) - 1)

    def read_many(self, count: int, bits: int) -> npt.NDArray[np.int64]:
        """Read `count` integers of `bits` bits."""
        start = self._position % 8
        part = np.frombuffer(self._take(count * bits), dtype=np.uint8)
        fields = np.unpackbits(part)[start : start + count * bits].reshape(count, bits)
        return fields @ (1 << np.arange(bits - 1, -1, -1, dtype=np.int64))
