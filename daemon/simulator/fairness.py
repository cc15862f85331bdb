"""How a simulation served those whose jobs it ran: how evenly their elastic jobs' GPUs were divided, how much longer a
job took than it would have alone on an equal part of the cluster, and what all that brought in progress.

Promise: pure. Limit: the division is looked at in LOOKS moments; nobody's shares but equal ones are known; who has
nothing but waiting jobs in a moment is not counted in it, for the queue is Slurm's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..reports.fairness import Presence, ShareOfGpus, Sharer, groups_of, looks
from .engine import Outcome
from .jobs import SimulatedJob
from .programs import BatchLadder, Program


@dataclass(frozen=True, slots=True)
class FairnessResult:
    """How those were served whose jobs they were. NaN where less than two had elastic jobs."""

    groups: int
    jain: float
    """Of their progress (`ShareOfGpus.jain`)."""
    jain_gpus: float
    rho_mean: float
    """Of the elastic jobs that ended: the time from submission to end, by the time alone on an equal part."""
    rho_worst: float
    progress: float
    """Until the last submission (where all came at once, to the end): what all running elastic jobs did in a second, in
    what one GPU does of each."""


def served(outcome: Outcome, by: str) -> FairnessResult:
    """Of one outcome, between those that `groups_of` names."""
    _, groups = groups_of([(job.trace.account, job.trace.user) for job in outcome.jobs], by)
    of = {job.trace.job_id: group for job, group in zip(outcome.jobs, groups, strict=True)}
    count = len({of[job.trace.job_id] for job in outcome.jobs if job.elastic})
    if count < 2:
        return FairnessResult(count, math.nan, math.nan, math.nan, math.nan, math.nan)
    sharers = _sharers(outcome, of)
    division, progress = _divided(outcome, sharers)
    rho = _rho(outcome, of, sharers)
    return FairnessResult(
        groups=count,
        jain=division.jain(),
        jain_gpus=division.jain_gpus(),
        rho_mean=math.fsum(rho) / len(rho) if rho else math.nan,
        rho_worst=max(rho, default=math.nan),
        progress=progress,
    )


def _sharers(outcome: Outcome, groups: Mapping[str, str]) -> dict[str, Sharer]:
    """The elastic jobs by id; jobs of one shape share their speeds."""
    known: dict[tuple[Program, tuple[tuple[int, int], ...], BatchLadder, bool], list[tuple[int, float]]] = {}
    found = {}
    for job in outcome.jobs:
        if not job.elastic:
            continue
        key = job.program, job.sizes, job.batches, job.quality
        if key not in known:
            known[key] = [(gpus, _speed(job, gpus, nodes)) for gpus, nodes in job.sizes]
        least = min(job.accepted[0], job.asked)
        found[job.trace.job_id] = Sharer(groups[job.trace.job_id], known[key], least, job.accepted[-1])
    return found


def _speed(job: SimulatedJob, gpus: int, nodes: int) -> float:
    """Samples of the work a second at the best batch, over all phases of the training: the harmonic mean of the best in
    each."""
    program = job.program
    offered = [(program.throughput(gpus, nodes, batch), batch) for batch in job.batches(gpus)]
    if not job.quality:
        return max(offered)[0]
    phases = [(phase + 0.5) / program.phases for phase in range(program.phases)]
    return len(phases) / sum(1.0 / max(speed * program.efficiency(b, done) for speed, b in offered) for done in phases)


def _divided(outcome: Outcome, sharers: Mapping[str, Sharer]) -> tuple[ShareOfGpus, float]:
    """(how GPUs were divided, progress in a second until the last job came)."""
    first, last = (end(job.trace.submit_s for job in outcome.jobs) for end in (min, max))
    changes = [(at, job_id, gpus) for at, job_id, gpus, _ in outcome.changes if job_id in sharers]
    division, done, seen = ShareOfGpus(), 0.0, 0
    for moment, held in looks(changes, first, outcome.end_s):
        running = [(sharers[job_id], gpus) for job_id, gpus in held.items()]
        if moment <= last or first == last:
            done, seen = done + sum(sharer.progress(gpus) for sharer, gpus in running), seen + 1
        division.add(running)
    return division, done / seen if seen else math.nan


def _rho(outcome: Outcome, groups: Mapping[str, str], sharers: Mapping[str, Sharer]) -> list[float]:
    """Of each elastic job that ended, by all jobs that did."""
    ended = [job for job in outcome.jobs if job.end_s >= 0]
    presence = Presence((groups[job.trace.job_id], job.trace.submit_s, job.end_s) for job in ended)
    return [
        sharers[job.trace.job_id].rho(job.work, job.trace.submit_s, job.end_s, outcome.settings.gpus, presence)
        for job in ended
        if job.elastic
    ]
