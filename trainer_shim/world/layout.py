"""How the ranks of a world are laid out: replicas of the model, and the named axes along which ranks hold one together.

Ranks of one replica are neighbours, those along its last axis the nearest, so that a replica is on one node where nodes
hold whole ones. Pure arithmetic.
"""

from __future__ import annotations

import dataclasses
import math

from slurm_elastic.protocol.errors import TrainingError

REPLICAS = "dp"
"""The first axis of every world."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """axes: those within a replica, by name, with how many ranks there are along each; (): a replica to each rank."""

    axes: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, unit: object, group: str | None = None) -> Layout:
        """What join(unit=...) says. group: the elastic request's, where there is one.

        Raises TrainingError for what is not accepted.
        """
        if unit is None:
            return cls()
        axes = tuple(unit.items()) if isinstance(unit, dict) else ()
        sized = all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for _, size in axes)
        if not axes or not sized or any(not isinstance(name, str) or name in ("", REPLICAS) for name, _ in axes):
            raise TrainingError(
                f"join(unit={unit!r}) is not accepted; accepted: {{'tp': N}}, N ranks to a replica, or several axes, "
                f"each with a name (but '{REPLICAS}') and its ranks"
            )
        layout = cls(axes)
        if group and int(group) % layout.unit:
            raise TrainingError(
                f"join(unit={unit!r}) does not fit the elastic request's group={group}; accepted: a multiple of "
                f"{layout.unit}"
            )
        return layout

    @property
    def unit(self) -> int:
        """Ranks of one replica."""
        return math.prod(size for _, size in self.axes) if self.axes else 1  # asked for in every step

    def check(self, ranks: int) -> None:
        """Raise TrainingError unless a world of so many ranks is whole replicas."""
        if ranks % self.unit:
            raise TrainingError(
                f"join(unit={dict(self.axes)}) needs a multiple of {self.unit} workers, and this world has {ranks}; "
                f"ask for group={self.unit} in the elastic request, and for that many GPUs"
            )

    def sizes(self, ranks: int) -> dict[str, int]:
        """Along each axis of a world of so many ranks."""
        return {REPLICAS: ranks // self.unit, **dict(self.axes)}

    def places(self, rank: int) -> dict[str, int]:
        """Where a rank is along each axis."""
        found = {}
        for name, size in reversed(self.axes):
            rank, found[name] = divmod(rank, size)
        return {REPLICAS: rank, **found}


WHOLE = Layout()
"""A replica to each rank."""
