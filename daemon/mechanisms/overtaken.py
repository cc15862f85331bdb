"""Resizes whose nodes somebody else has got meanwhile: withdrawn at once; what fits is planned again. Pure.

A companion is asked for on nodes that were free; whoever was quicker has them now, and it would wait out its time for
nothing. So would the workers of one that is suspended while they warm up. Limit: judges what the plan judged (GPUs,
cores, memory, whether the node takes work); a companion that Slurm keeps waiting for another reason waits until its
time is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurm_elastic.db.rows import ResizeRow
from slurm_elastic.protocol.codes import ResizeState

from ..capacity.ledger import Amount, free, per_node
from ..capacity.pending_jobs import unlisted_gpus
from ..capacity.roster import ElasticJob, Roster, companion_tag
from ..slurm.model import Snapshot
from .registry import carrier

NOTHING = Amount()


def overtaken(snapshot: Snapshot, roster: Roster, resizes: Iterable[ResizeRow]) -> dict[int, str]:
    """By resize, why it is to be given up: a node that it waits for is lost. Only while that does no harm."""
    found = {}
    for resize in resizes:
        job = roster.elastic.get(resize.job_id)
        if job is None or not job.running:
            continue
        own = _own(job) if carrier(resize.message).restarts else {}
        if resize.state in (ResizeState.GRANTED, ResizeState.READY) and (stopped := _stopped(snapshot, job, resize)):
            found[resize.id] = f"its companion {stopped} was suspended"
            continue
        for node, need in _awaited(job, resize):
            if _gone(snapshot, node, need, own.get(node, NOTHING)):
                found[resize.id] = f"node {node} is no longer free"
                break
    return found


def _awaited(job: ElasticJob, resize: ResizeRow) -> list[tuple[str, Amount]]:
    """The nodes that a resize waits for, and what it needs on each."""
    return [
        (node, Amount(shape.gpus_per_node, shape.cpus_per_node, shape.mem_mb_per_node))
        for shape in carrier(resize.message).awaits(job, resize)
        for node in shape.node_list
    ]


def _stopped(snapshot: Snapshot, of: ElasticJob, resize: ResizeRow) -> int:
    """A companion of it that is suspended; 0: none."""
    for job in snapshot.jobs.values():
        tag = companion_tag(job) if job.state == "SUSPENDED" and job.uid == of.base.uid else None
        if tag is not None and (tag.base, tag.resize) == (resize.job_id, resize.id):
            return job.job_id
    return 0


def _own(job: ElasticJob) -> Mapping[str, Amount]:
    """What the job gives back, by node, when it starts again."""
    found: dict[str, Amount] = {}
    for held in job.held:
        for node in held.piece.nodes:
            found[node] = found.get(node, NOTHING) + per_node(held.job)
    return found


def _gone(snapshot: Snapshot, name: str, need: Amount, own: Amount) -> bool:
    node = snapshot.nodes.get(name)
    if node is None or not node.schedulable:
        return True
    # Jobs are read a moment before nodes: what no job there holds may be the very companion, just granted.
    return not (free(node) + own).covers(need) and name not in unlisted_gpus(snapshot)
