"""From what is known of each job to the best plan: for one pool, or for several under limits.

    maximise  sum_j w_j * u(s_j(k_j, b_j) * (1 - penalty_j))      penalty 0 for what a job already has

s_j is progress per second relative to one GPU of the job; `policies` says what progress and u are, `choices`
what each job may have and what a move there costs, `solver` finds the maximum, `targets` explains it.

Promise: pure and deterministic; a job that may not move keeps its size; none gets less than its smallest choice. A
cache changes no plan.
Limit: within one pool GPUs are equal; which nodes a job gets is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import fsum

from .choices import choices
from .job_view import JobView, check
from .planner_problem import problem_of
from .policies import DEFAULT_POLICY, POLICIES
from .problem import Layout, checked
from .solver.crossing_limits import solve_limited
from .solver.knapsack import Solution, value_at
from .solver.nested_caps import Cap
from .solver.table import Columns
from .targets import PoolPlan, explained


@dataclass
class Cache:
    """Choices made before, for callers that plan again and again over jobs that mostly did not change."""

    room: int = 1 << 12
    """Lists of choices that are kept though no plan asks for them: jobs come back to what they had."""
    made: dict[object, tuple[object, JobView, Columns]] = field(default_factory=dict)
    """By what they were made from, which stands beside them."""
    old: dict[object, tuple[object, JobView, Columns]] = field(default_factory=dict)
    """What was made before there was no more room; what is not asked for until that happens again is forgotten."""
    views: dict[int, tuple[str, JobView, Columns]] = field(default_factory=dict)
    old_views: dict[int, tuple[str, JobView, Columns]] = field(default_factory=dict)

    def turn(self) -> None:
        """Begin another round of plans: forget, once there is no more room, what was not asked for since last time."""
        if len(self.made) > self.room:
            self.old, self.made = self.made, {}
        if len(self.views) > self.room:
            self.old_views, self.views = self.views, {}


def plan_pools(
    pools: Sequence[Sequence[JobView]],
    capacities: Sequence[int],
    caps: Sequence[Cap],
    policy: str = DEFAULT_POLICY,
    cache: Cache | None = None,
    layout: Layout | None = None,
) -> list[PoolPlan]:
    """The best plan for several pools of jobs under limits that may cross them; `caps` count through all pools. Equal
    plans: the one that gives more to the jobs that come first (the older ones).

    Of a policy with a planner, that planner's; `layout` is for it. Raises InfeasiblePlan naming the jobs,
    PlanInputError for bad input, PolicyFailed where a policy that is not ours gives no plan.
    """
    every = iter(choices_of([job for jobs in pools for job in jobs], policy, cache))
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


def values_of_staying(jobs: Sequence[JobView], policy: str, cache: Cache | None = None) -> list[float]:
    """The terms of jobs that have one choice each."""
    return [value_at(own, 0) for own in choices_of(jobs, policy, cache)]


def choices_of(jobs: Sequence[JobView], policy: str, cache: Cache | None = None) -> list[Columns]:
    """The choices of each job, with their terms in the objective: those that are not known yet made all at once."""
    if cache is None:
        return choices(jobs, policy)
    found, lacking = list[Columns | None](), dict[object, list[int]]()
    for j, job in enumerate(jobs):
        held = cache.views.get(id(job)) or cache.old_views.get(id(job))
        if held is None or held[0] != policy:
            check(job)  # here: of jobs alike but for their weights only one is looked at below
            key = _made_from(job, policy)
            known = cache.made.get(key) or cache.old.get(key)
            if known is None:
                lacking.setdefault(key, []).append(j)
                found.append(None)
                continue
            cache.made[known[0]] = known
            held = policy, job, known[2].at_weight(job.weight)
        cache.views[id(job)] = held  # the view is kept, so that its identity stays its own
        found.append(held[2])
    made = choices([jobs[alike[0]] for alike in lacking.values()], policy)
    for (key, alike), own in zip(lacking.items(), made, strict=True):
        cache.made[key] = key, jobs[alike[0]], own
        for j in alike:
            found[j] = weighted = own.at_weight(jobs[j].weight)
            cache.views[id(jobs[j])] = policy, jobs[j], weighted
    return [own for own in found if own is not None]


def _made_from(job: JobView, policy: str) -> object:
    """What a job's choices depend on, its weight apart. Sizes by their identity: jobs alike share them, and they are
    long."""
    asked = job.reference_gpus if POLICIES[policy].fixed_size else 0
    return (
        policy, job.model, id(job.choices), job.batches, job.current_gpus, job.current_batch, asked,
        job.reference_batch, job.pause_s, job.horizon_s, job.frozen, job.sigma, job.noise_scale,
        job.restart_sizes, job.restart_pause_s, job.batch_pause_s, job.quality, job.least_per_gpu,
    )  # fmt: skip
