"""Tally whose order of additions does not depend on who holds which summand: one binary tree over numbered leaves.

A rank adds up what it can of its own leaves, and whoever gets all ranks' nodes adds up the rest; every addition is one
of the tree's, so the result is the same to the last bit however the leaves are shared out. Leaves may be absent: then
their sibling stands for both. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Value = TypeVar("Value")
Node = tuple[int, int]
"""Level, from 0 for leaves, and place in it: (l, i) is the sum of (l - 1, 2 i) and (l - 1, 2 i + 1)."""


def put(held: dict[Node, Value], leaf: int, value: Value, add: Callable[[Value, Value], Value]) -> None:
    """Add a leaf, and all sums that it completes. A rank's leaves come in ascending order."""
    level, place = 0, leaf
    while place & 1 and (level, place - 1) in held:
        value = add(held.pop((level, place - 1)), value)
        level, place = level + 1, place // 2
    held[level, place] = value


def nodes_of(leaves: Iterable[int]) -> list[Node]:
    """What is held once these leaves, ascending, have been put."""
    held: dict[Node, None] = {}
    for leaf in leaves:
        put(held, leaf, None, lambda left, right: None)
    return sorted(held)


def total(held: dict[Node, Value], leaves: int, add: Callable[[Value, Value], Value]) -> Value | None:
    """The sum over all of `leaves` leaves, from nodes that make them up; None without any."""

    def at(level: int, place: int) -> Value | None:
        if (level, place) in held or level == 0:
            return held.get((level, place))
        left, right = at(level - 1, 2 * place), at(level - 1, 2 * place + 1)
        return left if right is None else right if left is None else add(left, right)

    return at(max(0, leaves - 1).bit_length(), 0)
