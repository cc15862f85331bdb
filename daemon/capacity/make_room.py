"""Room for waiting jobs: what idle GPUs to keep for them, and which units elastic jobs must give up. Pure.

Rigid jobs first, in Slurm's order: for each waiting job its whole shape or nothing, with the fewest GPUs taken from
elastic jobs, and none below its minimum. Limit: what a snapshot does not show (licences, excluded nodes, counts of
features) is not known here; a job that does not take the room made for it is passed over later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import combinations
from math import inf

from ..slurm.model import Snapshot
from .ledger import Amount, Ledger
from .pending_jobs import Need, NeedPart, meets
from .shrink_options import Giver, Unit, droppable, first_units, shrinks

_Rank = tuple[bool, float, int, float, float, int, str, tuple[Unit, ...]]
"""(not required, GPUs taken (half as many where nobody trains on them yet), not free yet, minus the fullness of who
gives, minus how much the slowest node given up holds its job back, GPUs left over, node, units to give up)."""
_FEW = 8
"""Units on one node up to which every combination is tried."""


@dataclass(frozen=True, slots=True)
class Met:
    """A waiting job for which there is, or will be, room."""

    need: Need
    nodes: tuple[str, ...]
    givers: Mapping[int, int]
    """GPUs given up for it, by elastic job. Empty: idle GPUs are enough."""
    waits: bool
    """Part of its room is still held by something that is being released or has to be given up."""


@dataclass(frozen=True, slots=True)
class Room:
    """The outcome: the ledger after every reservation, the forced units by job, who is met and who is not."""

    ledger: Ledger
    forced: Mapping[int, frozenset[Unit]]
    met: tuple[Met, ...] = ()
    unmet: tuple[Need, ...] = ()


@dataclass(slots=True)
class _Try:
    """A reservation being tried; thrown away when the shape cannot be completed."""

    ledger: Ledger
    dropped: dict[int, frozenset[Unit]]
    nodes: list[str] = field(default_factory=list)
    given: dict[int, int] = field(default_factory=dict)
    waits: bool = False

    def copy(self) -> _Try:
        return _Try(self.ledger.copy(), dict(self.dropped))


def make_room(snapshot: Snapshot, ledger: Ledger, givers: Iterable[Giver], waiting: Iterable[Need]) -> Room:
    """Reserve for each waiting job in turn. The ledger given is not changed."""
    maker = _Maker(snapshot, {giver.job_id: giver for giver in givers})
    state = _Try(ledger.copy(), {})
    met: list[Met] = []
    unmet: list[Need] = []
    blocked: dict[str, float] = {}
    refused = set[tuple[NeedPart, ...]]()
    for need in waiting:
        if need.parts in refused:
            unmet.append(need)  # there was no room for one like it, and nobody was given any since
            continue
        partitions = {name for part in need.parts for name in part.partitions}
        before = min((blocked[name] for name in partitions if name in blocked), default=inf)
        if before < inf and (need.time_limit_s is None or need.time_limit_s > before):
            unmet.append(need)  # Slurm would not start it either: it would delay one that comes before it
            continue
        attempt = maker.attempt(state, need)
        if attempt is None:
            unmet.append(need)
            refused.add(need.parts)
            start = maker.earliest(state, need)
            for name in partitions:
                blocked[name] = min(blocked.get(name, inf), start)
            continue
        state = attempt
        refused.clear()
        met.append(Met(need, tuple(attempt.nodes), attempt.given, attempt.waits))
    return Room(state.ledger, state.dropped, tuple(met), tuple(unmet))


class _Maker:
    """What does not change while room is made."""

    def __init__(self, snapshot: Snapshot, givers: dict[int, Giver]) -> None:
        self.snapshot = snapshot
        self.givers = givers
        self.bundles: dict[Unit, tuple[int, tuple[Unit, ...]]] = {}
        self.on_node: dict[str, list[Unit]] = {}
        self.untrained = {unit for giver in givers.values() for unit in first_units(giver)}
        for giver in givers.values():
            for unit, bundle in droppable(giver).items():
                self.bundles[unit] = (giver.job_id, bundle)
                self.on_node.setdefault(unit[1], []).append(unit)
        self._ok: dict[tuple[int, frozenset[Unit]], bool] = {}
        self._nodes: dict[NeedPart, list[str]] = {}

    def attempt(self, state: _Try, need: Need) -> _Try | None:
        """The state after reserving the need's whole shape; None when it cannot be completed."""
        trial = state.copy()
        for part in need.parts:
            if not self._reserve(trial, part):
                return None
        return trial

    def _reserve(self, trial: _Try, part: NeedPart) -> bool:
        heap = []
        for name in self._candidates(trial, part):
            ranked = self._rank(trial, part, name)
            if ranked is not None:
                heap.append(ranked)
        heapify(heap)
        chosen = 0
        while heap and chosen < part.nodes:
            head = heappop(heap)
            fresh = self._rank(trial, part, head[-2])  # what others gave up since may have changed it
            if fresh is None:
                continue
            if fresh[:-1] > head[:-1]:
                heappush(heap, fresh)
                continue
            self._give(trial, fresh[-1])
            name = fresh[-2]
            trial.waits |= not trial.ledger.now[name].covers(part.amount)
            trial.ledger.take(name, part.amount)
            trial.nodes.append(name)
            chosen += 1
        return chosen == part.nodes and part.required <= set(trial.nodes)

    def _candidates(self, trial: _Try, part: NeedPart) -> list[str]:
        """Nodes that would do for the part were they free. Waiting jobs are often alike: looked for once."""
        if part not in self._nodes:
            self._nodes[part] = self._large_enough(trial, part)
        return self._nodes[part]

    def _large_enough(self, trial: _Try, part: NeedPart) -> list[str]:
        return [
            name
            for name, node in self.snapshot.nodes.items()
            if trial.ledger.usable(name)
            and part.partitions & set(node.partitions)
            and (name in part.required or len(part.required) < part.nodes)
            and (not part.amount.gpus or not part.gpu_type or node.gpu_type == part.gpu_type)
            and meets(part.features, node.features)
            and Amount(node.gpus, node.cpus, node.mem_mb).covers(part.amount)
        ]

    def _rank(self, trial: _Try, part: NeedPart, name: str) -> _Rank | None:
        """What a node costs for a part, the cheapest first; None: it cannot be made large enough."""
        have = trial.ledger.total(name)
        late = 0 if trial.ledger.now[name].covers(part.amount) else 1
        if have.covers(part.amount):
            return name not in part.required, 0.0, late, 0.0, 0.0, have.gpus - part.amount.gpus, name, ()
        best: tuple[float, float, float, int, tuple[Unit, ...]] | None = None
        for units in self._ways(trial, name, part.amount, have):
            freed = self._freed(trial, units, name)
            cost = sum(self._gpus(unit) * (0.5 if unit in self.untrained else 1.0) for unit in units)
            surplus = (have + freed).gpus - part.amount.gpus
            key = (cost, -self._fullness(units), -self._slowness(units), surplus, units)
            if best is None or key < best:
                best = key
        if best is None:
            return None
        cost, fullness, slowness, surplus, units = best
        return name not in part.required, cost, late, fullness, slowness, surplus, name, units

    def _ways(self, trial: _Try, name: str, need: Amount, have: Amount) -> Iterable[tuple[Unit, ...]]:
        """Sets of units whose release makes the node large enough, each complete with what goes along."""
        here = [u for u in self.on_node.get(name, ()) if u not in trial.dropped.get(self.bundles[u][0], ())]
        tries = range(1, len(here) + 1) if len(here) <= _FEW else (1, 2, len(here))
        for count in tries:
            for heads in combinations(here, count):
                units = self._closed(trial, heads)
                if (have + self._freed(trial, units, name)).covers(need) and self._may(trial, units):
                    yield units

    def _closed(self, trial: _Try, heads: Iterable[Unit]) -> tuple[Unit, ...]:
        units = {unit for head in heads for unit in self.bundles[head][1]}
        gone = set().union(*trial.dropped.values()) if trial.dropped else set()
        return tuple(sorted(units - gone))

    def _freed(self, trial: _Try, units: Iterable[Unit], name: str) -> Amount:
        total = Amount()
        for unit in units:
            if unit[1] == name:
                total = total + self._share(unit)
        return total

    def _share(self, unit: Unit) -> Amount:
        return self.givers[self.bundles[unit][0]].share[unit[0]]

    def _gpus(self, unit: Unit) -> int:
        return self._share(unit).gpus

    def _fullness(self, units: Collection[Unit]) -> float:
        """How much the fullest of those who give holds, per weight: the one that has most gives first."""
        owners = {self.bundles[unit][0] for unit in units}
        return max((self.givers[owner].gpus / self.givers[owner].weight for owner in owners), default=0.0)

    def _slowness(self, units: Collection[Unit]) -> float:
        """What the slowest of these nodes costs its job in every step."""
        return max((self.givers[self.bundles[unit][0]].slow.get(unit[1], 0.0) for unit in units), default=0.0)

    def _may(self, trial: _Try, units: Iterable[Unit]) -> bool:
        """Whether everyone who gives can still come to rest on a size that it accepts."""
        by_job: dict[int, set[Unit]] = {}
        for unit in units:
            by_job.setdefault(self.bundles[unit][0], set()).add(unit)
        return all(self._rests(job, trial.dropped.get(job, frozenset()) | gone) for job, gone in by_job.items())

    def _rests(self, job_id: int, gone: frozenset[Unit]) -> bool:
        key = (job_id, gone)
        if key not in self._ok:
            self._ok[key] = bool(self.givers[job_id].sizes & shrinks(self.givers[job_id], gone).keys())
        return self._ok[key]

    def _give(self, trial: _Try, units: Iterable[Unit]) -> None:
        for unit in units:
            owner = self.bundles[unit][0]
            trial.dropped[owner] = trial.dropped.get(owner, frozenset()) | {unit}
            trial.given[owner] = trial.given.get(owner, 0) + self._gpus(unit)
            trial.ledger.release(unit[1], self._share(unit))

    def earliest(self, state: _Try, need: Need) -> float:
        """Seconds until the shape could be free if everything ran to its time limit; infinite when never."""
        latest = 0.0
        for part in need.parts:
            ends = sorted(self._free_at(state, name, part) for name in self._candidates(state, part))
            if len(ends) < part.nodes:
                return inf
            latest = max(latest, ends[part.nodes - 1])
        return latest

    def _free_at(self, state: _Try, name: str, part: NeedPart) -> float:
        if self._rank(state, part, name) is not None:
            return 0.0
        return self._ends.get(name, 0.0)

    @cached_property
    def _ends(self) -> dict[str, float]:
        """By node: seconds until the last of its jobs reaches its time limit; infinite where one has none."""
        found: dict[str, float] = {}
        for job in self.snapshot.jobs.values():
            left = inf if job.time_left_s is None else job.time_left_s
            for name in job.nodes:
                found[name] = max(found.get(name, left), left)
        return found
