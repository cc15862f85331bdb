"""Which samples of a step each rank has: as many for all, or in proportion to weights, such as their speeds.

Positions in the step are handed out in the order of the ranks, without gap or overlap; which samples those are is
sampling.py's. Pure arithmetic, the same on every rank.
"""

from __future__ import annotations

import dataclasses

from ..numerics.batch import slice_of


@dataclasses.dataclass(frozen=True, slots=True)
class Shares:
    """Of one rank among all of a world."""

    ranks: int = 1
    """Those that compute on samples of their own: replicas of the model."""
    rank: int = 0
    each: int = 1
    """Every rank's number of samples is a multiple of it, as a step's is."""
    weights: tuple[int, ...] = ()
    """How the ranks' parts relate to each other, by rank, from 0; (): all have as many, but for one, the first ones
    more."""

    def of(self, total: int, short: bool = False, rank: int | None = None) -> range:
        """Of the positions of a step of so many samples a rank's, this one's if none is said; perhaps none.

        short: other steps have more; then nobody has a single sample where that can be, for batch normalisation refuses
        it.
        """
        rank = self.rank if rank is None else rank
        if self.weights:
            return self._weighted(total, short, rank)
        few = max(1, total // 2) if short and self.each == 1 and total < 2 * self.ranks else self.ranks
        return slice_of(total, few, rank, self.each) if rank < few else range(total, total)

    def of_all(self, total: int, short: bool = False) -> list[int]:
        """How many each rank has."""
        return [len(self.of(total, short, rank)) for rank in range(self.ranks)]

    def largest(self, total: int, short: bool = False) -> Shares:
        """Those of the rank that has most of such a step."""
        sizes = self.of_all(total, short) if self.weights else [total]
        return dataclasses.replace(self, rank=sizes.index(max(sizes)))

    def _weighted(self, total: int, short: bool, rank: int) -> range:
        unit = 2 if short and self.each == 1 < total else self.each
        units, whole = total // unit, sum(self.weights)
        # Rounded where two parts meet: nobody is off by more than one.
        ends = (units * sum(self.weights[:before]) // whole for before in (rank, rank + 1))
        return range(*(total if end == units else end * unit for end in ends))
