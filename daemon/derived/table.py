"""What is made of things that mostly stay as they are: a table of keys, the inputs of each, and the value made of them.

Promise: a value asked for is what `make` gives of these inputs: it is made again as soon as they differ. What nobody
asks for any more is forgotten. All that the daemon keeps from round to round to be faster is kept in such tables.
Limit: inputs are compared and not watched; one that is changed in place is not seen.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
A = TypeVar("A")
V = TypeVar("V")
_Row = list[Any]


class Derived(Generic[K, A, V]):
    """Values by key. Of threads that ask at once each gets the right value; some may be made twice."""

    def __init__(
        self,
        make: Callable[[Sequence[A]], Iterable[V]],
        inputs: Callable[[A], Any] | None = None,
        room: int = 0,
        until: Callable[[V, float], float] | None = None,
    ) -> None:
        """make: the values of all that is asked for and not known, made at once. inputs: what of it a value depends on,
        compared by ==; None: all of it. room: so many values are kept though nobody asks for them any more. until: when
        a value, made at that time, ends though its inputs stay."""
        self._make, self._inputs, self._room, self._until = make, inputs, room, until
        self._rows: dict[K, _Row] = {}
        """(inputs, value, when it was made) of what was asked for since the last turns."""
        self._old: dict[K, _Row] = {}
        """What was asked for before: forgotten at the next turn for which there is no more room."""

    def __len__(self) -> int:
        return len(self._rows.keys() | self._old.keys())

    def turn(self) -> None:
        if len(self._rows) > self._room or not self._rows:
            self._old, self._rows = self._rows, {}

    def of(self, asked: Mapping[K, A], now: float = 0.0) -> dict[K, V]:
        """The value of each key, in their order."""
        every, keys = list(asked.values()), list(asked)
        inputs = every if self._inputs is None else [self._inputs(one) for one in every]
        return dict(zip(keys, self._of(keys, inputs, every, now), strict=True))

    def one(self, key: K, asked: A, now: float = 0.0) -> V:
        return self.of({key: asked}, now)[key]

    def each(self, asked: Sequence[A]) -> list[V]:
        """The values of these, each under its own inputs as key: whoever asks alike gets the same object."""
        keys: Sequence[Any] = asked if self._inputs is None else [self._inputs(one) for one in asked]
        return self._of(keys, keys, asked, 0.0)

    def _of(self, keys: Sequence[K], inputs: Sequence[Any], asked: Sequence[A], now: float) -> list[V]:
        rows, old, until, by_key = self._rows, self._old, self._until, inputs is keys
        found: list[_Row] = []
        lacking: dict[K, _Row] = {}
        for key, own, one in zip(keys, inputs, asked, strict=True):
            row = rows.get(key)
            if row is None and old and (row := old.pop(key, None)) is not None:
                rows[key] = row
            if row is not None and (by_key or row[0] == own) and (until is None or row[2] <= now < until(*row[1:])):
                row[0] = own  # what is the same object next time is compared at once
            else:
                row = lacking.setdefault(key, [own, one, now])
                row[1] = one
            found.append(row)
        if lacking:
            made = self._make([row[1] for row in lacking.values()])
            for row, value in zip(lacking.values(), made, strict=True):
                row[1] = value
            rows.update(lacking)  # a dict, which knows what its keys hash to
        return [row[1] for row in found]


def one_by_one(make: Callable[[A], V]) -> Callable[[Sequence[A]], list[V]]:
    """For a table whose values are not made faster together."""
    return lambda asked: [make(one) for one in asked]
