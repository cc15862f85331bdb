"""From what is known of each job to the best plan: for one pool, or for several under limits.

    maximise  sum_j w_j * u(s_j(k_j, b_j) * (1 - penalty_j))      penalty 0 for what a job already has

s_j is progress per second relative to one GPU of the job; `policies` says what progress and u are, `choices`
what each job may have and what a move there costs, `solver` finds the maximum, `targets` explains it.

Promise: pure and deterministic; a job that may not move keeps its size; none gets less than its smallest choice. Tables
change no plan.
Limit: within one pool GPUs are equal; which nodes a job gets is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from math import fsum

from ..derived.table import Derived, one_by_one
from .choices import choices
from .grid import Grids, grid_inputs, grid_of
from .job_view import JobView, check
from .planner_problem import problem_of
from .policies import DEFAULT_POLICY, POLICIES, policy_named
from .problem import Layout, checked
from .solver.crossing_limits import solve_limited
from .solver.knapsack import Solution, value_at
from .solver.nested_caps import Cap
from .solver.table import Columns
from .targets import PoolPlan, explained


class ChoiceTables:
    """The choices made before, for callers that plan again and again over jobs that mostly did not change."""

    def __init__(self, room: int = 1 << 12) -> None:
        """room: lists of choices that are kept though no plan asks for them: jobs come back to what they had."""
        self.grids: Grids = Derived(one_by_one(grid_of), grid_inputs, room=1 << 10)
        self._alike = Derived[object, _Asked, Columns](self._made, _made_from, room)
        """Of jobs that are alike but for their weights."""
        self._own = Derived[JobView, _Asked, Columns](self._weighted)

    def turn(self) -> None:
        """Begin another round of plans."""
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
