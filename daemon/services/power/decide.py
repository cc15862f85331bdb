"""How many nodes of a pool will be needed in the next three hours, how many go to sleep or are woken, what was done to
them, by the events that say so, and what that brings on a history of demand. Pure.

Promise: the same events give the same record, whether they are read as they are written or after a restart; what
sleeps never leaves fewer idle nodes than the buffer; no more is put to sleep, or woken, in an hour than allowed.
Limit: counts nodes; which of them, and which are left alone, is the service's. A sleep counts from the moment that
Slurm is asked for it. What comes at the same time of the day on most days is foreseen, and nothing else.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from math import ceil
from statistics import fmean
from typing import Any

from slurm_elastic.db.rows import EventRow
from slurm_elastic.protocol.codes import EventKind
from slurm_elastic.protocol.records import record

MIN_SLEEP_S = 1800.0
"""How long a node sleeps at least before it is woken for the buffer. A job that needs it wakes it at once."""
HOUR_S = 3600.0
STEP_S = 600.0
AHEAD, BEHIND, DAY, DAYS = 18, 12, 144, 14
"""In steps: how far it looks ahead; for how long what was needed counts as still needed; a day; in days: how many it
looks back at."""


class Demand:
    """The most nodes that were needed at once, in each step of ten minutes."""

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}
        self._rises: dict[int, int] = {}
        """By how much the most of the AHEAD steps after each was above it."""

    def add(self, step: int, nodes: int) -> None:
        """A step has passed; steps come in order."""
        self.steps[step] = nodes
        known = [self.steps.get(one) for one in range(step - AHEAD, step + 1)]
        counted = [one for one in known if one is not None]
        if len(counted) == len(known):
            self._rises[step - AHEAD] = max(counted) - counted[0]
        for of in (self.steps, self._rises):
            of.pop(step - (DAYS + 1) * DAY, None)

    def usual_rise(self, step: int) -> float:
        """By how much demand rose within three hours of this time of the day, in the mean of the last days."""
        then = (step - DAY * day for day in range(1, DAYS + 1))
        found = [self._rises[one] for one in then if one in self._rises]
        return fmean(found) if found else 0.0

    def expected(self, step: int, now: int) -> int:
        """The most nodes that will probably be needed in the next three hours, as `now` are needed in this step."""
        return round(now + self.usual_rise(step))

    def recent(self, step: int) -> int:
        """The most that were needed in the last two hours."""
        return max((self.steps.get(one, 0) for one in range(step - BEHIND, step)), default=0)


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


@record(frozen=True, slots=True)
class Limits:
    buffer: float
    """Share of a pool's nodes that stay awake while idle."""
    per_hour: int

    def kept(self, nodes: int) -> int:
        """The buffer of a pool of so many nodes."""
        return min(nodes, max(1, ceil(self.buffer * nodes)))


@record(frozen=True, slots=True)
class Counts:
    """A pool now. `free`: awake, idle and promised to nobody; `wanted`: for jobs that wait; `may_wake`: asleep for as
    long as the least."""

    busy: int
    wanted: int
    free: int
    waking: int
    may_wake: int
    nodes: int


def change(now: Counts, expected: int, limits: Limits, slept: int, woken: int) -> int:
    """How many nodes to wake; below 0: to put to sleep. expected: nodes that will probably be needed at once; slept,
    woken: in the last hour."""
    needed, awake, kept = now.busy + now.wanted, now.busy + now.free + now.waking, limits.kept(now.nodes)
    if awake - needed < max(1, kept // 4) or awake < expected - kept:
        # At once for what comes after it, too, so that nodes are not woken one by one.
        wanted = max(max(expected, needed) + kept, needed + 2 * kept) - awake
        return max(0, min(wanted, now.may_wake, limits.per_hour - woken))
    spare = min(now.free - kept, awake - max(expected, needed) - kept, limits.per_hour - slept)
    return -max(0, spare)


@record(frozen=True, slots=True)
class Replay:
    """What acting would have brought."""

    steps: int
    asleep: float
    """Share of idle node-hours."""
    wake_ups: int
    """Steps in which nodes were woken, for the buffer or for a job: what Helios counts."""
    woken: int
    """Nodes."""
    short: int
    """Steps in which more were needed than were awake."""
    awake: tuple[int, ...] = ()


def replay(needed: Mapping[int, int], nodes: Mapping[int, int] | int, limits: Limits) -> Replay:
    """Each step decided as the service decides, by what was known then. needed, nodes: by step."""
    demand, sleeping, moves = Demand(), list[int](), deque[tuple[int, int]]()
    idle = asleep = wake_ups = woken = short = 0
    awake_at = []
    for step in sorted(needed):
        total = nodes if isinstance(nodes, int) else nodes[step]
        need = min(needed[step], total)
        sleeping = sleeping[: max(0, total)]
        missing = max(0, need - (total - len(sleeping)))
        sleeping = sleeping[missing:]  # Slurm wakes what a job needs
        while moves and moves[0][0] <= step - 6:
            moves.popleft()
        ripe = sum(1 for since in sleeping if (step - since) * STEP_S >= MIN_SLEEP_S)
        counts = Counts(need, 0, total - len(sleeping) - need, 0, ripe, total)
        expected = max(demand.expected(step, need), demand.recent(step))
        slept, waked = (sum(n for _, n in moves if n * sign > 0) * sign for sign in (-1, 1))
        moved = change(counts, expected, limits, slept, waked)
        sleeping = sleeping[moved:] if moved > 0 else sleeping + [step] * -moved
        if moved:
            moves.append((step, moved))
        wake_ups += missing > 0 or moved > 0
        woken += missing + max(0, moved)
        short += missing > 0
        idle, asleep = idle + total - need, asleep + len(sleeping)
        awake_at.append(total - len(sleeping))
        demand.add(step, need)
    return Replay(len(awake_at), asleep / idle if idle else 0.0, wake_ups, woken, short, tuple(awake_at))
