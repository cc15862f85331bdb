"""What Slurm's own limits (GrpTRES, MaxTRES per user, account and job, MaxJobs) leave for elastic jobs, in GPUs. Pure.

Every kind of limit is turned into GPUs: what is left of it, over what one more GPU of the job that needs least of it
takes. What a site lets one job have, an elastic job may have with all its pieces together, though Slurm sees a job in
each of them. Limit: nobody is asked to give back what Slurm has granted; a limit lowered afterwards only keeps jobs
from more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import floor, inf

from ..slurm.model import Job, Snapshot
from ..slurm.site import Site, SlurmLimit
from .roster import ElasticJob, Roster


@dataclass(frozen=True, slots=True)
class GpuLimit:
    """The running elastic jobs `jobs` may together hold so many GPUs more than they do."""

    label: str
    more: int
    jobs: frozenset[int]


def gpu_limits(site: Site, snapshot: Snapshot, roster: Roster) -> list[GpuLimit]:
    """The limits that concern running elastic jobs."""
    if not site.limits:
        return []
    running = [job for job in snapshot.jobs.values() if job.active]
    elastic = [job for job in roster.elastic.values() if job.running and job.base.gpus]
    found = []
    for limit in site.limits:
        if limit.each:
            found += [own for job in elastic if _concerns(site, limit, job.base) for own in _of_each(limit, job)]
            continue
        inside = [job for job in elastic if _concerns(site, limit, job.base)]
        if not inside:
            continue
        used = [job for job in running if _concerns(site, limit, job)]
        more, kind = _left(limit, used, inside)
        if more < inf:
            label = f"Slurm's limit {kind} ({_whose(limit)}) leaves its elastic jobs"
            found.append(GpuLimit(label, floor(more), frozenset(job.job_id for job in inside)))
    return found


def _of_each(limit: SlurmLimit, job: ElasticJob) -> list[GpuLimit]:
    more, kind = _left(limit, [held.job for held in job.held], [job])
    label = f"Slurm's limit {kind} of each job ({_whose(limit)}) leaves it"
    return [GpuLimit(label, floor(more), frozenset({job.job_id}))] if more < inf else []


def _left(limit: SlurmLimit, used: list[Job], inside: Iterable[ElasticJob]) -> tuple[float, str]:
    """(GPUs that may be added, the limit that says so)."""
    jobs = list(inside)
    best = (inf, "")
    for name, most in limit.tres.items():
        share = min((_per_gpu(job.base, name) for job in jobs), default=0.0)
        if share > 0:
            left = max(0.0, most - sum(_uses(job, name) for job in used))
            best = min(best, (left / share, f"{name}={most:g}"))
    if limit.jobs is not None and len(used) >= limit.jobs:
        best = min(best, (0.0, f"jobs={limit.jobs}"))  # a companion is a job as well
    return best


def _concerns(site: Site, limit: SlurmLimit, job: Job) -> bool:
    return (
        (not limit.account or site.within(job.account, limit.account))
        and (limit.uid is None or limit.uid == job.uid)
        and (not limit.qos or limit.qos == job.qos)
    )


def _uses(job: Job, name: str) -> float:
    nodes = len(job.nodes)
    known: Mapping[str, float] = {"cpu": job.cpus, "mem": job.mem_mb * nodes, "node": nodes, "gres/gpu": job.gpus}
    if name.startswith("gres/gpu:"):
        return job.gpus if name == f"gres/gpu:{job.gpu_type}" else 0.0
    return known.get(name, 0.0)


def _per_gpu(job: Job, name: str) -> float:
    return _uses(job, name) / max(1, job.gpus)


def _whose(limit: SlurmLimit) -> str:
    parts = [f"account {limit.account}"] if limit.account else []
    parts += [f"QOS {limit.qos}"] if limit.qos else []
    if limit.uid is not None:
        parts.append(f"user {limit.uid}")
    return ", ".join(parts)
