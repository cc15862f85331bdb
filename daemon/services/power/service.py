"""Which idle nodes sleep, as a service: what it asks of Slurm, what it says, and how it is taken back.

Promise: each sleep and each wake is an event before Slurm is asked; after a restart the same record leads to the same
decisions. Only idle nodes with GPUs that Slurm would put to sleep by itself (SuspendExcNodes, SuspendExcParts), and
that no elastic job is given, are put to sleep; one that did not boot twice is left alone. What it put to sleep is woken
when it does not act any more; a job that needs such a node wakes it by itself, whoever watches.
Limit: a job that starts on a node in the second in which it is to sleep keeps it; the node takes no other job and
sleeps when it has ended. Nodes that others put to sleep stay theirs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from slurm_elastic.protocol.answers.site import NodePower
from slurm_elastic.protocol.answers.site import Power as Report

from ...actions.action import NODE, QUEUE, Action, Power, Subject
from ...capacity.ledger import Ledger, Pool, pool_of, pools
from ...slurm.model import POWERS_DOWN, POWERS_UP, Node
from ...slurm.site import Site
from ..base import ACT, OFF, Note, Observation, Proposal, Row, Service
from .decide import DAY, MIN_SLEEP_S, STEP_S, Counts, Limits, Record, change, replay

BUSY, OFFERED, IDLE, ASLEEP, WAKING, AWAY = "busy", "offered", "idle", "asleep", "waking", "away"
MOST_FAILURES = 2
COULD_START = ("", "Resources", "Priority")
"""Reasons of waiting jobs that more nodes would start."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """The nodes of a pool as they are now, and what follows."""

    name: str
    states: Mapping[str, str]
    counts: Counts
    moves: Sequence[Power]
    why: str

    @property
    def needed(self) -> int:
        return self.counts.busy + self.counts.wanted


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
        self._waits: dict[int, float] = {}
        """Since when jobs wait for their nodes to boot, by job id."""
        self._seen: Observation | None = None
        """The last, while it is not off."""

    def needs(self, site: Site) -> str:
        if not site.power_saving:
            return "Slurm puts no node to sleep (SuspendProgram, ResumeProgram and SuspendTime say how)"
        return "" if site.administers else "the daemon's user is neither SlurmUser nor an Administrator in Slurm"

    def propose(self, seen: Observation) -> Proposal:
        found, rows = self._pools(seen), list(self._booted(seen))
        moves = tuple(move for pool in found for move in pool.moves)
        if self._step and int(seen.now // STEP_S) != self._step:
            needed = {pool.name: max(pool.needed, self._most.get(pool.name, 0)) for pool in found}
            would = f"{'to do' if seen.settings.mode == ACT else 'would do'}: "
            would += ", ".join(f"{sum(one.awake == up for one in moves)} {w}" for up, w in ((0, "sleep"), (1, "wake")))
            text = "; ".join((*(pool.why for pool in found), would))
            rows.append(Note(Subject(QUEUE), text, {"step": self._step, "needed": needed}))
        elif self._said is not None:
            rows.append(self._said)
        return Proposal(moves, tuple(rows))

    def explain(self, row: Row) -> str:
        return row.text if isinstance(row, Note) else ""

    def settled(self, seen: Observation, proposal: Proposal, done: Sequence[Action]) -> None:
        history, self._seen = self._known(seen), seen
        for row in proposal.rows:
            if isinstance(row, Note) and row is not self._said:
                history.add(seen.now, row.kind, {"service": self.name, **row.detail})
                self._said = row if "step" in row.detail else self._said
        for move in done:
            if isinstance(move, Power):
                history.add(seen.now, move.kind, asdict(move))
        self._undone = self._undone and not done
        step, before = int(seen.now // STEP_S), self._most
        now = {pool.name: pool.needed for pool in self._pools(seen)}
        self._most = {name: max(n, before.get(name, 0) if step == self._step else 0) for name, n in now.items()}
        self._step = step
        ours = history.asleep.keys() | history.waking.keys()
        boot = [job for job in seen.snapshot.jobs.values() if job.active and not ours.isdisjoint(job.nodes)]
        self._waits = {job.job_id: self._waits.get(job.job_id, seen.now) for job in boot}
        if seen.settings.mode == ACT and len(done) < len(proposal.actions):
            self._history = None  # Slurm may have been asked and not have answered: the events say so

    def undo(self, seen: Observation) -> list[Action]:
        """Until none of the nodes that the record has asleep is; not where it is told to act and cannot for a while."""
        mode = self.mode(seen.settings, seen.site)
        if mode == OFF:
            self._seen = self._said = None
        if self._undone or seen.settings.of_services.get(self.name) == ACT:
            return []
        self._history = None
        asleep = {name: _flags(seen, name) for name in Record(seen.facts.power_events()).asleep}
        self._undone = not any(flags & POWERS_DOWN for flags in asleep.values())
        # One that is still on its way to sleep cannot be woken yet.
        ready = (name for name, flags in asleep.items() if "POWERED_DOWN" in flags)
        return [Power(name, True, f"power is in mode {mode}") for name in ready]

    def report(self) -> Report | None:
        """As of the last round; None: it is off, or was not asked yet."""
        seen = self._seen
        if seen is None:
            return None
        history, found, watts = self._known(seen), self._pools(seen), seen.settings.power_watts
        hours, mode, waits = history.asleep_h(seen.now), self.mode(seen.settings, seen.site), history.waits
        kwh = hours * watts / 1000 if watts else None
        said = [] if mode == ACT else ["Nothing of this is done: the service power only reviews."]
        said += [f"It could not act: {lacks}."] if (lacks := self.needs(seen.site)) else []
        energy = "" if kwh is None else f", {kwh:.1f} kWh"
        said.append(
            f"{hours:.1f} node-hours asleep{energy}, {len(history.wake_ups)} wake-ups of {history.woken} nodes."
        )
        if waits:
            said.append(f"{len(waits)} jobs waited for a boot: {fmean(waits):.0f} s, {max(waits):.0f} s at most.")
        for pool in found:
            if len(steps := history.demand[pool.name].steps) >= DAY:
                on = replay(steps, pool.counts.nodes, _limits(seen))
                said.append(
                    f"These settings on {pool.name}, {on.steps / DAY:.1f} days as they were: {on.asleep:.0%}"
                    f" of idle hours asleep, {on.wake_ups} wake-ups, {on.short / on.steps:.1%} of it short of nodes."
                )
        nodes = tuple(
            NodePower(
                node=name,
                pool=pool.name,
                state=state,
                since=history.asleep.get(name, history.waking.get(name)),
                why=_alone(seen, history, seen.snapshot.nodes[name]) if state == IDLE else "",
            )
            for pool in found
            for name, state in pool.states.items()
        )
        told: dict[str, Any] = {"wake_ups": len(history.wake_ups), "woken": history.woken, "waits_s": tuple(waits)}
        return Report(at=seen.now, mode=mode, asleep_h=hours, kwh=kwh, said=tuple(said), nodes=nodes, **told)

    def _known(self, seen: Observation) -> Record:
        if self._history is None:
            self._history = Record(seen.facts.power_events())
        return self._history

    def _pools(self, seen: Observation) -> list[PoolState]:
        history, every = self._known(seen), pools(seen.snapshot)
        used = {awake: history.last_hour(awake, seen.now) for awake in (False, True)}
        waiting = dict.fromkeys((pool.name for pool in every), 0)
        for job in seen.snapshot.jobs.values():
            if job.pending and job.gpus and job.reason in COULD_START and (pool := pool_of(every, job)) is not None:
                each = max(seen.snapshot.nodes[name].gpus for name in pool.nodes)
                waiting[pool.name] += max(job.num_nodes, -(-job.gpus // each))
        held, free, found = (job.nodes for job in seen.snapshot.jobs.values() if job.active), seen.free(), []
        busy = set[str]().union(*held)
        of = {node.name: _state(node, node.name in busy, history, free) for node in seen.snapshot.nodes.values()}
        for pool in every:
            states = {name: state for name, state in of.items() if name in pool.nodes}
            found.append(self._pool(seen, pool, states, waiting[pool.name], used))
            for move in found[-1].moves:
                used[move.awake] += 1
        return found

    def _pool(
        self, seen: Observation, pool: Pool, states: Mapping[str, str], waiting: int, used: Mapping[bool, int]
    ) -> PoolState:
        history, nodes = self._known(seen), seen.snapshot.nodes
        of = {state: [n for n, one in states.items() if one == state] for state in (IDLE, ASLEEP, WAKING, AWAY)}
        since, total = history.asleep, len(states) - len(of[AWAY])
        ripe = [
            name
            for name in sorted(of[ASLEEP], key=since.__getitem__)
            if "POWERED_DOWN" in nodes[name].flags and seen.now - since[name] >= MIN_SLEEP_S
        ]
        busy = total - len(of[IDLE]) - len(of[ASLEEP]) - len(of[WAKING])
        counts = Counts(busy, min(waiting, total - busy), len(of[IDLE]), len(of[WAKING]), len(ripe), total)
        step, needed, demand = int(seen.now // STEP_S), busy + counts.wanted, history.demand[pool.name]
        expected = max(demand.expected(step, needed), demand.recent(step), self._most.get(pool.name, 0))
        count = change(counts, expected, _limits(seen), used[False], used[True])
        why = f"{needed} of {total} nodes of {pool.name} needed, {expected} expected within three hours"
        why += f", {len(of[IDLE])} idle, {len(of[ASLEEP])} asleep"
        may_sleep = [name for name in of[IDLE] if not _alone(seen, history, nodes[name])]
        moves = [Power(name, True, why) for name in ripe[: max(0, count)]]
        moves += [Power(name, False, why) for name in may_sleep[::-1][: max(0, -count)]]
        return PoolState(pool.name, states, counts, moves, why)

    def _booted(self, seen: Observation) -> Iterator[Note]:
        """Of each node that has come back since the last round, or has not."""
        history, told = self._known(seen), set[int]()
        for name in history.asleep.keys() | history.waking.keys():
            flags, failed = _flags(seen, name), "DOWN" in _flags(seen, name)
            if not flags or (not failed and flags & (POWERS_DOWN | POWERS_UP)):
                continue
            ready = {
                job.job_id
                for job in seen.snapshot.jobs.values()
                if name in job.nodes and not any(_flags(seen, other) & POWERS_UP for other in job.nodes)
            }
            waits = [] if failed else [round(seen.now - self._waits[one]) for one in ready - told if one in self._waits]
            told |= ready
            jobs = f"; a job waited {max(waits)} s for it" if waits else ""
            text = f"node {name} {'did not boot' if failed else 'is awake'}{jobs}"
            yield Note(Subject(NODE, name), text, {"node": name, "booted": int(not failed), "waits": waits})


def _limits(seen: Observation) -> Limits:
    return Limits(seen.settings.power_buffer, seen.settings.power_per_hour)


def _flags(seen: Observation, name: str) -> frozenset[str]:
    """Of its state; of a node that Slurm does not list none."""
    node = seen.snapshot.nodes.get(name)
    return frozenset() if node is None else node.flags


def _state(node: Node, held: bool, history: Record, free: Ledger) -> str:
    if held or node.gpus_used or node.cpus_used:
        return BUSY
    if node.flags & POWERS_UP:
        return WAKING
    if node.flags & POWERS_DOWN and node.name in history.asleep:
        return ASLEEP
    if not node.schedulable:
        return AWAY
    return OFFERED if free.total(node.name).gpus < node.gpus else IDLE


def _alone(seen: Observation, history: Record, node: Node) -> str:
    """Why this node is never put to sleep; empty: it may be."""
    if not seen.site.never_sleep.isdisjoint((node.name, *node.partitions)):
        return "in SuspendExcNodes or SuspendExcParts"
    failed = history.failures[node.name]
    return f"did not boot {failed} times" if failed >= MOST_FAILURES else ""
