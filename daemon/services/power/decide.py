"""How many nodes of a pool go to sleep, or are woken, and what that brings on a history of demand. Pure.

Promise: what sleeps never leaves fewer idle nodes than the buffer; no more is put to sleep, or woken, in an hour than
allowed. Limit: counts nodes; which of them, and which are left alone, is the service's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import ceil

from slurm_elastic.protocol.records import record

from .forecast import STEP_S, Demand

MIN_SLEEP_S = 1800.0
"""How long a node sleeps at least before it is woken for the buffer. A job that needs it wakes it at once."""


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
