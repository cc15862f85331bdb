"""What was done to nodes, read from the events that say so. Pure.

Promise: the same events give the same record, whether they are read as they are written or after a restart.
Limit: a sleep counts from the moment that Slurm is asked for it; as much is remembered as the events are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from slurm_elastic.db.rows import EventRow
from slurm_elastic.protocol.codes import EventKind

from .forecast import STEP_S, Demand

HOUR_S = 3600.0


class Record:
    """Of the nodes that this service put to sleep, and of what was needed."""

    def __init__(self, events: Iterable[EventRow] = ()) -> None:
        self.demand = defaultdict[str, Demand](Demand)
        """By pool."""
        self.asleep: dict[str, float] = {}
        """Since when, by node; those that are being woken are not among them."""
        self.waking: dict[str, float] = {}
        """By node: when it was asked to wake."""
        self.failures = Counter[str]()
        """How often in a row each did not boot."""
        self.slept_s = 0.0
        """Of sleeps that are over."""
        self.woken = 0
        self.waits: list[float] = []
        """How long jobs waited for nodes to boot."""
        self.wake_ups: set[int] = set()
        """Steps in which nodes were woken."""
        self._moves: list[tuple[float, bool]] = []
        """Those of the last hour: when, and whether to wake."""
        for event in events:
            self.add(event.at, event.kind, event.detail)

    def add(self, at: float, kind: str, detail: Mapping[str, Any]) -> None:
        """One event; those of other services change nothing."""
        if kind == EventKind.POWER:
            self._moves = [move for move in self._moves if move[0] > at - HOUR_S] + [(at, detail["awake"])]
            if detail["awake"]:
                self._wakes(detail["node"], at)
                self.waking[detail["node"]] = at
            else:
                self.asleep[detail["node"]] = at
        elif kind == EventKind.REFUSED:
            node = detail["action"].get("node", "")
            if node in self.waking:
                self.asleep[node] = self.waking.pop(node)
            else:
                self.asleep.pop(node, None)
        elif detail.get("service") == "power" and "needed" in detail:
            for pool, nodes in detail["needed"].items():
                self.demand[pool].add(detail["step"], nodes)
        elif detail.get("service") == "power":
            node, booted = detail["node"], detail["booted"]
            self._wakes(node, at)
            self.waking.pop(node, None)
            self.waits += detail["waits"]
            self.woken += booted
            self.failures[node] = 0 if booted else self.failures[node] + 1

    def _wakes(self, node: str, at: float) -> None:
        since = self.asleep.pop(node, None)
        if since is not None:
            self.slept_s += at - since
            self.wake_ups.add(int(at // STEP_S))

    def last_hour(self, awake: bool, now: float) -> int:
        """How many nodes were woken, or put to sleep."""
        return sum(1 for at, woken in self._moves if woken == awake and at > now - HOUR_S)

    def asleep_h(self, now: float) -> float:
        """Node-hours asleep so far."""
        return (self.slept_s + sum(now - since for since in self.asleep.values())) / HOUR_S
