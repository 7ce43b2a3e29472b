"""Random numbers without state: functions of seeds.

A training draws its numbers from seeds, each a function of the run's seed and of its purpose
(epoch, position in the epoch, process). Nothing has to be stored to continue with the same numbers
after an interruption, and they depend neither on the number of processes nor on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = 2**64
_STEP = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
# The same as int64, whose products wrap around: all of them are above 2**63.
_SIGNED_STEP = _STEP - _BITS
_SIGNED_ROUNDS = tuple((shift, factor - _BITS) for shift, factor in _ROUNDS)

# purpose of a seed, its first part: seeds of different purposes never coincide
ORDER, SET, CROP, BATCH = range(4)


def mix_seeds(*numbers: int) -> int:
    """Hash numbers into one in [0, 2**63) that depends on all of them and on their order.

    Each number is added to the hash of those before it, and goes through SplitMix64 (Steele, Lea
    and Flood 2014).
    """
    state = 0
    for number in numbers:
        state = (state + number + _STEP) % _BITS
        for shift, factor in _ROUNDS:
            state = (state ^ (state >> shift)) * factor % _BITS
        state ^= state >> _LAST_SHIFT
    return state >> 1


class Draws:
    """Random numbers for the images of a batch, each a function of its image's seed alone.

    Number `n` of an image is output `n` of SplitMix64 from its seed, int64, shape `(B,)`, on any
    device. They do not depend on the other images of the batch.
    """

    def __init__(self, seeds: Tensor) -> None:
        if seeds.ndim != 1 or seeds.dtype != torch.int64:
            raise ValueError(
                f"`seeds` must be int64 of shape (B,), got {seeds.dtype} {tuple(seeds.shape)}"
            )
        self.seeds = seeds
        self._drawn = 0

    def uniform(self, count: int) -> Tensor:
        """Draw numbers in [0, 1): float32, shape `(B, count)`."""
        return (self._bits(count) >> 39).float() / 2**24  # of 63 bits the upper 24

    def below(self, limits: Tensor) -> Tensor:
        """Draw whole numbers in [0, limit) for limits of at least 1, int64, shape `(B, ...)`."""
        bits = self._bits(limits[0].numel()).view_as(limits)
        return bits.remainder(limits)  # limits are far below 2**63: no number is preferred

    def _bits(self, count: int) -> Tensor:
        """Return the next numbers in [0, 2**63), shape `(B, count)`."""
        first, self._drawn = self._drawn + 1, self._drawn + count
        steps = torch.arange(first, self._drawn + 1, device=self.seeds.device)
        bits = self.seeds[:, None] + steps * _SIGNED_STEP
        for shift, factor in _SIGNED_ROUNDS:
            bits = (bits ^ _shifted(bits, shift)) * factor
        bits = bits ^ _shifted(bits, _LAST_SHIFT)
        return _shifted(bits, 1)


def _shifted(bits: Tensor, count: int) -> Tensor:
    """Shift to the right and fill up with zeros: that of signed numbers repeats the sign."""
    shifted: Tensor = (bits >> count) & (2 ** (64 - count) - 1)
    return shifted
