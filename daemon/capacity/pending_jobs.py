"""What waiting jobs need in order to start, in the order in which Slurm would start them; and GPUs in use that no job
of a snapshot holds, with which waiting job they may be. Pure.

Jobs that wait for resources or for a limit of what runs at the same time count, and those whose begin time is near. One
that is held, depends on another, waits for a later time or is over a limit of another kind could not use GPUs given up
for it. Whether giving way helps against a limit is found out by make_room.

Jobs are read a moment before nodes: one that starts in between still waits in the snapshot, while its GPUs are taken.
What stays so from round to round is none: hidden jobs, or shares that squeue does not tell. Limit: nodes of jobs whose
shares are not known are left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from slurm_elastic.protocol.records import record

from ..slurm.model import Job, Node, Snapshot
from .ledger import Amount, per_node
from .roster import Roster

RESOURCE_REASONS = ("Resources", "Priority", "None", "")
_OTHER = r"Wall|Time|PerJob|PerNode|PerLimit|Submit|Min[A-Z]|Prio|Accrue|Billing|NotAllowed|Threshold"
_LIMIT = re.compile(rf"(Assoc|QOS|Max)(?!.*({_OTHER})).+")
"""A limit of what runs at the same time, as Slurm names it: AssocGrpGRES, QOSMaxJobsPerUserLimit."""
UNSEEN_S = 60.0
"""How long a job without a reason is one that Slurm has not looked at yet; later it waits beyond Slurm's depth."""

SOON_S = 5.0
"""A begin time this near counts as come."""
NOTICE_S = 60.0
"""Room is made this long before a job's begin time: Slurm preempts at that moment what has not given way by then."""


@record(frozen=True, slots=True)
class NeedPart:
    """Equal nodes that a job needs at the same moment."""

    nodes: int
    amount: Amount
    partitions: frozenset[str]
    gpu_type: str
    required: frozenset[str] = frozenset()
    """Nodes that must be among them."""
    features: str = ""
    """What each of the nodes must have, as --constraint= says it."""
    excluded: frozenset[str] = frozenset()
    """Nodes that must not be among them."""


@record(frozen=True, slots=True)
class Need:
    """A waiting job: what it takes for it to start."""

    job_id: int
    parts: tuple[NeedPart, ...]
    elastic: bool
    """Whether it is an elastic job that waits for its starting size."""
    priority: float
    submit_time: float
    time_limit_s: float | None
    """None: no limit known."""
    tier: int = 1
    """PriorityTier of its partition: Slurm starts those of the highest first, whatever their priority."""
    jobs: tuple[Job, ...] = ()
    """As Slurm has them: one, or the components of a heterogeneous job."""
    limit: str = ""
    """The limit that Slurm says it waits for."""
    unseen: bool = False
    """Slurm has not said yet what it waits for: idle GPUs are kept for it, and nobody gives way."""

    @property
    def kind(self) -> Kind:
        """What it has in common with jobs that will start when it does."""
        return self.jobs[0].uid, self.limit, self.parts

    @property
    def gpus(self) -> int:
        return sum(part.nodes * part.amount.gpus for part in self.parts)


Kind = tuple[int, str, tuple[NeedPart, ...]]
"""uid, limit and shape of a waiting job."""


def needs(snapshot: Snapshot, roster: Roster, passed: Collection[Kind] = ()) -> list[Need]:
    """The waiting jobs that GPUs would help, first to start first.

    `passed`: of jobs for which room was made and which did not take it; they wait for something this cannot see.
    """
    companions = {job.job_id for elastic in roster.elastic.values() for job, _ in elastic.queued}
    skip = companions | {job.job_id for job in roster.orphans}
    groups: dict[int, list[Job]] = {}
    for job in snapshot.jobs.values():
        if job.state == "PENDING" and job.job_id not in skip:
            groups.setdefault(job.het_job_id or job.job_id, []).append(job)
    parts = _Parts(snapshot)
    found = [
        _need(parts, job_id, jobs, job_id in roster.elastic)
        for job_id, jobs in groups.items()
        if job_id not in skip and all(_counts(job, snapshot.at) for job in jobs)
    ]
    found = [need for need in found if need.kind not in passed] if passed else found
    return sorted(found, key=lambda need: (-need.tier, -need.priority, need.submit_time, need.job_id))


def _counts(job: Job, now: float) -> bool:
    # A reservation's nodes are not ours to give. One put back a moment ago has no reason yet, only its begin time.
    comes = job.reason == "BeginTime" and not job.restarts and job.eligible_time <= now + NOTICE_S
    waits = (job.reason in RESOURCE_REASONS or limited(job.reason)) and job.eligible_time <= now + SOON_S
    return (comes or waits) and not job.reservation


def limited(reason: str) -> bool:
    """Whether a job waits until others of its user, account or QOS end or hold less."""
    return _LIMIT.fullmatch(reason) is not None


def _unseen(job: Job, now: float) -> bool:
    return job.reason in ("None", "") and now < max(job.submit_time, job.eligible_time) + UNSEEN_S


class _Parts:
    """What waiting jobs need and how early their partitions come: alike ones, as a queue mostly has them, share it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._tiers: dict[str, int] = {}
        self._parts: dict[tuple[object, ...], tuple[NeedPart]] = {}

    def tier(self, partition: str) -> int:
        """Of partitions with commas between them: the highest."""
        known = self._tiers.get(partition)
        if known is None:
            found = self.snapshot.partitions
            names = [name for name in partition.split(",") if name in found]
            known = self._tiers[partition] = max((found[name].tier for name in names), default=1)
        return known

    def of(self, jobs: Sequence[Job]) -> tuple[NeedPart, ...]:
        """One for each component of a job."""
        if len(jobs) == 1:
            return self._one(jobs[0])
        return tuple(part for job in jobs for part in self._one(job))

    def _one(self, job: Job) -> tuple[NeedPart]:
        key = (
            job.num_nodes, len(job.nodes), job.gpus_per_node, job.gpus, job.cpus, job.mem_mb, job.partition,
            job.gpu_type, job.required_nodes, job.features, job.excluded_nodes, job.exclusive,
        )  # fmt: skip
        known = self._parts.get(key)
        if known is None:
            known = self._parts[key] = (_part(self.snapshot, job),)
        return known


def _need(parts: _Parts, job_id: int, jobs: list[Job], elastic: bool) -> Need:
    now = parts.snapshot.at
    if len(jobs) > 1:
        jobs = sorted(jobs, key=lambda job: job.het_offset)
    limits = [job.time_limit_s for job in jobs]
    return Need(
        job_id=job_id,
        parts=parts.of(jobs),
        elastic=elastic,
        priority=min([job.priority for job in jobs]),
        submit_time=jobs[0].submit_time,
        time_limit_s=max(limit for limit in limits if limit) if all(limits) else None,
        tier=max([parts.tier(job.partition) for job in jobs]),
        jobs=tuple(jobs),
        limit=next((job.reason for job in jobs if limited(job.reason)), ""),
        unseen=any([_unseen(job, now) for job in jobs]),
    )


def _part(snapshot: Snapshot, job: Job) -> NeedPart:
    partitions = frozenset(job.partition.split(","))
    nodes, amount = max(1, job.num_nodes), per_node(job)
    if not job.gpus_per_node:
        largest = max((n.gpus for n in _of(snapshot, partitions) if job.gpu_type in ("", n.gpu_type)), default=0)
        if largest and amount.gpus > largest:
            # --gpus=N without a node count: Slurm spreads it over as many nodes as it takes.
            nodes = -(-job.gpus // largest)
            amount = Amount(-(-job.gpus // nodes), -(-job.cpus // nodes), job.mem_mb)
    if job.exclusive:
        amount = replace(amount, cpus=max((n.cpus for n in _of(snapshot, partitions)), default=0))
    return NeedPart(
        nodes,
        amount,
        partitions,
        job.gpu_type,
        frozenset(job.required_nodes),
        job.features,
        frozenset(job.excluded_nodes),
    )


def _of(snapshot: Snapshot, partitions: frozenset[str]) -> Iterator[Node]:
    return (node for node in snapshot.nodes.values() if not partitions.isdisjoint(node.partitions))


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
