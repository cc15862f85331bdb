"""Idle nodes sorted by what is free on them: placing a growth then costs what it takes, whatever the cluster's size.

Limit: it knows only the changes that `put` gives it; the ledger does.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator
from heapq import merge
from itertools import chain
from typing import Generic, TypeVar

Amounts = TypeVar("Amounts")


class IdleNodes(Generic[Amounts]):
    """Nodes by their free amount; those of one amount are in the order of their names."""

    def __init__(self, nodes: Iterable[tuple[str, Amounts]]) -> None:
        self._amount = dict(nodes)
        self._names: dict[Amounts, list[str]] = {}
        for name in sorted(self._amount):
            self._names.setdefault(self._amount[name], []).append(name)

    @property
    def amounts(self) -> Collection[Amounts]:
        """Every amount that is free on some node."""
        return self._names.keys()

    def put(self, name: str, amount: Amounts | None) -> None:
        """What is free on the node has changed; None: nothing is, it leaves."""
        before = self._amount.pop(name, None)
        if before is not None:
            names = self._names[before]
            del names[bisect_left(names, name)]
            if not names:
                del self._names[before]
        if amount is not None:
            self._amount[name] = amount
            insort(self._names.setdefault(amount, []), name)

    def of(self, amounts: Collection[Amounts], near: Collection[str] = ()) -> Iterator[str]:
        """The nodes with one of these amounts free: those of `near` first, each by name. Lazy: few are asked for."""
        lists = [self._names[amount] for amount in amounts]
        others = merge(*lists) if len(lists) > 1 else iter(lists[0])
        if not near:
            return others
        first = sorted(name for name in near if self._amount.get(name) in amounts)
        return chain(first, (name for name in others if name not in near))
