"""The optimizer's part of a plan: every pool's GPUs divided among its movable jobs, as target_sizes with their reasons.

Promise: target_sizes keep within the pools' capacities and the limits; pools that no plan can be made for stay as they
are, and the others get theirs all the same.
Limit: an target_size says how many GPUs, not which; whether nodes can be found for it is decided with the moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from slurm_elastic.protocol.text.reasons import Reason

from ..capacity.ledger import Pool
from ..capacity.shrink_options import Unit
from ..mechanisms import registry
from ..optimizer.errors import InfeasiblePlan, PlanInputError, PolicyFailed
from ..optimizer.policies import DEFAULT_POLICY, POLICIES
from ..optimizer.targets import Target
from .context import RoundContext
from .fixed_targets import failed_lately
from .free_capacity import layout
from .moves import Move, TargetSize, nearest_batch
from .pools.answer import PoolAnswer, share
from .pools.candidate import Candidate
from .pools.kept_member import KeptMember
from .pools.size_exploration import explore
from .running.job import RunningJob
from .running.sizes import ascending_sizes
from .running.time_left import horizon
from .user_limits import reach


@dataclass(frozen=True, slots=True)
class Group:
    """The movable jobs of a pool, and the GPUs that they share."""

    pool: Pool
    members: list[Candidate]
    capacity: int


def candidates_of(context: RoundContext, pool: Pool, movable: list[RunningJob], idle: int) -> list[Candidate]:
    """The movable jobs of a pool as the optimizer takes them, the oldest first."""
    nodes, known, settings = context.inputs.snapshot.nodes, context.inputs.memory.members, context.inputs.settings
    node_gpus = max((nodes[name].gpus for name in pool.nodes), default=1)
    everything = idle + sum(running.gpus for running in movable)
    everything = 1 << everything.bit_length()  # the same sizes from round to round; no plan gives more than there is
    at, gives, found = context.inputs.snapshot.at, context.gives, list[Candidate]()
    for running in sorted(movable, key=_age):
        job_id, forced = running.job_id, context.forced(running) if gives else _NO_UNITS
        about = everything, node_gpus, context.weights.factors.get(job_id, 1.0), horizon(running, settings, at)
        kept = known.get(job_id)
        if kept is None or not kept.holds(running, forced, *about):
            kept = KeptMember.made(kept, running, forced, settings, *about)
            if kept is None:
                continue
            known[job_id] = kept
        found.append(kept.member)
    return found


_age = attrgetter("age")
_NO_UNITS = frozenset[Unit]()


class PoolAllocation:
    """What comes of dividing once: `share` gives the target_sizes and fills the rest in."""

    def __init__(self, context: RoundContext) -> None:
        self.context, self.inputs, self.limits = context, context.inputs, context.limits
        self.value = self.bound = 0.0
        self.trouble: list[str] = []
        """Pools for which no plan could be made, with the reason."""
        self.fell_back: str | None = None
        """Why the site's policy did not plan and the built-in one did; empty: it planned; None: it was not asked."""
        self._plans = POLICIES[self.inputs.settings.policy].planner is not None
        self.answers: dict[int, tuple[Candidate, PoolAnswer, Target]] = {}
        """What the optimizer said of each job."""
        self.unchanged: dict[int, Move] = {}
        """Of the jobs that stay as they are: they have no target_size."""

    def allocate(self, groups: list[Group], nodes: Mapping[int, frozenset[str]]) -> list[TargetSize]:
        """The optimizer's answer for all pools; one that it refuses is left as it is, for the reason given."""
        target_sizes: list[TargetSize] = []
        try:
            shared = self._solve(groups, nodes)
        except (InfeasiblePlan, PlanInputError):
            good = []
            for group in groups:
                try:
                    self._solve([group], nodes)
                except (InfeasiblePlan, PlanInputError) as error:
                    self.trouble.append(f"{group.pool.name}: {error}")
                    target_sizes += [self._at_rest(m) for m in group.members]
                else:
                    good.append(group)
            groups, shared = good, self._solve(good, nodes)
        for group, answer in zip(groups, shared, strict=True):
            for m, target in zip(group.members, answer.targets, strict=True) if self.limits.limits else ():
                self.limits.give(m.running.job_id, max(target.gpus, m.running.gpus))
            target_sizes += self._target_sizes(group.members, group.capacity, answer)
        return target_sizes

    def _solve(self, groups: list[Group], nodes: Mapping[int, frozenset[str]]) -> list[PoolAnswer]:
        ledger = self.context.room.ledger
        caps, first = self.limits.caps([m for group in groups for m in group.members]), 0
        for group in groups:
            for cap in reach(group.members, nodes, group.pool.nodes, ledger):
                caps.append(replace(cap, members=frozenset(first + i for i in cap.members)))
            first += len(group.members)
        pools, capacities, inputs = [g.members for g in groups], [g.capacity for g in groups], self.inputs
        try:
            laid = layout([(g.pool, g.members) for g in groups], ledger, inputs) if self._plans else None
            answers = share(pools, capacities, caps, inputs.settings, inputs.memory.columns, laid)
            self.fell_back = "" if groups and not self.fell_back else self.fell_back
            return answers
        except PolicyFailed as error:
            self.fell_back = f"policy {inputs.settings.policy} {error}"
            built_in = replace(inputs.settings, policy=DEFAULT_POLICY)
            return share(pools, capacities, caps, built_in, inputs.memory.columns)

    def _target_sizes(self, members: list[Candidate], capacity: int, shared: PoolAnswer) -> list[TargetSize]:
        """The optimizer's answer for one pool as target_sizes, sizes worth a try on what stays idle among them."""
        self.value += shared.value
        self.bound += shared.bound
        target_sizes = []
        inputs = self.inputs
        idle = capacity - sum(target.gpus for target in shared.targets)
        taken = any(target.gpus > m.running.gpus for m, target in zip(members, shared.targets, strict=True))
        for m, target in zip(members, shared.targets, strict=True):
            self.answers[m.running.job_id] = (m, shared, target)
            stays = self._stays(m, target)
            free = min(idle, self.context.more(m.running, idle)) if idle > 0 and stays else 0
            tried = explore(m, free, idle, inputs.settings, inputs.now, inputs.snapshot.at) if free else None
            if tried is not None:
                idle -= tried[0] - m.running.gpus
                self.limits.give(m.running.job_id, tried[0])
                target_sizes.append(TargetSize(m.running, tried[0], tried[1], Reason.GROW_IDLE, 0.0))
                continue
            if stays and not target.limit:
                why = self._why_kept(m.running)
                self.unchanged[m.running.job_id] = m.stays(
                    self._best_awake(m, idle) if why is Reason.KEEP_BEST else why
                )
                continue
            reason = self._reason(m, target.gpus, target.batch, target.reason)
            if reason is Reason.KEEP_BEST:
                reason = self._best_awake(m, idle)
            if target.limit:
                self.context.limiting_reasons[m.running.job_id] = (
                    f"{target.limit} in all: without that it would have {target.unlimited}"
                )
                if reason in (Reason.KEEP_BEST, Reason.KEEP_ASLEEP):
                    reason = Reason.KEEP_LIMIT
                elif not m.forced and target.gpus < m.running.gpus <= target.unlimited:
                    reason = Reason.SHRINK_LIMIT
            if reason is Reason.SHRINK_SHARE and not taken:
                reason = Reason.SHRINK_NO_GAIN
            elif reason is Reason.SHRINK_CAPACITY and any(other.forced for other in members):
                # The room is made by another job, which this one makes up for.
                reason = self.context.why_forced(next(other.running for other in members if other.forced))
            target_sizes.append(
                TargetSize(m.running, target.gpus, target.batch, reason, target.progress_change, m.forced)
            )
        return target_sizes

    def _best_awake(self, m: Candidate, idle: int) -> Reason:
        """Why a job stays that nothing keeps from moving: it may be that the GPUs which it could gain are asleep."""
        running = m.running
        if idle > 0 and m.view.least_per_gpu and m.view.choices[-1][0] > running.gpus:
            self.context.limiting_reasons[running.job_id] = (
                f"{idle} idle GPUs may go to sleep: it grows only where each of them brings"
                f" {m.view.least_per_gpu:g} of what a GPU brings it at its best size (awake_gain)"
            )
        asleep = self.context.asleep.get(running.job_id, 0)
        if not asleep or idle > 0 or not (running.may_grow and running.can_add):
            return Reason.KEEP_BEST
        return Reason.KEEP_ASLEEP if ascending_sizes(running.job)[-1] > running.gpus else Reason.KEEP_BEST

    @staticmethod
    def _stays(m: Candidate, target: Target) -> bool:
        return not m.forced and target.gpus == m.running.gpus and target.batch == m.running.batch

    def _at_rest(self, m: Candidate) -> TargetSize:
        """Without a plan nobody moves, but for waiting jobs."""
        reason = self.context.why_forced(m.running) if m.forced else Reason.KEEP_BEST
        batch = nearest_batch(m.running.job.request.batches(m.rest), m.running.batch) if m.forced else m.running.batch
        return TargetSize(m.running, m.rest, batch, reason, 0.0, m.forced)

    def _reason(self, m: Candidate, gpus: int, batch: int, said: str) -> Reason:
        if m.forced and gpus <= m.running.gpus:
            return self.context.why_forced(m.running)
        if gpus == m.running.gpus:
            if batch != m.running.batch:
                return Reason.BATCH
            return self._why_kept(m.running)
        try:
            return Reason(said)
        except ValueError:
            return Reason.GROW_SHARE if gpus > m.running.gpus else Reason.SHRINK_SHARE

    def _why_kept(self, running: RunningJob) -> Reason:
        if running.state.given_nothing:
            return running.state.given_nothing
        if running.until is None or self.inputs.now >= running.until:
            needless = running.can_add or running.gpus >= running.job.request.max_gpus
            why = "" if needless else registry.no_addition(running, running.site)
            if not why:
                return Reason.KEEP_BEST
            self.context.limiting_reasons[running.job_id] = why
            return Reason.KEEP_REQUEST
        return Reason.KEEP_FAILED if failed_lately(running) else Reason.KEEP_COOLDOWN
