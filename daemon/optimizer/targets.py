"""A solved allocation in words: what each job is to have, its gain, why, and what else it might have had.

Promise: one target for each job, in the jobs' order, with one reason.
Limit: a reason says what the allocation as a whole did (took, gave, made room), not which job took whose GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_elastic.protocol.records import record

from .job_view import JobView, nodes_at
from .policies import POLICIES
from .solver.knapsack import Solution
from .solver.table import Choice, Columns
from .speedups import speedups_of


@record(frozen=True, slots=True)
class Target:
    """What one job is to have."""

    label: str
    gpus: int
    batch: int
    value: float
    """Its term in the objective."""
    progress_change: float
    """Relative change of progress against the current allocation; for a job that starts, its speedup."""
    reason: str
    """A code of protocol/text/reasons.py, or "start" / "keep_frozen"."""
    offered: Columns
    """All its sizes."""
    price: float = 0.0
    """The plan's price of a GPU."""
    measured: bool = True
    """Whether this size was measured; False: predicted."""
    limit: str = ""
    """The limit that keeps it from more; empty when none does."""
    unlimited: int = 0
    """GPUs it would have without that limit; 0: no limit."""
    exact: int | None = None
    """GPUs that the plan with the largest sum of values gives it, where a planner has decided; None: this is that plan.
    """

    @property
    def alternatives(self) -> tuple[tuple[int, int, float], ...]:
        """The next best sizes at the plan's price of a GPU: (GPUs, batch, value)."""
        others = sorted((o for o in self.offered if o.gpus != self.gpus), key=lambda o: self.price * o.gpus - o.value)
        return tuple((o.gpus, o.batch, o.value) for o in others[:3])


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Targets in the order of the jobs, their value, and what no plan can exceed."""

    targets: tuple[Target, ...]
    value: float
    bound: float
    gain: float = 0.0
    """Against leaving everyone where it is, in relative gains of one job's progress, where somebody has asked."""
    held_back: bool = False
    """The gain was below the least one worth moving for: everyone stays, with a batch that is better there."""


def explained(
    jobs: Sequence[JobView], options: Sequence[Columns], solution: Solution, capacity: int, policy: str
) -> PoolPlan:
    """Targets with their reasons from a solved allocation."""
    chosen = [own[i] for own, i in zip(options, solution.choice, strict=True)]
    present = [job.current_gpus for job in jobs]
    moves = [(now, choice.gpus) for now, choice in zip(present, chosen, strict=True) if choice.gpus > now]
    used, grown = sum(present), sum([then - now for now, then in moves])
    starts = any(now == 0 for now, _ in moves)
    shrink = "shrink_capacity" if used > capacity else "shrink_for_elastic" if starts else "shrink_share"
    grow = "grow_idle" if grown <= capacity - used else "grow_share"
    targets = []
    for job, choice, own in zip(jobs, chosen, options, strict=True):
        targets.append(
            Target(
                label=job.label,
                gpus=choice.gpus,
                batch=choice.batch,
                value=choice.value,
                progress_change=_progress_change(job, choice, own.present, policy),
                reason=_reason(job, choice, grow, shrink),
                offered=own,
                price=solution.price,
                measured=job.model is not None and choice.gpus in job.model.sizes_seen,
            )
        )
    return PoolPlan(tuple(targets), solution.value, solution.bound)


def _progress_change(job: JobView, choice: Choice, present: float, policy: str) -> float:
    if job.current_gpus == 0:
        return choice.speedup
    if (choice.gpus, choice.batch) == (job.current_gpus, job.current_batch):
        return 0.0
    if math.isnan(present):  # it has to move, or what it has depends on the choice
        nodes, batch = nodes_at(job, job.current_gpus), job.current_batch if job.current_batch > 0 else choice.batch
        (present,) = speedups_of(job, POLICIES[policy], [(job.current_gpus, nodes, batch)])
    return choice.speedup / present - 1.0


def _reason(job: JobView, choice: Choice, grow: str, shrink: str) -> str:
    if job.current_gpus == 0:
        return "start" if choice.gpus else "waiting"
    if choice.gpus > job.current_gpus:
        return grow
    if choice.gpus < job.current_gpus:
        return shrink
    if job.frozen:
        return "keep_frozen"
    if job.model is None:
        return "keep_unmeasured"
    return "batch" if choice.batch != job.current_batch else "keep_best"
