"""What was done to nodes, read from the events that say so. Pure.

Promise: the same events give the same record, whether they are read as they are written or after a restart.
Limit: a sleep counts from the moment that Slurm is asked for it; as much is remembered as the events are.
"""

from __future__ import annotations

from collections import defaultdict, deque
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
        self.failures: dict[str, int] = {}
        """How often each did not come back."""
        self.slept_s = 0.0
        """Of sleeps that are over."""
        self.woken = 0
        """Nodes that came back."""
        self.waits: list[float] = []
        """How long jobs waited for nodes to boot."""
        self.wake_ups: set[int] = set()
        """Steps in which nodes were woken."""
        self.first: float | None = None
        self.moves: deque[tuple[float, EventKind]] = deque()
        """Those of the last hour."""
        for event in events:
            self.add(event.at, event.kind, event.detail)

    def add(self, at: float, kind: str, detail: Mapping[str, Any]) -> None:
        """One event; those of other services change nothing."""
        if kind in (EventKind.POWER_DOWN, EventKind.POWER_UP):
            self.first = at if self.first is None else self.first
            self.moves.append((at, EventKind(kind)))
            if kind == EventKind.POWER_DOWN:
                self.asleep[detail["node"]] = at
            else:
                self._wakes(detail["node"], at)
                self.waking[detail["node"]] = at
        elif kind == EventKind.REFUSED:
            node = detail["action"].get("node", "")
            if node in self.waking:
                self.asleep[node] = self.waking.pop(node)
            else:
                self.asleep.pop(node, None)
        elif detail.get("service") == "power" and "needed" in detail:
            for pool, nodes in detail["needed"].items():
                self.demand[pool].add(detail["step"], nodes)
        elif detail.get("service") == "power" and "booted" in detail:
            self._wakes(detail["node"], at)
            self.waking.pop(detail["node"], None)
            self.waits += detail["waits"]
            self.woken += detail["booted"]
            self.failures[detail["node"]] = 0 if detail["booted"] else self.failures.get(detail["node"], 0) + 1

    def _wakes(self, node: str, at: float) -> None:
        since = self.asleep.pop(node, None)
        if since is not None:
            self.slept_s += at - since
            self.wake_ups.add(int(at // STEP_S))

    def last_hour(self, kind: EventKind, now: float) -> int:
        """How many nodes were put to sleep, or woken."""
        while self.moves and self.moves[0][0] <= now - HOUR_S:
            self.moves.popleft()
        return sum(1 for _, of in self.moves if of == kind)

    def asleep_h(self, now: float) -> float:
        """Node-hours asleep so far."""
        return (self.slept_s + sum(now - since for since in self.asleep.values())) / HOUR_S
