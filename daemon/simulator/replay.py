"""A trace replayed under one policy, or under the discipline that the policies are compared with.

Promise: the same trace, settings and seed give the same outcome, with every assumption in words.
Limit: one policy at a time; what the simulation leaves out is said in `engine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ..optimizer.policies import POLICIES
from .backfill import Backfill
from .elastic import Elastic
from .engine import Outcome, Watch, unwatched
from .jobs import SimulatedJob, SimulationSettings, prepare
from .metrics import BACKFILL, RECORDED
from .programs import BatchLadder, Program, rigid
from .traces.formats import TraceJob


def simulate(
    trace: Sequence[TraceJob],
    programs: dict[str, Program],
    policy: str,
    settings: SimulationSettings,
    declared: str = "",
    watch: Watch = unwatched,
) -> tuple[Outcome, list[str]]:
    """(outcome, assumptions) of one policy over a trace; `watch` is told how far it is."""
    if policy not in (*POLICIES, BACKFILL):
        raise ValueError(policy)
    jobs, assumptions = prepare(trace, programs, settings, declared)
    if policy in (BACKFILL, "static"):
        return Backfill(jobs, policy, settings).run(watch), assumptions
    return Elastic(jobs, policy, settings).run(watch), assumptions


def recorded(trace: Sequence[TraceJob], settings: SimulationSettings) -> Outcome | None:
    """What the trace itself says came of it; None where it does not say for every job when it started."""
    if any(row.wait_s < 0 or not row.duration_s for row in trace):
        return None
    jobs, changes, program, batches = (
        list[SimulatedJob](),
        list[tuple[float, str, int, int]](),
        rigid(),
        BatchLadder(1, 1),
    )
    for row in trace:
        job = SimulatedJob(row, program, ((row.gpus, 1),), batches, row.duration_s, False, False, row.gpus)
        job.start_s = row.submit_s + row.wait_s
        job.end_s = job.start_s + row.duration_s
        job.gpu_seconds = row.gpus * row.duration_s
        jobs.append(job)
        changes += [(job.start_s, row.job_id, row.gpus, row.batch), (job.end_s, row.job_id, 0, 0)]
    # What one gives back, the next takes at the same moment.
    changes.sort(key=lambda change: (change[0], change[2] > 0))
    return Outcome(RECORDED, settings, jobs, changes, 0, len(changes), max(job.end_s for job in jobs))


def misfit(trace: Sequence[TraceJob], settings: SimulationSettings) -> str:
    """Why the jobs look like those of another cluster, in a sentence; empty: they do not."""
    known, gpus = [row for row in trace if row.wait_s >= 0], settings.gpus
    starts = [(row.submit_s + row.wait_s, row.gpus) for row in known]
    # sacct knows whole seconds: what one gives back another has taken at once.
    ends = [(row.submit_s + row.wait_s + max(row.duration_s - 2.0, row.duration_s / 2), -row.gpus) for row in known]
    most = max(accumulate(held for _, held in sorted(starts + ends)), default=0)
    larger = sum(row.gpus > gpus for row in trace)
    if larger:
        why = f"{larger} of the jobs held more GPUs"
    elif most > gpus or (len(known) == len(trace) and 2 * most < gpus):
        why = f"the jobs held {most} GPUs at once at most, as recorded"
    else:
        return ""
    return f"THIS CLUSTER, OF {gpus} GPUs, DOES NOT LOOK LIKE THAT OF THE JOBS: {why} (is --cluster right?)"
