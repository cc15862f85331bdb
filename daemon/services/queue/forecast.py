"""How long jobs will probably run, in which order those that wait start, and when, within which bounds. Pure.

The median of a user's own jobs of the same name and size is what Helios (Hu et al., SC 2021) orders by; on public
traces it was as good as learned models.
Promise: jobs start in the order given; one that finds no room keeps the first place where it will have some, and those
behind it start only where they don't delay it (EASY backfill). Bounds come from how wrong earlier forecasts were.
Limit: jobs that are submitted later are not foreseen but by those bounds; CPUs and memory never run out before GPUs.
"""

import re
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Sequence
from heapq import heapify, heappop, heappush
from math import log2
from statistics import median, quantiles

from slurm_elastic.protocol.records import record

from ...capacity.free_gpus import FreeGpus

KNOWN = 20
"""So many must have started since selasticd did; before, a third to three times the wait is said."""
LAST = 300
SLACK_S = 60.0
"""Waits are compared beyond a minute; a shorter one is as good as none."""
ENDED_KEPT = 20
"""How many ended jobs of a kind count."""
MOST_KINDS = 50_000
_NUMBER = re.compile(r"\d+")
AGES_S = 7 * 86400.0
"""How long a job waits until it counts as one that needs half as much; after twice as long a fifth."""
SHORTEST, LONGEST = 6.0, 30.0
"""Doublings of a GPU second between which jobs are told apart: a minute of one GPU, and a month of 400."""
STEPS = 4
"""Per doubling: nearer ones are equal, so that a factor is seldom written anew."""


def need(left_s: float, gpus: float, waited_s: float) -> float:
    """GPU seconds that a job counts as: the quasi-shortest service first of Helios, aged so that nobody starves."""
    return left_s * gpus / (1.0 + (waited_s / AGES_S) ** 2)


def site_factor(gpu_seconds: float, most: int) -> int:
    """What is added to a job's priority, from 0 to `most`: as much less for each doubling of what it needs.

    Never below 0: Slurm knows no priority below 1, where all would be alike.
    """
    doublings = round(log2(max(1.0, gpu_seconds)) * STEPS) / STEPS
    place = (LONGEST - doublings) / (LONGEST - SHORTEST)
    return round(most * min(1.0, max(0.0, place)))


@record(frozen=True, slots=True)
class Ended:
    """A job that has run and ended."""

    user: str
    name: str
    gpus: float
    seconds: float
    """How long it ran."""


class RunTimes:
    """Of the jobs of one cluster; those of a kind nobody has seen for long are forgotten first."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[object, ...], deque[float]] = OrderedDict()

    def add(self, ended: Ended) -> None:
        """A job has ended; in the order of the ends."""
        for kind in _kinds(ended.user, ended.name, ended.gpus):
            self._last.setdefault(kind, deque(maxlen=ENDED_KEPT)).append(ended.seconds)
            self._last.move_to_end(kind)
        while len(self._last) > MOST_KINDS:
            self._last.popitem(last=False)

    def left_s(self, user: str, name: str, gpus: float, limit_s: float, ran_s: float = 0.0) -> float:
        """Seconds that a job will still run, at least one: the median of those like it that ran longer than it has.

        Like it are the user's of the same name and size, else of the same size, else all. limit_s: the time limit, the
        most that is believed, and what counts where nothing is known; infinite: a day.
        """
        rest = limit_s - ran_s if limit_s < float("inf") else max(86400.0, ran_s)
        for kind in _kinds(user, name, gpus):
            seen = sorted(self._last.get(kind, ()))
            longer = seen[bisect_right(seen, ran_s) :]
            if longer:
                return max(1.0, min(median(longer) - ran_s, rest))
        return max(1.0, rest)


def _kinds(user: str, name: str, gpus: float) -> tuple[tuple[object, ...], ...]:
    """From the closest to the widest. Runs that are told apart by a number have one name."""
    return (user, _NUMBER.sub("0", name), gpus), (user, gpus), (user,)


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
