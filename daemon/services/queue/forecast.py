"""When waiting jobs will probably start, and within which bounds. Pure.

Promise: jobs start in the order given; one that finds no room keeps the first place where it will have some, and those
behind it start only where they don't delay it (EASY backfill). Bounds come from how wrong earlier forecasts were.
Limit: jobs that are submitted later are not foreseen but by those bounds; CPUs and memory never run out before GPUs.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from heapq import heapify, heappop, heappush
from statistics import quantiles

from slurm_elastic.protocol.records import record

from ...capacity.free_gpus import FreeGpus

KNOWN = 20
"""So many must have started since selasticd did; before, a third to three times the wait is said."""
LAST = 300
SLACK_S = 60.0
"""Waits are compared beyond a minute; a shorter one is as good as none."""


@record(frozen=True, slots=True)
class Wanted:
    """What a waiting job asks for."""

    job_id: int
    nodes: int
    gpus_per_node: int
    seconds: float
    """How long it will run."""
    shut: frozenset[int] = frozenset()
    """Numbers of the nodes on which it does not start."""

    def places(self, free: FreeGpus) -> list[int] | None:
        """Numbers of nodes on which it could start; None: there is no room."""
        found = free.places([(self.nodes, self.gpus_per_node, ())], self.shut)
        return None if found is None else found[0]


Held = tuple[float, Sequence[int], int]
"""When a job ends, the numbers of its nodes, and its GPUs on each."""


def starts(now: float, free: FreeGpus, running: Iterable[Held], queue: Sequence[Wanted]) -> dict[int, float]:
    """When each starts, by job id; without those that never find room. `free` is used up."""
    ends, waiting, found = list(running), list(queue), dict[int, float]()
    heapify(ends)
    kept: _Kept | None = None
    while True:
        waiting, kept = _start(now, free, ends, waiting, found, kept)
        if not waiting or not ends:
            return found
        now = max(now, ends[0][0])
        while ends and ends[0][0] <= now:
            _, nodes, gpus = heappop(ends)
            free.take(nodes, -gpus)


_Kept = tuple[float, FreeGpus, Wanted]
"""When the first that waits starts, what is free then, and which it is. It stands until then: all ends are known."""


def _start(
    now: float,
    free: FreeGpus,
    ends: list[Held],
    waiting: Sequence[Wanted],
    found: dict[int, float],
    kept: _Kept | None,
) -> tuple[list[Wanted], _Kept | None]:
    """Start all that can now; those that still wait."""
    left, full = list[Wanted](), set[tuple[int, int, frozenset[int]]]()
    if kept is not None and (kept[0] <= now or kept[2].job_id in found):
        kept = None
    for one in waiting:
        like = one.nodes, one.gpus_per_node, one.shut
        here = None if like in full or one.nodes * one.gpus_per_node > free.idle else one.places(free)
        if here is None:
            full.add(like)  # nothing comes free within one moment
        if here is None or (kept is not None and not _fits_beside(one, here, now, kept)):
            left.append(one)
            if kept is None and (until := _room(one, free, ends)):
                kept = *until, one
            continue
        free.take(here, one.gpus_per_node)
        heappush(ends, (now + one.seconds, here, one.gpus_per_node))
        found[one.job_id] = now
    return left, kept


def _room(first: Wanted, free: FreeGpus, ends: Collection[Held]) -> tuple[float, FreeGpus] | None:
    """When the first that waits can start, and what is free then; None: never."""
    later = free.copy()
    for at, nodes, gpus in sorted(ends):
        later.take(nodes, -gpus)
        if first.places(later):
            return at, later
    return None


def _fits_beside(one: Wanted, here: Sequence[int], now: float, kept: _Kept) -> bool:
    """Whether it does not delay the first; the room that is left then is kept up to date."""
    at, later, first = kept
    if now + one.seconds <= at:
        return True
    later.take(here, one.gpus_per_node)
    if first.places(later):
        return True
    later.take(here, -one.gpus_per_node)
    return False


class Bounds:
    """How far waits were from their forecasts, as ratios: those of the last jobs that started."""

    def __init__(self) -> None:
        self._told = dict[int, tuple[float, float]]()
        """Job id -> when it was first seen to wait, and how long it was said to."""
        self._ratios = deque[float](maxlen=LAST)

    def foretold(self, at: float, said: dict[int, float]) -> None:
        """Forecast starts by job id; only the first of each job counts."""
        for job_id, start in said.items():
            self._told.setdefault(job_id, (at, start - at))

    def waits(self, waiting: Collection[int], started: dict[int, float]) -> None:
        """The jobs that wait now, and when others started; of one that is gone in another way nothing is learned."""
        for job_id in self._told.keys() - waiting:
            at, said = self._told.pop(job_id)
            if job_id in started:
                self._ratios.append((max(0.0, started[job_id] - at) + SLACK_S) / (said + SLACK_S))

    def around(self, now: float, start: float) -> tuple[float, float]:
        """The earliest and the latest start, between which four of five jobs started that were foretold so."""
        low, high = 1 / 3, 3.0
        if len(self._ratios) >= KNOWN:
            tenths = quantiles(self._ratios, n=10)
            low, high = tenths[0], tenths[-1]
        wait = start - now + SLACK_S
        return now + max(0.0, wait * low - SLACK_S), now + max(0.0, wait * high - SLACK_S)
