"""From what is known of each job to the best plan: for one pool, or for several under limits.

    maximise  sum_j w_j * u(s_j(k_j, b_j) * (1 - penalty_j))      penalty 0 for what a job already has

s_j is progress per second relative to one GPU of the job; `policies` says what progress and u are, `choices`
what each job may have and what a move there costs, `solver` finds the maximum, `targets` explains it.

Promise: pure and deterministic; a job that may not move keeps its size; none gets less than its smallest choice. A
cache changes no plan.
Limit: within one pool GPUs are equal; which nodes a job gets is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import fsum

from .choices import choices
from .job_view import JobView
from .policies import DEFAULT_POLICY, POLICIES
from .problem import Planner, Problem, checked
from .solver.crossing_limits import Limited, solve_limited
from .solver.knapsack import Solution, solve
from .solver.nested_caps import Cap
from .solver.table import Choice, Memo
from .targets import PoolPlan, explained


@dataclass
class Cache:
    """Choices made before, for callers that plan again and again over jobs that mostly did not change."""

    room: int = 1 << 12
    """Lists of choices that are kept though no plan asks for them: jobs come back to what they had."""
    made: dict[object, tuple[object, list[Choice]]] = field(default_factory=dict)
    """By what they were made from, which stands beside them."""
    old: dict[object, tuple[object, list[Choice]]] = field(default_factory=dict)
    """What was made before there was no more room; what is not asked for until that happens again is forgotten."""
    views: dict[int, tuple[str, JobView, list[Choice]]] = field(default_factory=dict)
    old_views: dict[int, tuple[str, JobView, list[Choice]]] = field(default_factory=dict)
    lists: Memo = field(default_factory=dict)
    """What the solver read of the lists of choices."""
    present: dict[tuple[int, str], float] = field(default_factory=dict)
    """The speedups at what jobs have, by the identity of the views that are kept, and policy."""

    def turn(self) -> None:
        """Begin another round of plans: forget, once there is no more room, what was not asked for since last time."""
        if max(len(self.made), len(self.views)) <= self.room:
            return
        kept = {id(found) for _, found in self.made.values()} | {id(found) for _, _, found in self.views.values()}
        self.old, self.made = self.made, {}
        self.old_views, self.views = self.views, {}
        self.lists = {key: made for key, made in self.lists.items() if key in kept}
        self.present = {key: speedup for key, speedup in self.present.items() if key[0] in self.old_views}


def plan(jobs: Sequence[JobView], capacity: int, policy: str = DEFAULT_POLICY, cache: Cache | None = None) -> PoolPlan:
    """The best plan for `capacity` GPUs. Raises InfeasiblePlan naming the jobs, PlanInputError for bad input.

    Of equal plans the one that gives more to the jobs that come first (the older ones) is preferred.
    """
    made = [choices_of(job, policy, cache) for job in jobs]
    if POLICIES[policy].planner is not None:
        return plan_pools([jobs], [capacity], (), policy, cache)[0]
    found = solve(made, capacity, [job.label for job in jobs], memo=cache.lists if cache else None)
    return explained(jobs, made, found, capacity, policy, cache.present if cache else None)


Solver = Callable[[Sequence[Sequence[JobView]], Sequence[int], Sequence[Cap], str, Cache | None], list[PoolPlan]]
"""Makes a plan for several pools at once, as `plan_pools` does."""


def plan_pools(
    pools: Sequence[Sequence[JobView]],
    capacities: Sequence[int],
    caps: Sequence[Cap],
    policy: str = DEFAULT_POLICY,
    cache: Cache | None = None,
) -> list[PoolPlan]:
    """The best plan for several pools of jobs under limits that may cross them; `caps` count through all pools.

    Of a policy with a planner, that planner's. Raises InfeasiblePlan naming the jobs, PlanInputError for bad input,
    PolicyFailed where a policy that is not ours gives no plan.
    """
    made = [[choices_of(job, policy, cache) for job in jobs] for jobs in pools]
    labels = [job.label for jobs in pools for job in jobs]
    found = solve_limited(made, capacities, caps, labels, cache.lists if cache else None)
    planner = POLICIES[policy].planner
    solutions = found.solutions
    if planner is not None and any(len(row) > 1 for rows in made for row in rows):
        solutions = _planned(planner, pools, made, capacities, caps, found)
    limits = [caps[c] for c in found.binding if caps[c].label]
    out, first = list[PoolPlan](), 0
    for g, (jobs, options, k) in enumerate(zip(pools, made, capacities, strict=True)):
        planned = explained(jobs, options, solutions[g], k, policy, cache.present if cache else None)
        if limits:
            targets = list(planned.targets)
            unlimited, limited = found.unlimited[g].choice, found.solutions[g].choice
            for j, (target, own, i, at) in enumerate(zip(targets, options, unlimited, limited, strict=True)):
                limit = next((cap.label for cap in limits if first + j in cap.members), "")
                if limit and own[i].gpus > own[at].gpus:
                    targets[j] = replace(target, limit=limit, unlimited=own[i].gpus)
            planned = replace(planned, targets=tuple(targets))
        out.append(planned)
        first += len(jobs)
    return out


def _planned(
    planner: Planner,
    pools: Sequence[Sequence[JobView]],
    made: Sequence[Sequence[Sequence[Choice]]],
    capacities: Sequence[int],
    caps: Sequence[Cap],
    found: Limited,
) -> list[Solution]:
    """What a planner picks in the place of the exact plan; prices and bounds stay those of the exact one."""
    jobs = [job for own in pools for job in own]
    problem = Problem(
        labels=[job.label for job in jobs],
        choices=[row for rows in made for row in rows],
        present=[job.current_gpus for job in jobs],
        pools=[g for g, own in enumerate(pools) for _ in own],
        capacities=capacities,
        caps=caps,
        exact=[i for solution in found.solutions for i in solution.choice],
        weights=[job.weight for job in jobs],
    )
    chosen, out, first = checked(problem, planner(problem)), list[Solution](), 0
    for rows, exact in zip(made, found.solutions, strict=True):
        choice = tuple(chosen[first : first + len(rows)])
        value = fsum(row[i].value for row, i in zip(rows, choice, strict=True))
        out.append(replace(exact, choice=choice, value=value, gap=max(0.0, exact.value + exact.gap - value)))
        first += len(rows)
    return out


def value_of_staying(job: JobView, policy: str, cache: Cache | None = None) -> float:
    """The term of a job that has one choice."""
    (choice,) = choices_of(job, policy, cache)
    return choice.value


def choices_of(job: JobView, policy: str, cache: Cache | None = None) -> list[Choice]:
    """The choices of one job, with their terms in the objective."""
    if cache is None:
        return choices(job, policy)
    held = cache.views.get(id(job)) or cache.old_views.get(id(job))
    if held is not None and held[0] == policy:
        cache.views[id(job)] = held
        return held[2]
    key = (
        policy, job.model, job.choices, job.batches, job.current_gpus, job.current_batch, job.reference_gpus,
        job.reference_batch, job.weight, job.pause_s, job.horizon_s, job.frozen, job.sigma, job.noise_scale,
        job.restart_sizes, job.restart_pause_s, job.quality,
    )  # fmt: skip
    known = cache.made.get(key)
    if known is None:
        known = cache.old.get(key)
        if known is None:
            known = key, choices(job, policy)
        cache.made[known[0]] = known
    cache.views[id(job)] = policy, job, known[1]  # the view is kept, so that its identity stays its own
    return known[1]
