"""Which idle nodes sleep, as a service: what it asks of Slurm, what it says, and how it is taken back.

Promise: each sleep and each wake is an event before Slurm is asked; after a restart the same record leads to the same
decisions. Only idle nodes with GPUs that Slurm would put to sleep by itself (SuspendExcNodes, SuspendExcParts), and
that no elastic job is given, are put to sleep; one that did not boot twice is left alone. What it put to sleep is woken
when it does not act any more; a job that needs such a node wakes it by itself, whoever watches.
Limit: a job that starts on a node in the second in which it is to sleep keeps it; the node takes no other job and
sleeps when it has ended. Nodes that others put to sleep stay theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from slurm_elastic.protocol.answers.power import NodePower, Power
from slurm_elastic.protocol.codes import EventKind

from ...actions.action import NODE, QUEUE, Action, PowerDown, PowerUp, Subject
from ...capacity.ledger import Pool, pool_of, pools
from ...slurm.model import POWERS_DOWN, POWERS_UP, Node
from ...slurm.site import Site
from ..base import ACT, OFF, Note, Observation, Proposal, Row, Service
from .decide import Counts, Limits, change, replay
from .forecast import DAY, STEP_S
from .record import Record

BUSY, OFFERED, IDLE, ASLEEP, WAKING, AWAY = "busy", "offered", "idle", "asleep", "waking", "away"
GRACE_S = 120.0
"""After a question to Slurm until a node's state shows it."""
MOST_FAILURES = 2
COULD_START = ("", "Resources", "Priority")
"""Reasons of waiting jobs that more nodes would start."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """The nodes of a pool as they are now, and what follows."""

    name: str
    states: Mapping[str, str]
    counts: Counts
    expected: int
    moves: Sequence[PowerDown | PowerUp]

    @property
    def needed(self) -> int:
        return self.counts.busy + self.counts.wanted

    def words(self, acts: bool) -> str:
        asleep = sum(1 for state in self.states.values() if state == ASLEEP)
        down = sum(1 for one in self.moves if isinstance(one, PowerDown))
        moves = f"{down} {'go' if acts else 'would go'} to sleep"
        if self.moves and not down:
            moves = f"{len(self.moves)} {'are' if acts else 'would be'} woken"
        return (
            f"{self.name}: {self.needed} of {self.counts.nodes} nodes needed, {self.expected} expected within three"
            f" hours; {self.counts.free} idle, {asleep} asleep, {moves}"
        )


class NodePowers(Service):
    """Who sleeps."""

    name = "power"

    def __init__(self) -> None:
        self._history: Record | None = None
        """None: to be read from the events."""
        self._undone = False
        """Nothing stands that would have to be taken back."""
        self._step = 0
        self._most: dict[str, int] = {}
        """The most nodes that each pool needed at once in this step."""
        self._said: Note | None = None
        """Of the last step."""
        self._slept: set[str] = set()
        """Nodes that were seen asleep since they were put to sleep."""
        self._waits: dict[int, float] = {}
        """Since when jobs wait for their nodes to boot, by job id."""
        self._seen: Observation | None = None
        """The last, while it is not off."""

    def needs(self, site: Site) -> str:
        if not site.power_saving:
            return "Slurm puts no node to sleep (SuspendProgram, ResumeProgram and SuspendTime say how)"
        return "" if site.administers else "the daemon's user is neither SlurmUser nor an Administrator in Slurm"

    def propose(self, seen: Observation) -> Proposal:
        found = self._pools(seen)
        rows = list(self._booted(seen))
        if self._step and int(seen.now // STEP_S) != self._step:
            acts = seen.settings.mode == ACT
            needed = {pool.name: max(pool.needed, self._most.get(pool.name, 0)) for pool in found}
            text = "; ".join(pool.words(acts) for pool in found) or "no node has GPUs"
            rows.append(Note(Subject(QUEUE), text, {"step": self._step, "needed": needed}))
        elif self._said is not None:
            rows.append(self._said)
        return Proposal(tuple(move for pool in found for move in pool.moves), tuple(rows))

    def explain(self, row: Row) -> str:
        return row.text if isinstance(row, Note) else ""

    def settled(self, seen: Observation, proposal: Proposal, done: Sequence[Action]) -> None:
        history, self._seen = self._known(seen), seen
        for row in proposal.rows:
            if isinstance(row, Note) and row is not self._said:
                history.add(seen.now, row.kind, {"service": self.name, **row.detail})
                self._said = row if "step" in row.detail else self._said
        for move in done:
            if isinstance(move, PowerDown | PowerUp):
                history.add(seen.now, move.kind, asdict(move))
        self._undone = self._undone and not done
        step, before = int(seen.now // STEP_S), self._most
        now = {pool.name: pool.needed for pool in self._pools(seen)}
        self._most = {name: max(n, before.get(name, 0) if step == self._step else 0) for name, n in now.items()}
        self._step = step
        self._slept = {name for name in history.asleep if name in self._slept or _flags(seen, name) & POWERS_DOWN}
        ours = history.asleep.keys() | history.waking.keys()
        boot = [job for job in seen.snapshot.jobs.values() if job.active and not ours.isdisjoint(job.nodes)]
        self._waits = {job.job_id: self._waits.get(job.job_id, seen.now) for job in boot}
        if seen.settings.mode == ACT and len(done) < len(proposal.actions):
            self._history = None  # Slurm may have been asked and not have answered: the events say so

    def undo(self, seen: Observation) -> list[Action]:
        """Until none of the nodes that the record has asleep is."""
        mode = self.mode(seen.settings, seen.site)
        if mode == OFF:
            self._seen = self._said = None
        if self._undone:
            return []
        self._history = None
        asleep = {name: _flags(seen, name) for name in Record(seen.facts.power_events()).asleep}
        self._undone = not any(flags & POWERS_DOWN for flags in asleep.values())
        # One that is still on its way to sleep cannot be woken yet.
        ready = (name for name, flags in asleep.items() if "POWERED_DOWN" in flags)
        return [PowerUp(name, f"power is in mode {mode}") for name in ready]

    def report(self) -> Power | None:
        """As of the last round; None: it is off, or was not asked yet."""
        seen = self._seen
        if seen is None:
            return None
        history, found, watts = self._known(seen), self._pools(seen), seen.settings.power_watts
        hours = history.asleep_h(seen.now)
        would = []
        for pool in found:
            if len(steps := history.demand[pool.name].steps) >= DAY:
                told = replay(steps, pool.counts.nodes, _limits(seen))
                would.append(
                    f"{pool.name}: in {told.steps / DAY:.1f} days as they were {told.asleep:.0%} of"
                    f" {told.idle_h:.0f} idle node-hours asleep, {told.wake_ups} wake-ups,"
                    f" {told.short / told.steps:.1%} of the time short of nodes"
                )
        return Power(
            at=seen.now,
            mode=self.mode(seen.settings, seen.site),
            lacks=self.needs(seen.site),
            since=history.first,
            asleep_h=hours,
            kwh=hours * watts / 1000 if watts else None,
            wake_ups=len(history.wake_ups),
            woken=history.woken,
            waited=len(history.waits),
            mean_wait_s=fmean(history.waits) if history.waits else None,
            longest_wait_s=max(history.waits, default=None),
            would=tuple(would),
            nodes=tuple(
                NodePower(
                    node=name,
                    pool=pool.name,
                    state=state,
                    since=history.asleep.get(name, history.waking.get(name)),
                    failures=history.failures.get(name, 0),
                    why=_alone(seen, history, seen.snapshot.nodes[name]) if state == IDLE else "",
                )
                for pool in found
                for name, state in pool.states.items()
            ),
        )

    def _known(self, seen: Observation) -> Record:
        if self._history is None:
            self._history = Record(seen.facts.power_events())
        return self._history

    def _pools(self, seen: Observation) -> list[PoolState]:
        history, every = self._known(seen), pools(seen.snapshot)
        used = {kind: history.last_hour(kind, seen.now) for kind in (EventKind.POWER_DOWN, EventKind.POWER_UP)}
        waiting = dict.fromkeys((pool.name for pool in every), 0)
        for job in seen.snapshot.jobs.values():
            if job.pending and job.gpus and job.reason in COULD_START and (pool := pool_of(every, job)) is not None:
                each = max(seen.snapshot.nodes[name].gpus for name in pool.nodes)
                waiting[pool.name] += max(job.num_nodes, -(-job.gpus // each))
        found = []
        for pool in every:
            found.append(self._pool(seen, history, pool, waiting[pool.name], used))
            for move in found[-1].moves:
                used[move.kind] += 1
        return found

    def _pool(
        self, seen: Observation, history: Record, pool: Pool, waiting: int, used: Mapping[EventKind, int]
    ) -> PoolState:
        nodes, ledger, limits = seen.snapshot.nodes, seen.free(), _limits(seen)
        held = {name for job in seen.snapshot.jobs.values() if job.active for name in job.nodes}
        states = {}
        for name in (name for name in nodes if name in pool.nodes):
            node, since = nodes[name], history.asleep.get(name, 0.0)
            if name in held or node.gpus_used or node.cpus_used:
                states[name] = BUSY
            elif node.flags & POWERS_UP:
                states[name] = WAKING
            elif node.flags & POWERS_DOWN or seen.now - since < GRACE_S:
                states[name] = ASLEEP if since else AWAY
            elif not node.schedulable:
                states[name] = AWAY
            else:
                states[name] = OFFERED if ledger.total(name).gpus < node.gpus else IDLE
        has = {state: [name for name, one in states.items() if one == state] for state in states.values()}
        ripe = [
            name
            for name in sorted(has.get(ASLEEP, ()), key=history.asleep.__getitem__)
            if "POWERED_DOWN" in nodes[name].flags and seen.now - history.asleep[name] >= limits.min_sleep_s
        ]
        busy, total = len(has.get(BUSY, ())) + len(has.get(OFFERED, ())), len(states) - len(has.get(AWAY, ()))
        free, waking = len(has.get(IDLE, ())), len(has.get(WAKING, ()))
        counts = Counts(busy, min(waiting, total - busy), free, waking, len(ripe), total)
        step, needed = int(seen.now // STEP_S), counts.busy + counts.wanted
        demand = history.demand[pool.name]
        expected = max(demand.expected(step, needed), demand.recent(step), self._most.get(pool.name, 0))
        count = change(counts, expected, limits, used[EventKind.POWER_DOWN], used[EventKind.POWER_UP])
        why = f"{needed} of {total} nodes of {pool.name} are needed, {expected} expected within three hours"
        may_sleep = [name for name in has.get(IDLE, ()) if not _alone(seen, history, nodes[name])]
        moves: list[PowerDown | PowerUp] = [PowerUp(name, why) for name in ripe[: max(0, count)]]
        moves += [PowerDown(name, why) for name in may_sleep[::-1][: max(0, -count)]]
        return PoolState(pool.name, states, counts, expected, moves)

    def _booted(self, seen: Observation) -> Iterator[Note]:
        """Of each node that has come back since the last round, or has not."""
        history, told = self._known(seen), set[int]()
        for name in history.asleep.keys() | history.waking.keys():
            flags = _flags(seen, name)
            failed = "DOWN" in flags
            asked = history.asleep.get(name)
            settling = asked is not None and name not in self._slept and seen.now - asked < GRACE_S
            if not flags or (not failed and (flags & (POWERS_DOWN | POWERS_UP) or settling)):
                continue
            ready = [
                job.job_id
                for job in seen.snapshot.jobs.values()
                if name in job.nodes and not any(_flags(seen, other) & POWERS_UP for other in job.nodes)
            ]
            waits = [round(seen.now - self._waits[one]) for one in ready if one in self._waits and one not in told]
            told.update(ready)
            text = "did not boot" if failed else "is awake"
            jobs = f"; a job waited {max(waits)} s for it" if waits and not failed else ""
            detail = {"node": name, "booted": int(not failed), "waits": [] if failed else waits}
            yield Note(Subject(NODE, name), f"node {name} {text}{jobs}", detail)


def _limits(seen: Observation) -> Limits:
    settings = seen.settings
    return Limits(settings.power_buffer, settings.power_per_hour, settings.power_min_sleep_s)


def _flags(seen: Observation, name: str) -> frozenset[str]:
    """None: Slurm does not list it."""
    node = seen.snapshot.nodes.get(name)
    return frozenset() if node is None else node.flags


def _alone(seen: Observation, history: Record, node: Node) -> str:
    """Why this node is never put to sleep; empty: it may be."""
    if node.name in seen.site.suspend_excluded:
        return "in SuspendExcNodes"
    if not seen.site.suspend_excluded_partitions.isdisjoint(node.partitions):
        return "in a partition of SuspendExcParts"
    failed = history.failures.get(node.name, 0)
    return f"did not boot {failed} times" if failed >= MOST_FAILURES else ""
