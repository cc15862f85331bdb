"""From what is known of each job to the best plan: for one pool, or for several under limits.

    maximise  sum_j w_j * u(s_j(k_j, b_j) * (1 - penalty_j))      penalty 0 for what a job already has

s_j is progress per second relative to one GPU of the job; `policies` says what progress and u are, `choices` what each
job may have and what a move there costs, `solver` finds the maximum. A policy's planner may pick another plan.

Promise: pure and deterministic; a job that may not move keeps its size; none gets less than its smallest choice. Tables
change no plan. One target for each job, in the jobs' order, with one reason: what the allocation as a whole did (took,
gave, made room), not which job took whose GPUs.
Limit: within one pool GPUs are equal; which nodes a job gets is decided elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import fsum

import numpy as np

from slurm_elastic.protocol.records import record

from ..derived.table import Derived, one_by_one
from .choices import Grids, choices, grid_inputs, grid_of
from .job_view import JobView, check, nodes_at
from .models.step_time import Configurations
from .policies import DEFAULT_POLICY, POLICIES, Policy, policy_named
from .problem import Layout, Problem, checked
from .solver.knapsack import Solution, value_at
from .solver.limits import Cap, solve_limited
from .solver.table import Choice, Columns
from .speedups import speedups, speedups_of


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
    """A code of protocol/codes.py, or "start" / "keep_frozen"."""
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


UNKNOWN_SPREAD = 0.1
"""Share of a job's progress that one node more is taken to cost where its model says nothing of it."""
MOST_SPREAD = 0.5


def problem_of(
    pools: Sequence[Sequence[JobView]],
    made: Sequence[Sequence[Columns]],
    capacities: Sequence[int],
    caps: Sequence[Cap],
    exact: Sequence[int],
    policy: Policy,
) -> Problem:
    """What a planner is given of jobs with these choices, beside the layout. `exact`: the exact plan."""
    jobs, rows = [job for own in pools for job in own], [row for own in made for row in own]
    nodes = [_nodes(job, row) for job, row in zip(jobs, rows, strict=True)]
    return Problem(
        labels=[job.label for job in jobs],
        choices=rows,
        present=[job.current_gpus for job in jobs],
        pools=[g for g, own in enumerate(pools) for _ in own],
        capacities=capacities,
        caps=caps,
        exact=exact,
        weights=[job.weight for job in jobs],
        nodes=nodes,
        spread=_spreads(jobs, rows, exact, nodes, policy),
    )


def _nodes(job: JobView, row: Columns) -> list[int]:
    known, sizes = dict(job.choices), row.numbers[0].tolist()
    return [known.get(gpus) or nodes_at(job, int(gpus)) if gpus else 0 for gpus in sizes]


def _spreads(
    jobs: Sequence[JobView],
    rows: Sequence[Columns],
    exact: Sequence[int],
    nodes: Sequence[Sequence[int]],
    policy: Policy,
) -> list[float]:
    """Of each job the share of its progress that it would lose at its size of the exact plan on one node more."""
    gpus, _, batch, _ = np.array([row.numbers[:, i] for row, i in zip(rows, exact, strict=True)]).reshape(-1, 4).T
    on = np.array([own[i] for own, i in zip(nodes, exact, strict=True)])
    modelled = np.array([job.model is not None for job in jobs], dtype=bool)
    known = np.flatnonzero(modelled & (on > 0) & (on < gpus))
    found = np.full(len(jobs), UNKNOWN_SPREAD)
    if len(known):
        twice, here = known.repeat(2), on[known].repeat(2)
        here[1::2] += 1
        ones = np.ones(len(twice), dtype=np.int64)
        at = Configurations(gpus[twice], here.astype(float), batch[None, twice], ones, 2 * np.arange(len(known) + 1))
        speeds = speedups([jobs[j] for j in known.tolist()], policy, at)[0]
        found[known] = np.clip(1.0 - speeds[1::2] / speeds[::2], 0.0, MOST_SPREAD)
    return [float(one) for one in found]


class ChoiceTables:
    """The choices made before, for callers that plan again and again over jobs that mostly did not change."""

    def __init__(self, room: int = 1 << 12) -> None:
        """room: lists of choices that are kept though no plan asks for them: jobs come back to what they had."""
        self.grids: Grids = Derived(one_by_one(grid_of), grid_inputs, room=1 << 10)
        self._alike = Derived[object, _Asked, Columns](self._made, _made_from, room)
        """Of jobs that are alike but for their weights."""
        self._own = Derived[JobView, _Asked, Columns](self._weighted)

    def turn(self) -> None:
        for table in (self.grids, self._alike, self._own):
            table.turn()

    def of(self, jobs: Sequence[JobView], policy: str) -> list[Columns]:
        """The choices of each job, with their terms in the objective: those that are not known yet made all at once."""
        found = self._own.of({job: (job, policy) for job in jobs})
        return list(found.values()) if len(found) == len(jobs) else [found[job] for job in jobs]

    def _weighted(self, asked: Sequence[_Asked]) -> list[Columns]:
        for job, _ in asked:
            check(job)  # here: of jobs alike but for their weights only one is looked at below
        alike = self._alike.each(asked)
        return [own.at_weight(job.weight) for own, (job, _) in zip(alike, asked, strict=True)]

    def _made(self, asked: Sequence[_Asked]) -> list[Columns]:
        return choices([job for job, _ in asked], asked[0][1], self.grids)


_Asked = tuple[JobView, str]
"""A job and a policy's name."""


def plan_pools(
    pools: Sequence[Sequence[JobView]],
    capacities: Sequence[int],
    caps: Sequence[Cap],
    policy: str = DEFAULT_POLICY,
    tables: ChoiceTables | None = None,
    layout: Layout | None = None,
) -> list[PoolPlan]:
    """The best plan for several pools of jobs under limits that may cross them; `caps` count through all pools. Equal
    plans: the one that gives more to the jobs that come first (the older ones).

    Of a policy with a planner, that planner's; `layout` is for it. Raises InfeasiblePlan naming the jobs,
    PlanInputError for bad input, PolicyFailed where a policy that is not ours gives no plan.
    """
    every = iter((tables or ChoiceTables()).of([job for jobs in pools for job in jobs], policy))
    made = [list(islice(every, len(jobs))) for jobs in pools]
    found = solve_limited(made, capacities, caps, [job.label for jobs in pools for job in jobs])
    planner = POLICIES[policy].planner
    solutions = found.solutions
    if planner is not None and any(len(row) > 1 for rows in made for row in rows):
        exact_plan = [i for one in found.solutions for i in one.choice]
        problem = problem_of(pools, made, capacities, caps, exact_plan, POLICIES[policy])
        problem = replace(problem, layout=layout) if layout else problem
        solutions = refined(found.solutions, made, checked(problem, planner(problem)))
    limits = [caps[c] for c in found.binding if caps[c].label]
    out, first = list[PoolPlan](), 0
    for g, (jobs, options, k) in enumerate(zip(pools, made, capacities, strict=True)):
        planned = explained(jobs, options, solutions[g], k, policy)
        if limits:
            targets = list(planned.targets)
            unlimited, limited = found.unlimited[g].choice, found.solutions[g].choice
            for j, (target, own, i, at) in enumerate(zip(targets, options, unlimited, limited, strict=True)):
                limit = next((cap.label for cap in limits if first + j in cap.members), "")
                if limit and own[i].gpus > own[at].gpus:
                    targets[j] = replace(target, limit=limit, unlimited=own[i].gpus)
            planned = replace(planned, targets=tuple(targets))
        if solutions is not found.solutions:
            exact = (own[i].gpus for own, i in zip(options, found.solutions[g].choice, strict=True))
            planned = replace(
                planned, targets=tuple(replace(t, exact=e) for t, e in zip(planned.targets, exact, strict=True))
            )
        out.append(planned)
        first += len(jobs)
    return out


def refined(exact: Sequence[Solution], made: Sequence[Sequence[Columns]], chosen: Sequence[int]) -> list[Solution]:
    """A planner's choices as solutions of the pools; prices and bounds stay those of the exact plan."""
    out, first = list[Solution](), 0
    for rows, best in zip(made, exact, strict=True):
        choice = tuple(chosen[first : first + len(rows)])
        value = fsum([value_at(row, i) for row, i in zip(rows, choice, strict=True)])
        out.append(replace(best, choice=choice, value=value, gap=max(0.0, best.value + best.gap - value)))
        first += len(rows)
    return out


def values_of_staying(jobs: Sequence[JobView], policy: str, tables: ChoiceTables) -> list[float]:
    """The terms of jobs that have one choice each."""
    return [value_at(own, 0) for own in tables.of(jobs, policy)]


def _made_from(asked: _Asked) -> object:
    """What a job's choices depend on, its weight apart."""
    job, policy = asked
    reference_gpus = job.reference_gpus if policy_named(policy).fixed_size else 0
    return (
        policy, job.model, job.choices, job.batches, job.current_gpus, job.current_batch, reference_gpus,
        job.reference_batch, job.pause_s, job.horizon_s, job.frozen, job.sigma, job.noise_scale,
        job.restart_sizes, job.restart_pause_s, job.batch_pause_s, job.quality, job.least_per_gpu,
    )  # fmt: skip
