"""GPUs in use that no job of a snapshot holds, by node; and which waiting job they may be. Pure.

Jobs are read a moment before nodes: one that starts in between still waits in the snapshot, while its GPUs are taken.
What stays so from round to round is none: hidden jobs, or shares that squeue does not tell. Limit: nodes of jobs whose
shares are not known are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..slurm.model import Snapshot
from .pending_jobs import Need, NeedPart


def unlisted_gpus(snapshot: Snapshot) -> dict[str, int]:
    """By node, where there are any."""
    held, unsure = listed_gpus(snapshot)
    return {
        name: node.gpus_used - held[name]
        for name, node in snapshot.nodes.items()
        if node.gpus_used > held[name] and name not in unsure and node.schedulable
    }


def listed_gpus(snapshot: Snapshot) -> tuple[dict[str, int], set[str]]:
    """By node, the GPUs that jobs hold there; and the nodes where that is not known of some job."""
    held = dict.fromkeys(snapshot.nodes, 0)
    unsure: set[str] = set()
    for job in snapshot.jobs.values():
        if job.gpus and not job.gpus_per_node:
            unsure.update(job.nodes)
        for name in job.nodes:
            held[name] = held.get(name, 0) + job.gpus_per_node
    return held, unsure


def lasting(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """What was so in the round before as well."""
    return {name: min(gpus, before[name]) for name, gpus in now.items() if name in before}


def by_node(gpus: Mapping[str, int]) -> str:
    """In words."""
    return ", ".join(f"{count} on {name}" for name, count in sorted(gpus.items()))


def may_have_started(snapshot: Snapshot, need: Need, since: Mapping[str, int]) -> bool:
    """Whether these GPUs, which came into use since the round before, may be the waiting job's."""
    return any(part.amount.gpus for part in need.parts) and all(
        _room(snapshot, part, since) >= part.nodes for part in need.parts
    )


def _room(snapshot: Snapshot, part: NeedPart, since: Mapping[str, int]) -> int:
    return sum(
        gpus >= part.amount.gpus and bool(part.partitions & set(snapshot.nodes[name].partitions))
        for name, gpus in since.items()
    )
