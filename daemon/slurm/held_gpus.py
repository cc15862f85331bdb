"""What jobs hold on each of their nodes, where that is not what they asked for: from what is in use on the nodes. Pure.

An exclusive job holds all GPUs of its nodes, and --gpus=6 on two nodes may be 4 and 2; squeue has the total only.
Limit: of two such jobs on the same nodes nothing is known but their totals, which are taken for equal shares where they
divide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .model import Job, Node


def with_nodes(jobs: Mapping[int, Job], nodes: Mapping[str, Node]) -> dict[int, Job]:
    """The jobs, completed by what their nodes say of their GPUs: how many on each, and of which type."""
    unclear = [job for job in jobs.values() if _unclear(job)]
    found = {**jobs, **_cleared(jobs, nodes, unclear)} if unclear else jobs
    return {job_id: _with_type(job, nodes) for job_id, job in found.items()}


def _unclear(job: Job) -> bool:
    asked = job.asked_per_node * len(job.nodes)
    return bool(job.nodes) and (job.exclusive or (len(job.nodes) > 1 and job.gpus != asked))


def _cleared(jobs: Mapping[int, Job], nodes: Mapping[str, Node], unclear: list[Job]) -> dict[int, Job]:
    used = {name: node.gpus_used for name, node in nodes.items()}
    ids = {job.job_id for job in unclear}
    for job in jobs.values():
        if job.job_id not in ids:
            for name in job.nodes:
                used[name] = used.get(name, 0) - job.gpus_per_node
    found = {}
    for job in unclear:
        shares = [used.get(name, 0) for name in job.nodes]
        whole = all(name in nodes and used[name] == nodes[name].gpus for name in job.nodes)
        if sum(shares) == job.gpus or (job.exclusive and whole):
            each = shares[0] if len(set(shares)) == 1 else 0
            found[job.job_id] = replace(job, gpus=sum(shares), gpus_per_node=each)
            used.update(dict.fromkeys(job.nodes, 0))
    return found


def _with_type(job: Job, nodes: Mapping[str, Node]) -> Job:
    """The type is not in Slurm's accounting at every site."""
    if job.gpu_type or not job.gpus or not job.nodes:
        return job
    types = {nodes[name].gpu_type if name in nodes else "" for name in job.nodes}
    return replace(job, gpu_type=types.pop()) if len(types) == 1 else job
