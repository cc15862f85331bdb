"""Room for waiting jobs: what idle GPUs to keep for them, and which units elastic jobs must give up. Pure.

Rigid jobs first, in Slurm's order: for each waiting job its whole shape or nothing, with the fewest GPUs taken from
elastic jobs, and none below its minimum; what a limit of Slurm's lacks first (a limit of jobs is relieved by companions
given up whole, every other by any node), then nodes. Limit: what a snapshot does not show (licences, counts of
features) is not known here; a job that does not take the room made for it is passed over later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from heapq import heapify, heappop, heappush
from itertools import combinations
from math import inf
from types import MappingProxyType

from ..slurm.model import Job, Snapshot
from ..slurm.site import Site
from .constraints import meets
from .ledger import Amount, Ledger
from .pending_jobs import Need, NeedPart
from .shrink_options import ShrinkableJob, Unit, first_units, shrinks
from .slurm_limits import Bound, LimitUsage, amounts_of, charged


class LimitRelief:
    """The usage of Slurm's limits, and the givers that make it less."""

    def __init__(self, snapshot: Snapshot, givers: Mapping[int, ShrinkableJob], usage: LimitUsage) -> None:
        self._jobs, self._givers, self._usage = snapshot.jobs, givers, usage

    def lacks(
        self, jobs: Sequence[Job], promised: LimitUsage, dropped: Mapping[int, frozenset[Unit]]
    ) -> dict[Bound, float] | None:
        """How much has to be given back of each limit for the waiting job to start, after what others were promised and
        what is given up already; None: no giving up is enough."""
        if not self._usage.site.limits:
            return {}
        left = self._usage.plus(promised)
        for owner, units in dropped.items():
            self._give_back(left, owner, units)
        found: dict[Bound, float] = {}
        for job in jobs:
            lacks = left.lacks(charged(job), left.of(job))
            if lacks is None:
                return None
            found |= lacks
            left.add(charged(job), left.of(job))
        return found

    def share(
        self, owner: int, units: Collection[Unit], dropped: Mapping[int, frozenset[Unit]], lacks: Mapping[Bound, float]
    ) -> float:
        """How much of what is lacking these units bring back: 1 for all of it, 0 for nothing."""
        before = dropped.get(owner, frozenset())
        more = self._usage.empty()
        self._give_back(more, owner, before)
        self._give_back(more, owner, before | set(units), sign=1)
        return sum(min(more.used.get((bound.key, bound.name), 0.0) / lack, 1.0) for bound, lack in lacks.items()) / len(
            lacks
        )

    def _give_back(self, usage: LimitUsage, owner: int, units: Collection[Unit], sign: int = -1) -> None:
        giver = self._givers[owner]
        by_job = Counter(slurm_job_id for slurm_job_id, _ in units)
        for piece in giver.pieces:
            count, job = by_job[piece.slurm_job_id], self._jobs.get(piece.slurm_job_id)
            if count and job is not None:
                amounts = amounts_of(giver.share[piece.slurm_job_id], count, piece.gpu_type)
                if count == len(piece.nodes):
                    amounts["jobs"] = amounts["submits"] = 1
                usage.add(charged(job), usage.part_of(job, amounts), sign)


_Rank = tuple[bool, float, int, float, float, int, str, tuple[Unit, ...]]
"""(not required, what it costs those who give (`_cost`), not free yet, minus the fullness of who
gives, minus how much the slowest node given up holds its job back, GPUs left over, node, units to give up)."""
_FEW = 8
"""Units on one node up to which every combination is tried."""


@dataclass(frozen=True, slots=True)
class RoomMade:
    """A waiting job for which there is, or will be, room."""

    need: Need
    nodes: tuple[str, ...]
    givers: Mapping[int, int]
    """GPUs given up for it, by elastic job. Empty: idle GPUs are enough."""
    waits: bool
    """Part of its room is still held by something that is being released or has to be given up."""


@dataclass(frozen=True, slots=True)
class Room:
    """The outcome: the ledger after every reservation, the forced units by job, who is served and who is not."""

    ledger: Ledger
    forced: Mapping[int, frozenset[Unit]]
    served: tuple[RoomMade, ...] = ()
    unserved: tuple[Need, ...] = ()
    promised: LimitUsage = field(default_factory=lambda: LimitUsage(Site()))
    """What those who are served will use of Slurm's limits."""


@dataclass(slots=True)
class _Try:
    """A reservation being tried; thrown away when the shape cannot be completed."""

    ledger: Ledger
    promised: LimitUsage
    dropped: dict[int, frozenset[Unit]]
    nodes: list[str] = field(default_factory=list)
    given: dict[int, int] = field(default_factory=dict)
    waits: bool = False
    gives: bool = True
    """Elastic jobs may give way."""

    def copy(self) -> _Try:
        return _Try(self.ledger.copy(), self.promised.copy(), dict(self.dropped))


def make_room(
    snapshot: Snapshot,
    ledger: Ledger,
    givers: Iterable[ShrinkableJob],
    waiting: Iterable[Need],
    usage: LimitUsage | None = None,
    weights: Mapping[int, float] = MappingProxyType({}),
) -> Room:
    """Reserve for each waiting job in turn. The ledger and the usage of Slurm's limits that are given do not change.

    weights: by which givers count, by job id; 1 for the others.
    """
    usage, waiting = usage or LimitUsage(Site()), list(waiting)
    if not waiting:
        return Room(ledger.copy(), {}, promised=usage.empty())
    maker = _Maker(snapshot, ledger, {giver.job_id: giver for giver in givers}, usage, weights)
    state = _Try(ledger.copy(), usage.empty(), {})
    served: list[RoomMade] = []
    unserved: list[Need] = []
    blocked: list[tuple[float, frozenset[str], frozenset[str]]] = []
    refused, limited = set[tuple[NeedPart, ...]](), set[tuple[object, ...]]()
    for need in waiting:
        like = need.parts, need.limit, tuple(charged(job) for job in need.jobs)
        if need.parts in refused or like in limited:
            unserved.append(need)  # there was no room for one like it, and nobody was given any since
            continue
        partitions, nodes = maker.reach(state, need)
        before = min((at for at, other, theirs in blocked if partitions & other and nodes & theirs), default=inf)
        if before < inf and (need.time_limit_s is None or need.time_limit_s > before):
            unserved.append(need)  # Slurm would not start it either: it would delay one that comes before it
            continue
        under = maker.within_limits(state, need)
        attempt = maker.attempt(under, need) if under is not None else None
        if attempt is None and (under is None or not under.gives):
            unserved.append(need)  # Slurm passes it over, or has not looked at it yet: it holds back nobody
            limited.add(like)
            continue
        if attempt is None:
            unserved.append(need)
            refused.add(need.parts)
            blocked.append((maker.earliest(state, need), partitions, nodes))
            continue
        state = attempt
        refused.clear()
        limited.clear()
        served.append(RoomMade(need, tuple(attempt.nodes), attempt.given, attempt.waits))
    return Room(state.ledger, state.dropped, tuple(served), tuple(unserved), state.promised)


class _Maker:
    """What does not change while room is made."""

    def __init__(
        self,
        snapshot: Snapshot,
        ledger: Ledger,
        givers: dict[int, ShrinkableJob],
        usage: LimitUsage,
        weights: Mapping[int, float],
    ) -> None:
        self.snapshot = snapshot
        self.givers, self.weights = givers, weights
        self.relief = LimitRelief(snapshot, givers, usage)
        self.bundles: dict[Unit, tuple[int, tuple[Unit, ...]]] = {}
        self.on_node: dict[str, list[Unit]] = {}
        self.with_gpus = {name for name in ledger.now if ledger.total(name).gpus > 0}
        """Nodes with a GPU that is free, or that somebody may give up."""
        self.untrained = {unit for giver in givers.values() for unit in first_units(giver)}
        for giver in givers.values():
            for unit, bundle in giver.drops.items():
                self.bundles[unit] = (giver.job_id, bundle)
                self.on_node.setdefault(unit[1], []).append(unit)
        self.with_gpus |= self.on_node.keys()
        self._rests: dict[tuple[int, frozenset[Unit]], int] = {}
        self._nodes: dict[NeedPart, list[str]] = {}
        self._possible: dict[NeedPart, list[str]] = {}
        self._reach: dict[tuple[NeedPart, ...], tuple[frozenset[str], frozenset[str]]] = {}

    def reach(self, state: _Try, need: Need) -> tuple[frozenset[str], frozenset[str]]:
        """The partitions of a waiting job, and the nodes that would do for it were they free."""
        if need.parts not in self._reach:
            partitions = frozenset(name for part in need.parts for name in part.partitions)
            nodes = frozenset(name for part in need.parts for name in self._candidates(state, part))
            self._reach[need.parts] = partitions, nodes
        return self._reach[need.parts]

    def within_limits(self, state: _Try, need: Need) -> _Try | None:
        """The state after elastic jobs gave up what the limits of a waiting job lack; None when that is not enough."""
        trial = state.copy()
        lacks = self.relief.lacks(need.jobs, trial.promised, trial.dropped)
        # One that Slurm says waits for a limit of which nothing is lacking: what it lacked is on its way to it.
        trial.gives = not need.unseen and (bool(lacks) or not need.limit)
        _, wanted = self.reach(trial, need)
        while lacks and trial.gives:
            best = next(filter(partial(self._may, trial), self._relieving(trial, lacks, wanted)), None)
            if best is None:
                return None
            self._give(trial, best)
            lacks = self.relief.lacks(need.jobs, trial.promised, trial.dropped)
        if lacks or lacks is None:
            return None
        for job in need.jobs:
            trial.promised.add(charged(job), trial.promised.of(job))
        return trial

    def _relieving(self, trial: _Try, lacks: Mapping[Bound, float], wanted: frozenset[str]) -> list[tuple[Unit, ...]]:
        """Sets of units that are used of the limits which lack something, the best to give up first: what is enough by
        itself before what is not, the fewest GPUs for it, on nodes that the waiting job can use."""
        ranked: list[tuple[tuple[float, ...], tuple[Unit, ...]]] = []
        for owner, giver in self.givers.items():
            whole = [tuple((piece.slurm_job_id, node) for node in piece.nodes) for piece in giver.pieces]
            single = [(unit,) for units in whole for unit in units if len(units) > 1]
            for heads in (*whole, *single):
                if not all(unit in self.bundles for unit in heads):
                    continue
                units = self._closed(trial, heads)
                share = self.relief.share(owner, units, trial.dropped, lacks) if units else 0.0
                if share > 0.0:
                    useless = not wanted.issuperset(node for _, node in units)
                    fair = -self._fullness(units), -self._slowness(units)
                    ranked.append(((-share, self._cost(trial, units), useless, *fair), units))
        return [units for _, units in sorted(ranked)]

    def attempt(self, trial: _Try, need: Need) -> _Try | None:
        """The state after reserving the need's whole shape too; None when it cannot be completed."""
        for part in need.parts:
            if not self._reserve(trial, part):
                return None
        return trial

    def _reserve(self, trial: _Try, part: NeedPart) -> bool:
        heap = []
        for name in self._possible_nodes(trial, part):
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

    def _possible_nodes(self, trial: _Try, part: NeedPart) -> list[str]:
        """Those of the candidates that have GPUs free, or somebody who may give some up. The others never get any: in a
        round GPUs only become free where somebody gives them up."""
        if part not in self._possible:
            found = self._candidates(trial, part)
            self._possible[part] = [name for name in found if name in self.with_gpus] if part.amount.gpus else found
        return self._possible[part]

    def _large_enough(self, trial: _Try, part: NeedPart) -> list[str]:
        return [
            name
            for name, node in self.snapshot.nodes.items()
            if trial.ledger.usable(name)
            and part.partitions & set(node.partitions)
            and name not in part.excluded
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
        if not trial.gives or name not in self.on_node:
            return None
        best: tuple[float, float, float, int, tuple[Unit, ...]] | None = None
        for units in self._ways(trial, name, part.amount, have):
            freed = self._freed(trial, units, name)
            cost = self._cost(trial, units)
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
        return max((self.givers[owner].gpus / self.weights.get(owner, 1.0) for owner in owners), default=0.0)

    def _slowness(self, units: Collection[Unit]) -> float:
        """What the slowest of these nodes costs its job in every step."""
        return max((self.givers[self.bundles[unit][0]].slow.get(unit[1], 0.0) for unit in units), default=0.0)

    def _cost(self, trial: _Try, units: Collection[Unit]) -> float:
        """GPUs that those who give have less by these units: half as many where nobody trains on them yet, and what
        they cannot use any more, for they come to rest on the next smaller size that they accept."""
        given, lost = sum(self._gpus(unit) * (0.5 if unit in self.untrained else 1.0) for unit in units), 0
        for job, gone in self._by_job(units).items():
            before = trial.dropped.get(job, frozenset())
            of_units = sum(self._gpus(unit) for unit in gone)
            lost += max(0, self._rest(job, before) - self._rest(job, before | gone) - of_units)
        return given + lost

    def _may(self, trial: _Try, units: Iterable[Unit]) -> bool:
        """Whether everyone who gives can still come to rest on a size that it accepts."""
        by_job = self._by_job(units)
        return all(self._rest(job, trial.dropped.get(job, frozenset()) | gone) for job, gone in by_job.items())

    def _by_job(self, units: Iterable[Unit]) -> dict[int, frozenset[Unit]]:
        by_job: dict[int, set[Unit]] = {}
        for unit in units:
            by_job.setdefault(self.bundles[unit][0], set()).add(unit)
        return {job: frozenset(gone) for job, gone in by_job.items()}

    def _rest(self, job_id: int, gone: frozenset[Unit]) -> int:
        """The most GPUs that it can go on with; 0: there is no size that it accepts."""
        key = (job_id, gone)
        if key not in self._rests:
            giver = self.givers[job_id]
            self._rests[key] = max(giver.sizes & shrinks(giver, gone).keys(), default=0) if gone else giver.gpus
        return self._rests[key]

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
            nodes = self._candidates(state, part)
            if len(nodes) < part.nodes:
                return inf
            now = {name for name in self._possible_nodes(state, part) if self._rank(state, part, name) is not None}
            ends = sorted([0.0 if name in now else self._ends.get(name, 0.0) for name in nodes])
            latest = max(latest, ends[part.nodes - 1])
        return latest

    @cached_property
    def _ends(self) -> dict[str, float]:
        """By node: seconds until the last of its jobs reaches its time limit; infinite where one has none."""
        found: dict[str, float] = {}
        for job in self.snapshot.jobs.values():
            left = job.left_s(self.snapshot.at)
            for name in job.nodes:
                found[name] = max(found.get(name, left), left)
        return found
