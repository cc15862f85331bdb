"""The vote that ranks hold with every step: whether all can switch to a coming world, and whether one wants to save.

The encoded votes are averaged in the parameters' own type, by an all-reduce that rounds. So every question is put such
that the answers are far apart: the generation that a rank holds goes as BITS signs, on which all have to agree, and so
does a checksum of its state, as WORD_BITS of them, with the few votes that have one (training/guards/replica_check.py).
DDP's own all-reduce of the gradients carries them; where no such all-reduce exists VoteExchange does one of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import torch

from .process_group import World

BITS = 5
"""Generations are distinguished modulo 2^BITS; two that are held at one time are never that far from each other."""
WORD_BITS = 24
WEIGHT = BITS + 4
"""Where the weight stands among what is encoded."""
VOTE_SIZE = BITS + 5 + WORD_BITS
NO_VOTE = [0.0] * VOTE_SIZE
LARGEST_SAID = (1 << 19) - 1
"""Its squares, over as many ranks, are whole numbers of a float64."""
T = TypeVar("T")
TallyReader = Callable[[], "Tally"]
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
class Vote:
    """What one rank sends to all others with a step."""

    holds: int = 0
    """The generation it is ready to switch to; 0: none."""
    save: bool = False
    """It wants a checkpoint."""
    stop: bool = False
    """It has been asked to end."""
    square: float = 0.0
    """|g_i|^2 of this rank's own mean gradient at the last step that was measured."""
    look: bool = False
    """It wants the ranks to compare their states."""
    word: int | None = None
    """A checksum, of WORD_BITS, of what all ranks are to hold alike."""
    weight: float = 0.0
    """Of its losses in the step, where the script gives them."""

    @property
    def has_content(self) -> bool:
        """Whether it differs from an empty vote."""
        said = self.holds or self.save or self.stop or self.square or self.look or self.weight
        return bool(said) or self.word is not None

    def encoded(self) -> list[float]:
        if not self.has_content:
            return NO_VOTE
        signs = _signs(self.holds, BITS) if self.holds else [0.0] * BITS
        word = _signs(self.word, WORD_BITS) if self.word is not None else [0.0] * WORD_BITS
        return [*signs, float(self.save), float(self.stop), self.square, float(self.look), self.weight, *word]


@dataclasses.dataclass(frozen=True, slots=True)
class Tally:
    """The votes of all ranks together."""

    switch: bool
    """Everyone holds a coming world, and it is the same one."""
    save: bool
    """Someone wants a checkpoint."""
    stop: bool
    """Someone has been asked to end."""
    square: float
    """The sum over the ranks."""
    look: bool = False
    """Someone wants the states compared."""
    alike: bool = False
    """Every rank has said the same word."""
    weight: float = 0.0
    """The sum over the ranks."""

    @classmethod
    def of_one(cls, vote: Vote) -> Tally:
        """Of the only rank."""
        if not vote.has_content:
            return EMPTY_TALLY
        return cls(vote.holds > 0, vote.save, vote.stop, vote.square, weight=vote.weight)

    @classmethod
    def of_mean(cls, ranks: int, mean: list[float]) -> Tally:
        """Of the encoded votes' mean over the ranks. One dissenting rank moves a sign's sum by 1 or 2."""
        if mean == NO_VOTE:
            return EMPTY_TALLY
        sums = [value * ranks for value in mean]
        agreed = all(abs(total) > ranks - 0.5 for total in sums[:BITS])
        save, stop, square, look, weight = sums[BITS : BITS + 5]
        alike = all(abs(total) > ranks - 0.5 for total in sums[BITS + 5 :])
        return cls(agreed, save > 0.5, stop > 0.5, square, look > 0.5, alike, weight)


EMPTY_VOTE = Vote()
EMPTY_TALLY = Tally(switch=False, save=False, stop=False, square=0.0)


def _signs(number: int, bits: int) -> list[float]:
    return [1.0 if number >> bit & 1 else -1.0 for bit in range(bits)]


class VoteExchange:
    """An all-reduce of one step's votes, under way from the moment this is made, beside the backward pass.

    In host memory: it does not wait for a GPU. said: a number, up to LARGEST_SAID, that is to be the same on all ranks.
    """

    def __init__(self, world: World | None, vote: Vote | None, said: int = 0) -> None:
        self._vote = vote
        self._sum = torch.zeros(0)
        self._ranks, self._pending = 1, None
        self.agreed = True
        """Whether all ranks have said the same number; known once the votes are read."""
        if vote is not None and world is not None and world.grouped and world.size > 1:
            self._ranks = world.size
            self._sum = torch.tensor([*vote.encoded(), said, said * said], dtype=torch.float64)
            self._pending = world.group.allreduce([self._sum])

    def reader(self) -> TallyReader | None:
        """Wait for all votes; None where this rank has none."""
        if self._vote is None:
            return None
        if self._pending is not None:
            self._pending.wait()
        if self._pending is None:
            sums = Tally.of_one(self._vote)
        else:
            *_, said, squares = self._sum.tolist()
            self.agreed = self._ranks * squares == said * said  # whole numbers, and exact
            sums = Tally.of_mean(self._ranks, (self._sum[:VOTE_SIZE] / self._ranks).tolist())
        return lambda: sums
