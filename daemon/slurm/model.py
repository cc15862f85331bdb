"""What Slurm says about the cluster at one moment, as plain frozen values. Nothing here talks to Slurm.

Names are Slurm's own. Times are Unix seconds, memory is in MiB, sizes are whole numbers; what Slurm leaves unset is "",
0 or None as said at the field.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Protocol

from slurm_elastic.protocol.records import record

from .accounting import EndedJob, QosUser
from .fair_share import ShareTree
from .site import PartitionRules, Site

ACTIVE = frozenset(
    {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}
)
"""States in which a job holds nodes."""

_USABLE_STATES = frozenset({"IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED"})
_UNUSABLE_FLAGS = frozenset({
    "BLOCKED", "DRAIN", "DRAINED", "DRAINING", "DOWN", "FAIL", "FAILING", "FUTURE", "INVALID", "INVALID_REG", "MAINT",
    "MAINTENANCE", "NO_RESPOND", "NOT_RESPONDING", "PERFCTRS", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP",
    "POWER_DOWN", "POWER_UP", "REBOOT", "REBOOT_ISSUED", "REBOOT_REQUESTED", "RES", "RESERVED", "UNDER_NO_SWITCH",
    "UNKNOWN"
})  # fmt: skip

POWERS_DOWN = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"})
POWERS_UP = frozenset({"POWERING_UP", "POWER_UP"})


@record(frozen=True, slots=True)
class Job:
    """One job record that has not ended: an ordinary job, an array (its waiting tasks are one record), an array task,
    or one component of a heterogeneous job."""

    job_id: int
    """Slurm's own number of the record; array tasks and components have one each."""
    state: str
    """RUNNING, PENDING, COMPLETING, …"""
    user: str
    uid: int
    name: str = ""
    comment: str = ""
    account: str = ""
    partition: str = ""
    """Several with commas between them while pending, if so submitted."""
    qos: str = ""
    reason: str = ""
    """Why it waits (Resources, Priority, Dependency, …); "" when Slurm gives none."""
    nodes: tuple[str, ...] = ()
    """Nodes it holds, in Slurm's order."""
    batch_host: str = ""
    """Node that can't be given up: it runs the batch script, or is the first of a component. "" for salloc's jobs."""
    num_nodes: int = 0
    """Nodes it holds; while pending, the least it asks for."""
    gpus: int = 0
    """GPUs it holds; while pending, the total it asks for."""
    gpus_per_node: int = 0
    """GPUs on each of its nodes; 0: none, not the same on all, or not determined while pending (--gpus=N)."""
    asked_per_node: int = 0
    """GPUs per node as it was submitted (--gres, --gpus-per-node); 0: it asked for none, or in another way."""
    gpu_type: str = ""
    """"" when it asked for any type and holds none yet, or when it holds several types."""
    cpus: int = 0
    mem_mb: int = 0
    """Memory per node."""
    het_job_id: int = 0
    """Job id of the whole heterogeneous job; 0: not a component."""
    het_offset: int = 0
    array_job_id: int = 0
    """Job id of the whole array; 0: not an array."""
    array_task: str = ""
    """"3" for a task, "5-99%4" for those that wait."""
    priority: int = 0
    dependency: str = ""
    features: str = ""
    required_nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    """As SnapshotCache completes them."""
    reservation: str = ""
    exclusive: bool = False
    for_its_user: bool = False
    """Submitted with --exclusive=user: nobody else's job comes onto its nodes, nor it onto theirs."""
    time_limit_s: int | None = None
    """None: unlimited."""
    ends_at: float | None = None
    """When it has used up its time limit, if it runs on; None: it has no limit, or waits."""
    submit_time: float = 0.0
    start_time: float | None = None
    """When it started; None while pending (Slurm's guesses of a future start are left out)."""
    eligible_time: float = 0.0
    """Earliest time at which it may start: in the future for one with a begin time."""
    restarts: int = 0
    """How often it was requeued."""

    @property
    def task_name(self) -> str:
        """7_3 for a task of array 7, 7_[4-9%2] for its waiting ones, as squeue has them; "" outside an array."""
        if not self.array_task:
            return ""
        return f"{self.array_job_id}_{self.array_task if self.array_task.isdigit() else f'[{self.array_task}]'}"

    def left_s(self, at: float) -> float:
        """Seconds from `at` until it has used up its time limit; infinite when it has none, or waits."""
        return inf if self.ends_at is None else max(0.0, self.ends_at - at)

    @property
    def running(self) -> bool:
        return self.state == "RUNNING"

    @property
    def pending(self) -> bool:
        return self.state == "PENDING"

    @property
    def active(self) -> bool:
        """Whether it holds nodes."""
        return self.state in ACTIVE


@record(frozen=True, slots=True)
class Node:
    name: str
    flags: frozenset[str]
    """The state and all its flags in capitals: {"MIXED", "DRAIN"}. UNDER_NO_SWITCH is ours (Snapshot.marked)."""
    partitions: tuple[str, ...] = ()
    gpus: int = 0
    gpus_used: int = 0
    gpu_type: str = ""
    """"" when it has none, or several types."""
    cpus: int = 0
    cpus_used: int = 0
    mem_mb: int = 0
    mem_alloc_mb: int = 0
    features: frozenset[str] = frozenset()

    @property
    def schedulable(self) -> bool:
        """Whether Slurm would start an ordinary job on it: not when it is drained, down, reserved or powered down."""
        return bool(self.flags & _USABLE_STATES) and not self.flags & _UNUSABLE_FLAGS

    @property
    def asleep(self) -> bool:
        """Whether power saving has put it to sleep, and nothing else keeps Slurm from starting a job on it."""
        if self.flags.isdisjoint(POWERS_DOWN):
            return False
        return bool(self.flags & _USABLE_STATES) and not self.flags & (_UNUSABLE_FLAGS - POWERS_DOWN)


@dataclass(frozen=True, slots=True)
class Partition:
    """What a partition means to jobs of other partitions on the same nodes."""

    name: str
    tier: int = 1
    """PriorityTier: Slurm starts jobs of the higher one first, and may preempt those of a lower one."""
    preempt_mode: str = "OFF"
    """What preemption does to its jobs: OFF, REQUEUE, CANCEL, SUSPEND."""


@dataclass(frozen=True, slots=True)
class Size:
    """The whole size of a job: this many nodes with this many GPUs each."""

    nodes: int
    gpus_per_node: int
    anywhere: bool = False
    """For a waiting job: its required nodes are removed."""
    tasks_per_node: int = field(default=0, compare=False)
    """Of a size as it was submitted, as `asked_size` gives it; 0: tasks, CPUs and memory follow the GPUs."""
    cpus_per_task: int = field(default=0, compare=False)
    mem_mb: int = field(default=0, compare=False)
    """On each node; 0: not said."""

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole cluster at one moment, or rather two: jobs are read just before nodes. A job that starts in between
    is pending here while its GPUs are in use; one that ends in between still holds GPUs that are idle here."""

    at: float
    jobs: Mapping[int, Job] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    partitions: Mapping[str, Partition] = field(default_factory=dict)

    def components(self, het_job_id: int) -> list[Job]:
        """Components of a heterogeneous job that have not ended, by offset."""
        found = [job for job in self.jobs.values() if het_job_id and job.het_job_id == het_job_id]
        return sorted(found, key=lambda job: job.het_offset)

    def marked(self, site: Site) -> Snapshot:
        """With UNDER_NO_SWITCH among the flags of the nodes on which Slurm starts nothing for want of a switch. Nodes
        that a job may not share with their holders are among those that it excludes, and all nodes in use for a running
        one where two jobs on a node were probed to see the same GPUs."""
        alone = self.nodes.keys() - site.switches.keys() if site.needs_switch else ()
        marks = {name: replace(self.nodes[name], flags=self.nodes[name].flags | {"UNDER_NO_SWITCH"}) for name in alone}
        shut = {name for name, rules in site.partitions.items() if rules.exclusive_user or site.users_apart}
        jobs = self._beside_others(shut) if shut or any(job.for_its_user for job in self.jobs.values()) else {}
        if site.probed:
            used = tuple(node.name for node in self.nodes.values() if node.gpus_used)
            for job in self.jobs.values():
                if job.running and site.same_gpus(job.user, job.partition):
                    seen = jobs.get(job.job_id, job)
                    jobs[job.job_id] = replace(seen, excluded_nodes=(*seen.excluded_nodes, *used))
        return replace(self, nodes={**self.nodes, **marks}, jobs={**self.jobs, **jobs}) if marks or jobs else self

    def _beside_others(self, shut: Collection[str]) -> dict[int, Job]:
        """The jobs that may not share some nodes, which count as excluded by them: another user holds these, and one of
        both jobs, or its partition (`shut`), shares nodes with no other user. What a companion holds may be had by a
        job that waits."""
        held: dict[str, set[tuple[str, bool, bool]]] = {}
        for job in self.jobs.values():
            alone = job.for_its_user or job.partition in shut
            for node in job.nodes:
                held.setdefault(node, set()).add((job.user, alone, job.name.startswith("selastic-")))
        closed: dict[tuple[str, bool, bool], tuple[str, ...]] = {}
        found = {}
        for job in self.jobs.values():
            who = user, own, waits = job.user, job.for_its_user or job.partition in shut, job.pending
            if who not in closed:
                closed[who] = tuple(
                    node
                    for node, holders in held.items()
                    if any(name != user and (own or other) and not (waits and gives) for name, other, gives in holders)
                )
            if closed[who]:
                found[job.job_id] = replace(job, excluded_nodes=(*job.excluded_nodes, *closed[who]))
        return found


class SlurmClient(Protocol):
    """All that the daemon asks of Slurm. Every method may be called from any thread and may raise

    SlurmUnreachable: no answer; whether the call had an effect is not known. Observe again.
    SlurmRefused: Slurm refused, for the reason in the text; it will refuse the same call again.
    SlurmUnparsable: an answer in no known form; conclude nothing from it.
    """

    def snapshot(self) -> Snapshot:
        """All jobs that have not ended and all nodes. Complete, or an error (never SlurmRefused)."""

    def site(self) -> Site:
        """Limits and reservations. They change rarely, and reading them costs as much as a snapshot."""

    def slurms_time(self) -> float:
        """slurmctld's clock, in whole unix seconds."""

    def partitions(self) -> tuple[Mapping[str, PartitionRules], Mapping[str, str]]:
        """By partition: its rules, and the QOS whose limits all its jobs have, for partitions with one."""

    def qos_over_partition(self) -> frozenset[str]:
        """The QOS whose limits come before those of a partition's QOS. Asked of slurmdbd."""

    def qos_users(self, qos: str) -> Mapping[QosUser, bool]:
        """Whether each may use this QOS. Asked of slurmdbd."""

    def shares(self) -> ShareTree:
        """The shares of accounts and users. SlurmUnreachable without slurmdbd."""

    def excluded_nodes(self) -> Mapping[int, tuple[str, ...]]:
        """The nodes that jobs exclude, by job id, for those that exclude some. A listing of its own."""

    def end_states(self, job_ids: Sequence[int]) -> Mapping[int, str]:
        """How jobs have ended, for those that Slurm still remembers (MinJobAge): COMPLETED, FAILED, TIMEOUT, …."""

    def last_runs(self, job_ids: Sequence[int]) -> Mapping[int, str]:
        """How the last runs of jobs that were just put back ended: PREEMPTED, REQUEUED, NODE_FAIL, …; without those of
        which it is not known (yet). Asked of slurmdbd; SlurmUnreachable without it."""

    def ended_jobs(self, start: float, end: float) -> Sequence[EndedJob]:
        """Those that ended in this time, in Unix seconds, in the order of their ends. Asked of slurmdbd;
        SlurmUnreachable without it."""

    def set_site_factor(self, job_id: int, factor: int) -> None:
        """Add this to the priority of a waiting job, in place of what was added before: 0 or more.

        All tasks of an array that wait get it. Refused: for callers who are not Slurm operators; where priorities are
        not priority/multifactor it is taken, and has no effect (see Site.multifactor).
        """

    def set_power(self, node: str, awake: bool) -> None:
        """Let a node sleep, once its jobs have ended and without starting others there, or wake one that sleeps.

        Refused: for callers who are not Slurm administrators. A node that sleeps is woken by a job that Slurm starts
        there, too; one that is still on its way to sleep cannot be woken.
        """

    def shrink(self, job_id: int, nodes: Sequence[str]) -> None:
        """Let a running job keep exactly these of its nodes; processes on the others are killed at once.

        Refused: a node the job doesn't hold, leaving out the batch host, a job that has ended, another user's job.
        Keeping all its nodes is accepted and changes nothing. Slurm accepts it for a pending job too, where it means
        that the job must get these nodes: look at required_nodes.
        """

    def cancel(self, job_id: int) -> None:
        """End a job, or one running component of a heterogeneous job; its first id ends all of it.

        A job that has ended, or never existed, is accepted. Refused: another user's job, a pending component.
        """

    def requeue(self, job_id: int) -> None:
        """Put a running batch job back into the queue, at the size it was submitted with; Slurm starts it no sooner
        than two minutes later (see `resize_waiting`). Its processes get SIGTERM, and SIGKILL after KillWait.

        Not for a task of an array: the last one's number stands for all of them.
        Refused: a job that is pending, has no batch script or was submitted with --no-requeue; another user's.
        """

    def asked_size(self, job_id: int) -> Size:
        """What a waiting job asks for, to be given back to it by `resize_waiting`. Refused: a job that asked for GPUs
        in another way than per node."""

    def resize_waiting(self, job_id: int, size: Size, reservation: str = "") -> None:
        """Give a waiting job this size and let it start at once, in that reservation if there is such a one ("": none).

        CPUs and memory of a node follow its GPUs, where the size does not say them. Must not be called in the second of
        the requeue: Slurm would fail its launch. Refused: a job that does not wait, or that asked for GPUs in another
        way than per node; a part of the change may have been made then.
        """

    def reserve(self, name: str, nodes: Sequence[str], user: str, minutes: int) -> None:
        """Reserve the nodes: only jobs of this user in the reservation start on them; running jobs continue.

        It ends after so many minutes, and ends no job. A reservation of that name is replaced. Refused: for callers who
        are not Slurm operators, and for nodes of another reservation.
        """

    def unreserve(self, name: str, job_id: int = 0) -> None:
        """End a reservation, after removing this job from it; the job continues. An unknown reservation is accepted."""
