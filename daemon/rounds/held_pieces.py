"""What a job is charged for: of the pieces that its supervisor names, those that Slurm says the job holds. Pure.

Promise: no more GPUs than Slurm gave the job itself, its components and its companions, whatever is named how often.
Limit: the supervisor may name less than the job holds; Slurm's own accounting has the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from slurm_elastic.protocol.messages import Piece

from ..capacity.roster import companion_tag
from ..slurm.model import Job


def held_pieces(base: Job, pieces: Iterable[Piece], jobs: Mapping[int, Job]) -> tuple[Piece, ...]:
    """The pieces, cut to what they are of `base` in Slurm's list of jobs; without those that are nothing there."""
    left: dict[int, int] = {}
    found = []
    for piece in pieces:
        job = jobs.get(piece.slurm_job_id)
        if job is None or not _belongs(job, base):
            continue
        nodes = tuple(dict.fromkeys(node for node in piece.nodes if node in job.nodes))
        if not nodes:
            continue
        unspoken = left.get(job.job_id, job.gpus)
        held = replace(piece, nodes=nodes, gpus_per_node=min(piece.gpus_per_node, unspoken // len(nodes)))
        left[job.job_id] = unspoken - held.gpus
        found.append(held)
    return tuple(found)


def _belongs(job: Job, base: Job) -> bool:
    if not job.active or job.uid != base.uid:
        return False
    if job.job_id == base.job_id or (base.het_job_id and job.het_job_id == base.het_job_id):
        return True
    tag = companion_tag(job)
    return tag is not None and tag.base == base.job_id
