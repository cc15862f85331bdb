"""What ranks tell each other with every step, and how the sum over all of them is understood. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

WORDS = 6
Reader = Callable[[], "Sums"]


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """What one rank tells the others with a step. `ahead`: by how much the generation it holds is newer; 0: none.

    square: |g_i|^2 of this rank's own mean gradient at the last step that was measured.
    """

    ahead: int = 0
    save: bool = False
    stop: bool = False
    square: float = 0.0

    def words(self) -> list[float]:
        raised = self.ahead > 0
        flags = [float(raised), float(self.ahead), float(self.ahead) ** 2, float(self.save), float(self.stop)]
        return [*flags, self.square]


@dataclasses.dataclass(frozen=True, slots=True)
class Sums:
    """What all ranks said, added up."""

    ranks: int
    raised: float
    ahead: float
    ahead_squared: float
    save: float
    stop: float
    square: float

    @property
    def switch(self) -> bool:
        """Everyone holds a coming world, and it is the same one: Cauchy-Schwarz with equality."""
        return self.raised == self.ranks and self.ahead_squared * self.ranks == self.ahead**2

    @classmethod
    def of_mean(cls, ranks: int, mean: list[float]) -> Sums:
        """From the mean over ranks; all but the last are whole numbers."""
        raised, ahead, ahead_squared, save, stop = (float(round(word * ranks)) for word in mean[:-1])
        return cls(ranks, raised, ahead, ahead_squared, save, stop, mean[-1] * ranks)
