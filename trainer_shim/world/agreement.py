"""What ranks tell each other with every step, and how the sum over all of them is understood. Pure.

The words are averaged in the parameters' own type, by an all-reduce that rounds. So every question is put such that
the answers are far apart: which world a rank holds goes as BITS signs, of which all have to agree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

BITS = 5
"""Generations are told apart modulo 2^BITS; two that are held at one time are never that far from each other."""
WORDS = BITS + 3
SILENCE = [0.0] * WORDS
T = TypeVar("T")
Reader = Callable[[], "Sums"]
OnError = Callable[[RuntimeError], "Callable[[], None] | None"]
"""About an error of a step: what to call once the error is gone, after which the step is void; None: raise it."""


def attempt(run: Callable[[], T], on_error: OnError, instead: Callable[[], T]) -> T:
    """What `run` returns; where on_error makes the step void, what `instead` returns after that.

    The error has to be gone by then: its frames hold on to the broken world's group.
    """
    try:
        return run()
    except RuntimeError as error:
        undo = on_error(error)
        if undo is None:
            raise
    undo()
    return instead()


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """What one rank tells the others with a step. `holds`: the generation it is ready to switch to; 0: none.

    square: |g_i|^2 of this rank's own mean gradient at the last step that was measured.
    """

    holds: int = 0
    save: bool = False
    stop: bool = False
    square: float = 0.0

    @property
    def loud(self) -> bool:
        """Whether there is anything to say."""
        return bool(self.holds or self.save or self.stop or self.square)

    def words(self) -> list[float]:
        if not self.loud:
            return SILENCE
        signs = [(1.0 if self.holds >> bit & 1 else -1.0) if self.holds else 0.0 for bit in range(BITS)]
        return [*signs, float(self.save), float(self.stop), self.square]


@dataclasses.dataclass(frozen=True, slots=True)
class Sums:
    """What all ranks said, together."""

    switch: bool
    """Everyone holds a coming world, and it is the same one."""
    save: bool
    """Someone wants a checkpoint."""
    stop: bool
    """Someone was told to end."""
    square: float
    """Added up."""

    @classmethod
    def of_one(cls, said: Said) -> Sums:
        """What one rank alone says is what all say."""
        return cls(said.holds > 0, said.save, said.stop, said.square) if said.loud else NOTHING

    @classmethod
    def of_mean(cls, ranks: int, mean: list[float]) -> Sums:
        """From the words' mean over the ranks. One dissenting rank moves a sign's sum by 1 or 2."""
        if mean == SILENCE:
            return NOTHING
        sums = [word * ranks for word in mean]
        agreed = all(abs(total) > ranks - 0.5 for total in sums[:BITS])
        return cls(agreed, sums[BITS] > 0.5, sums[BITS + 1] > 0.5, sums[BITS + 2])


NOTHING_SAID = Said()
NOTHING = Sums(switch=False, save=False, stop=False, square=0.0)
