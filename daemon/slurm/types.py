"""What Slurm says about the cluster at one moment, as plain frozen values. Nothing here talks to Slurm.

Names are Slurm's own. Times are Unix seconds, memory is in MiB, sizes are whole numbers; what Slurm leaves unset is "",
0 or None as said at the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

ACTIVE = frozenset(
    {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}
)
"""States in which a job holds nodes."""

_USABLE_STATES = frozenset({"IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED"})
_UNUSABLE_FLAGS = frozenset(
    {
        "BLOCKED",
        "DRAIN",
        "DRAINED",
        "DRAINING",
        "DOWN",
        "FAIL",
        "FAILING",
        "FUTURE",
        "INVALID",
        "INVALID_REG",
        "MAINT",
        "MAINTENANCE",
        "NO_RESPOND",
        "NOT_RESPONDING",
        "PERFCTRS",
        "POWERED_DOWN",
        "POWERING_DOWN",
        "POWERING_UP",
        "POWER_DOWN",
        "POWER_UP",
        "REBOOT",
        "REBOOT_ISSUED",
        "REBOOT_REQUESTED",
        "RES",
        "RESERVED",
        "UNKNOWN",
    }
)


@dataclass(frozen=True, slots=True)
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
    reservation: str = ""
    exclusive: bool = False
    time_limit_s: int | None = None
    """None: unlimited."""
    time_left_s: int | None = None
    submit_time: float = 0.0
    start_time: float | None = None
    """When it started; None while pending (Slurm's guesses of a future start are left out)."""

    @property
    def running(self) -> bool:
        return self.state == "RUNNING"

    @property
    def pending(self) -> bool:
        return self.state == "PENDING"

    @property
    def active(self) -> bool:
        """Does it hold nodes?"""
        return self.state in ACTIVE


@dataclass(frozen=True, slots=True)
class Node:
    """One compute node."""

    name: str
    flags: frozenset[str]
    """The state and all its flags in capitals: {"MIXED", "DRAIN"}."""
    partitions: tuple[str, ...] = ()
    gpus: int = 0
    gpus_used: int = 0
    gpu_type: str = ""
    """"" when it has none, or several types."""
    cpus: int = 0
    cpus_used: int = 0
    mem_mb: int = 0
    mem_alloc_mb: int = 0

    @property
    def schedulable(self) -> bool:
        """Would Slurm start an ordinary job on it, if there is room? Not when drained, down, reserved or asleep."""
        return bool(self.flags & _USABLE_STATES) and not self.flags & _UNUSABLE_FLAGS


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole cluster at one moment, or rather two: jobs are read just before nodes. A job that starts in between
    is pending here while its GPUs are in use; one that ends in between still holds GPUs that are idle here."""

    at: float
    jobs: Mapping[int, Job] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)

    def components(self, het_job_id: int) -> list[Job]:
        """Components of a heterogeneous job that have not ended, by offset."""
        found = [job for job in self.jobs.values() if het_job_id and job.het_job_id == het_job_id]
        return sorted(found, key=lambda job: job.het_offset)


class SlurmClient(Protocol):
    """All that the daemon asks of Slurm. Every method may be called from any thread and may raise

    SlurmUnreachable: no answer; whether the call had an effect is not known. Observe again.
    SlurmRefused: Slurm said no, for the reason in the text; the same call will be refused again.
    SlurmUnparsable: an answer in no known form; nothing may be concluded.
    """

    def snapshot(self) -> Snapshot:
        """All jobs that have not ended and all nodes. Complete, or an error (never SlurmRefused)."""

    def shrink(self, job_id: int, nodes: Sequence[str]) -> None:
        """Let a running job keep exactly these of its nodes; processes on the others are killed at once.

        Refused: a node the job doesn't hold, leaving out the batch host, a job that has ended, another user's job.
        Keeping all its nodes is accepted and changes nothing. Slurm accepts it for a pending job too, where it means
        that the job must get these nodes: look at required_nodes.
        """

    def cancel(self, job_id: int) -> None:
        """End a job, or one running component of a heterogeneous job; its first id ends all of it.

        A job that has ended already or never was is fine. Refused: another user's job, a pending component.
        """

    def set_comment(self, job_id: int, text: str) -> None:
        """Replace a job's comment. Refused: a job that has ended, another user's job."""
