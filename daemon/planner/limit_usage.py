"""What is used of Slurm's limits at the beginning of a plan. Pure.

Promise: what a resize under way is going to take is counted as used, and what it gives up as free, both once.
Limit: as of the snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from slurm_elastic.protocol.codes import ResizeState

from ..capacity.slurm_limits import LimitUsage, amounts_of, as_companion, charged, of_shape
from ..slurm.model import Snapshot
from ..slurm.site import Site
from .running.job import RunningJob


def limit_usage(
    site: Site, snapshot: Snapshot, running_jobs: Collection[RunningJob], companion_qos: str = ""
) -> LimitUsage:
    """The usage of the site's limits; of a site without limits, nothing. `companion_qos`: the setting."""
    if not site.limits:
        return LimitUsage(site)
    usage = LimitUsage(site, snapshot.jobs.values(), snapshot.at)
    for running in running_jobs:
        for job_id, gone in _loose(running).items():
            job = snapshot.jobs[job_id]
            usage.add(charged(job), usage.part_of(job, gone), sign=-1)
        base = running.job.base
        for amounts in _coming(running):
            usage.add(charged(as_companion(base, companion_qos)), usage.beside(base, amounts))
    return usage


def holds(running: RunningJob, usage: LimitUsage) -> Mapping[str, float]:
    """What an elastic job has with all its pieces, and will have, in the names of limits."""
    if len(running.job.held) == 1 and running.state.resize is None:
        return usage.of(running.job.held[0].job)
    total: Counter[str] = Counter()
    base = running.job.base
    coming = (usage.beside(base, amounts) for amounts in _coming(running))
    for amounts in (*(usage.of(held.job) for held in running.job.held), *coming):
        total.update(amounts)
    return total


def _loose(running: RunningJob) -> dict[int, Counter[str]]:
    """What is about to be released, by Slurm job."""
    found: dict[int, Counter[str]] = {}
    for held in running.job.held:
        job, here = held.job, [amount for unit, amount in running.loose.items() if unit[0] == held.job.job_id]
        for amount in here:
            found.setdefault(job.job_id, Counter()).update(amounts_of(amount, 1, job.gpu_type))
        if here and len(here) == len(job.nodes):
            found[job.job_id].update(jobs=1, submits=1)
    return found


def _coming(running: RunningJob) -> Iterator[dict[str, float]]:
    """What a resize under way will add and Slurm does not hold for it yet."""
    resize = running.state.resize
    if resize is None or resize.state == ResizeState.RUNNING or resize.requeues:
        return
    granted = {node for held in running.job.held if held.resize == resize.id for node in held.piece.nodes}
    queued = {node for job, tag in running.job.queued if tag.resize == resize.id for node in job.required_nodes}
    for shape in resize.add:
        if granted.isdisjoint(shape.node_list):
            yield {**of_shape(shape), "submits": float(queued.isdisjoint(shape.node_list))}
