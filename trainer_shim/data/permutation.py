"""The order of a pass over a dataset that is too large to be drawn: each position's sample is computed by itself.

A Feistel network (Luby and Rackoff 1988) permutes the numbers below a power of two; one that comes out at or above the
dataset's length is put in again until it comes out below (cycle walking, Black and Rogaway 2002). So every sample comes
exactly once, whatever is asked for and in which order, and nothing is kept but one block.
Limit: shuffled for training, not for secrets: a function of a 63-bit seed.
"""

import torch

ROUNDS = 6
BLOCK = 1 << 12
"""Positions computed at a time: a step asks for a few, and a call of torch costs as much as a thousand of them."""
_MULTIPLIER, _STEP = 0x2545F4914F6CDD1D, 0x9E3779B97F4A7C15


class Permutation:
    """A permutation of range(samples) by seed, read by slices of positions."""

    def __init__(self, samples: int, seed: int) -> None:
        self._samples = samples
        bits = max(2, (samples - 1).bit_length())
        self._low_bits = bits // 2
        self._low, self._high = (1 << self._low_bits) - 1, (1 << (bits - self._low_bits)) - 1
        self._keys = [(seed + number * _STEP) & ((1 << 63) - 1) for number in range(ROUNDS)]
        self._last: tuple[int, torch.Tensor] | None = None
        """The block read last, with its number."""

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, positions: slice) -> torch.Tensor:
        """int64, as many as there are positions in the slice; its step is 1."""
        start, stop, _ = positions.indices(self._samples)
        if stop <= start:
            return torch.empty(0, dtype=torch.int64)
        parts = []
        for number in range(start // BLOCK, (stop - 1) // BLOCK + 1):
            first = number * BLOCK
            parts.append(self._block(number)[max(0, start - first) : stop - first])
        return torch.cat(parts)

    def _block(self, number: int) -> torch.Tensor:
        if self._last is None or self._last[0] != number:
            first = number * BLOCK
            self._last = number, self._walked(torch.arange(first, min(first + BLOCK, self._samples)))
        return self._last[1]

    def _walked(self, numbers: torch.Tensor) -> torch.Tensor:
        found = self._permuted(numbers)
        while len(outside := (found >= self._samples).nonzero().flatten()):
            found[outside] = self._permuted(found[outside])
        return found

    def _permuted(self, numbers: torch.Tensor) -> torch.Tensor:
        """Among the numbers of as many bits: each half in turn is changed by a function of the other."""
        high, low = numbers >> self._low_bits, numbers & self._low
        for number, key in enumerate(self._keys):
            if number % 2:
                low ^= _mixed(high, key, self._low)
            else:
                high ^= _mixed(low, key, self._high)
        return (high << self._low_bits) | low


def _mixed(numbers: torch.Tensor, key: int, mask: int) -> torch.Tensor:
    """Bits in which every bit of the numbers and of the key has a part. Products of int64 wrap around."""
    mixed = numbers ^ key
    mixed *= _MULTIPLIER
    mixed >>= 32
    mixed &= mask
    return mixed
