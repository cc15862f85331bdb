"""How fast each rank computes, and so what part of a step it gets: join(shares="speed").

A rank's speed is its samples by the seconds in which it computed, of its last steps. Where nobody can tell these from
seconds of waiting for other ranks (models that are cut up, loops of the script's own) it is that of its device, by a
matrix product. Ranks tell each other at steps that all count alike, soon after a world begins and ever more seldom, so
that one that slows down later is noticed too. Parts change only where steps become quicker for it.
"""

import time
from collections.abc import Sequence

import torch

GAIN = 1.05
"""How many times as long steps have to take as they could, for parts to change."""
FIRST, SELDOM = 8, 256
"""Steps until ranks compare their speeds for the first time in a world, and the most between two times."""


class Speeds:
    """See the module. Of this rank, and the weights by which all ranks' parts relate to each other, by replica."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.own = 0
        """In samples, or products, per 1,000 s; 0: not known."""
        self.weights: tuple[int, ...] = ()
        """(): all parts are equal."""
        self._next, self._every = 0, FIRST

    def entered(self, told: Sequence[int], unit: int, step: int) -> None:
        """A world begins, whose ranks have told their speeds. unit: ranks of a replica, which are neighbours."""
        self.weights = weights_of(told, unit, ()) if self.wanted else ()
        self._every = FIRST
        self._next = step + FIRST

    def due(self, step: int) -> bool:
        """Whether the ranks are to tell their speeds behind this step; the same on all of them."""
        if not self.wanted or step < self._next:
            return False
        self._every = min(2 * self._every, SELDOM)
        self._next = step + self._every
        return True

    def measured(self, samples: int, busy_s: float) -> None:
        """This rank took so long to compute on so many samples."""
        if samples and busy_s > 0:
            self.own = max(1, round(1000 * samples / busy_s))

    def heard(self, told: Sequence[int], unit: int) -> bool:
        """Whether parts become others by what the ranks of a world have told."""
        before, self.weights = self.weights, weights_of(told, unit, self.weights)
        return self.weights != before


def weights_of(speeds: Sequence[int], unit: int, now: tuple[int, ...]) -> tuple[int, ...]:
    """Those of the replicas, each of which is as fast as its slowest rank. `now`, where steps would hardly be quicker.

    speeds: by rank; 0: not known, taken for the mean of the others.
    """
    known = [speed for speed in speeds if speed]
    if not known:
        return now
    ranks = [speed or max(1, sum(known) // len(known)) for speed in speeds]
    found = tuple(min(ranks[first : first + unit]) for first in range(0, len(ranks), unit))
    parts = now or (1,) * len(found)
    step_s = max(part / speed for part, speed in zip(parts, found, strict=True)) / sum(parts)
    return found if step_s * sum(found) > GAIN else now


def of_device(device: torch.device, size: int = 512, times: int = 5) -> float:
    """Seconds that it takes for a product of matrices, at best."""
    if device.type == "cuda":
        size *= 8
    matrix, found = torch.ones(size, size, device=device), []
    for _ in range(times):
        begun = time.perf_counter()
        float((matrix @ matrix)[0, 0])  # waits for the device
        found.append(time.perf_counter() - begun)
    return min(found)
