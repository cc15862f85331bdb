"""How a simulation served those whose jobs it ran: how evenly their elastic jobs' GPUs were divided, how much longer a
job took than it would have alone on an equal part of the cluster, and what all that brought in progress.

Promise: pure. Limit: the division is looked at in LOOKS moments; nobody's shares but equal ones are known; who has
nothing but waiting jobs in a moment is not counted in it, for the queue is Slurm's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..reports.fairness import Presence, at_size, equal_division, jain
from .engine import Outcome
from .jobs import SimulatedJob
from .programs import BatchLadder, Program

LOOKS = 1000
"""Moments between the first submission and the last end."""


@dataclass(frozen=True, slots=True)
class Served:
    """How those were served whose jobs they were. NaN where less than two had elastic jobs."""

    groups: int
    jain: float
    """Jain's index over the groups of the progress that its running jobs made, by that of an equal division of the same
    GPUs: among groups, then among the jobs of each; their least and most GPUs kept, and what one cannot use given to
    the others."""
    jain_gpus: float
    """The same of GPUs."""
    rho_mean: float
    """Of the elastic jobs that ended: the time from submission to end, by the time alone on an equal part."""
    rho_worst: float
    progress: float
    """Until the last submission (where all came at once, to the end): what all running elastic jobs did in a second, in
    what one GPU does of each."""


def groups_of(jobs: Sequence[SimulatedJob], by: str) -> list[str]:
    """Whose each job is: accounts, or users with `by` = "user" or where there are no two accounts."""
    accounts = [job.trace.account for job in jobs]
    return [job.trace.user for job in jobs] if by == "user" or len(set(accounts)) < 2 else accounts


def served(outcome: Outcome, by: str) -> Served:
    """Of one outcome, between those that `groups_of` names."""
    groups = groups_of(outcome.jobs, by)
    elastic = [(job, group) for job, group in zip(outcome.jobs, groups, strict=True) if job.elastic]
    count = len({group for _, group in elastic})
    if count < 2:
        return Served(count, math.nan, math.nan, math.nan, math.nan, math.nan)
    speeds = _Speeds()
    sums, progress = _divided(outcome, elastic, speeds)
    rho = _rho(outcome, groups, speeds)
    return Served(
        groups=count,
        jain=jain([each.progress / each.equal_progress for each in sums]),
        jain_gpus=jain([each.gpus / each.equal_gpus for each in sums]),
        rho_mean=math.fsum(rho) / len(rho) if rho else math.nan,
        rho_worst=max(rho, default=math.nan),
        progress=progress,
    )


class _Speeds:
    """The speeds of jobs at their sizes, at the best batch; jobs of one shape share them."""

    def __init__(self) -> None:
        self._known: dict[tuple[Program, tuple[tuple[int, int], ...], BatchLadder, bool], list[tuple[int, float]]] = {}

    def __call__(self, job: SimulatedJob) -> list[tuple[int, float]]:
        """(GPUs, samples of the work a second) in ascending order."""
        key = job.program, job.sizes, job.batches, job.quality
        if key not in self._known:
            self._known[key] = [(gpus, _speed(job, gpus, nodes)) for gpus, nodes in job.sizes]
        return self._known[key]

    def progress(self, job: SimulatedJob, gpus: float) -> float:
        """Of one second, in what one GPU does."""
        table = self(job)
        return at_size(table, gpus) / at_size(table, 1)


def _speed(job: SimulatedJob, gpus: int, nodes: int) -> float:
    """Over all phases of the training: the harmonic mean of the best in each."""
    program = job.program
    offered = [(program.throughput(gpus, nodes, batch), batch) for batch in job.batches(gpus)]
    if not job.quality:
        return max(offered)[0]
    phases = [(phase + 0.5) / program.phases for phase in range(program.phases)]
    return len(phases) / sum(1.0 / max(speed * program.efficiency(b, done) for speed, b in offered) for done in phases)


@dataclass
class _Sum:
    """Over the moments looked at: what a group had, and what an equal division would have given it."""

    gpus: float = 0.0
    equal_gpus: float = 0.0
    progress: float = 0.0
    equal_progress: float = 0.0


_Running = dict[str, dict[str, tuple[SimulatedJob, int]]]
"""By group and job id: the running elastic jobs and the GPUs that they hold."""


def _divided(
    outcome: Outcome, elastic: Sequence[tuple[SimulatedJob, str]], speeds: _Speeds
) -> tuple[list[_Sum], float]:
    """(the sums of each group that was ever there with another, progress in a second until the last job came)."""
    jobs = {job.trace.job_id: (job, group) for job, group in elastic}
    first, last = (end(job.trace.submit_s for job in outcome.jobs) for end in (min, max))
    running: _Running = {group: {} for _, group in elastic}
    sums, at, done, seen = {group: _Sum() for group in running}, 0, 0.0, 0
    for look in range(LOOKS):
        moment = first + (outcome.end_s - first) * (look + 0.5) / LOOKS
        while at < len(outcome.changes) and outcome.changes[at][0] <= moment:
            _, job_id, gpus, _ = outcome.changes[at]
            at += 1
            if job_id in jobs:
                job, group = jobs[job_id]
                running[group].pop(job_id, None)
                if gpus:
                    running[group][job_id] = job, gpus
        if moment <= last or first == last:
            held = [entry for of_group in running.values() for entry in of_group.values()]
            done, seen = done + sum(speeds.progress(job, gpus) for job, gpus in held), seen + 1
        _look(running, sums, speeds)
    return [each for each in sums.values() if each.equal_gpus], done / seen if seen else math.nan


def _look(running: _Running, sums: dict[str, _Sum], speeds: _Speeds) -> None:
    """Add what the groups have in this moment, if there are two."""
    present = {group: list(of_group.values()) for group, of_group in running.items() if of_group}
    if len(present) < 2:
        return
    bounds = {group: [_bounds(job) for job, _ in held] for group, held in present.items()}
    whole = [(sum(low for low, _ in each), sum(high for _, high in each)) for each in bounds.values()]
    equal = equal_division(sum(gpus for held in present.values() for _, gpus in held), whole)
    for (group, held), part in zip(present.items(), equal, strict=True):
        own = sums[group]
        own.gpus += sum(gpus for _, gpus in held)
        own.equal_gpus += part
        own.progress += sum(speeds.progress(job, gpus) for job, gpus in held)
        each = zip(held, equal_division(part, bounds[group]), strict=True)
        own.equal_progress += sum(speeds.progress(job, gpus) for (job, _), gpus in each)


def _bounds(job: SimulatedJob) -> tuple[int, int]:
    return min(job.accepted[0], job.asked), job.accepted[-1]


def _rho(outcome: Outcome, groups: Sequence[str], speeds: _Speeds) -> list[float]:
    """Of each elastic job that ended. Its part: the cluster's GPUs, by the groups and by its own group's jobs that were
    there with it, in the mean over its time."""
    ended = [(job, group) for job, group in zip(outcome.jobs, groups, strict=True) if job.end_s >= 0]
    presence, found = Presence((group, job.trace.submit_s, job.end_s) for job, group in ended), []
    for job, group in ended:
        if job.elastic:
            others, own = presence.mean(group, job.trace.submit_s, job.end_s)
            alone = job.work / at_size(speeds(job), outcome.settings.gpus / (others * own))
            found.append((job.end_s - job.trace.submit_s) / alone)
    return found
