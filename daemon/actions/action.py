"""What can be done about a job, a node or the queue: plain frozen values. The executor carries them out.

Promise: each says what it asks of Slurm, in a call and in words, and what follows when Slurm refuses it.
Limit: none remembers; that the same is not asked too often is the executor's.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from slurm_elastic.protocol.codes import EventKind, ResizeState
from slurm_elastic.protocol.errors import SlurmRefused
from slurm_elastic.protocol.messages import Resize
from slurm_elastic.protocol.records import record

from ..capacity.placement import reservation_of
from ..slurm.model import Job, Size, SlurmClient

JOB, NODE, QUEUE = "job", "node", "queue"


@record(frozen=True, slots=True)
class Subject:
    """One thing of Slurm's that can be changed."""

    kind: str
    """JOB, NODE or QUEUE."""
    name: str = ""
    """A job's id or a node's name; of the queue a partition, or nothing for all of it."""

    @classmethod
    def job(cls, job_id: int) -> Subject:
        return cls(JOB, str(job_id))

    @property
    def job_id(self) -> int:
        """The job, as events name it; 0 where it is none."""
        return int(self.name) if self.kind == JOB else 0

    @property
    def words(self) -> str:
        """How a sentence names it: job 12, node n3, queue."""
        return f"{self.kind} {self.name}".rstrip()


log = logging.getLogger(__name__)

RESERVED_MIN = 10
"""Minutes after which Slurm ends a reservation that no daemon was left to end; jobs in it run on."""


@dataclass(frozen=True)
class Act(ABC):
    """Something that Slurm is asked for. Its fields are the detail of its event."""

    kind: ClassVar[EventKind]

    @property
    @abstractmethod
    def subject(self) -> Subject:
        """What it is about: whose event it is, and what rests when Slurm refuses it."""

    @abstractmethod
    def ask(self, client: SlurmClient) -> None:
        """Ask Slurm for it. Raises SlurmError."""

    @abstractmethod
    def sentence(self) -> str:
        """What is asked for, for the log."""

    def question(self) -> tuple[object, ...]:
        """Two actions for which this is equal are one question to Slurm."""
        return (type(self), self.subject)

    def owner(self, jobs: Mapping[int, Job]) -> Job | None:
        """The Slurm job, among these, whose user, account and partition a refusal concerns; None: nobody's."""
        return None

    def if_refused(self, error: str) -> tuple[Action, ...]:
        """What to do when Slurm refuses it."""
        return ()


@dataclass(frozen=True)
class JobAct(Act):
    """Something that Slurm is asked for about one Slurm job of an elastic job."""

    job_id: int
    slurm_job_id: int

    @property
    def subject(self) -> Subject:
        return Subject.job(self.job_id)

    def question(self) -> tuple[object, ...]:
        return (type(self), self.slurm_job_id)

    def owner(self, jobs: Mapping[int, Job]) -> Job | None:
        return jobs.get(self.slurm_job_id) or jobs.get(self.job_id)


@dataclass(frozen=True)
class Shrink(JobAct):
    """Take a Slurm job down to these nodes, in place."""

    kind = EventKind.SHRINK
    nodes: tuple[str, ...]
    why: str

    def ask(self, client: SlurmClient) -> None:
        client.shrink(self.slurm_job_id, self.nodes)

    def sentence(self) -> str:
        return f"shrink {self.slurm_job_id} to {','.join(self.nodes)}: {self.why}"

    def question(self) -> tuple[object, ...]:
        return (*super().question(), self.nodes)


@dataclass(frozen=True)
class Cancel(JobAct):
    """End a companion or a component."""

    kind = EventKind.CANCEL
    why: str

    def ask(self, client: SlurmClient) -> None:
        client.cancel(self.slurm_job_id)

    def sentence(self) -> str:
        return f"cancel {self.slurm_job_id}: {self.why}"


@dataclass(frozen=True)
class Free(JobAct):
    """End the reservation that kept nodes for a job."""

    kind = EventKind.FREE
    why: str

    def ask(self, client: SlurmClient) -> None:
        # Whoever may not make reservations may not end one either, and then there is none.
        with contextlib.suppress(SlurmRefused):
            client.unreserve(reservation_of(self.slurm_job_id), self.slurm_job_id)

    def sentence(self) -> str:
        return f"free the nodes of {self.slurm_job_id}: {self.why}"


@dataclass(frozen=True)
class Prioritize(JobAct):
    """Place a waiting job elsewhere in Slurm's queue."""

    kind = EventKind.PRIORITIZE
    factor: int
    """The site's own part of its priority, from now on."""
    why: str

    def ask(self, client: SlurmClient) -> None:
        client.set_site_factor(self.slurm_job_id, self.factor)

    def sentence(self) -> str:
        return f"site factor of {self.slurm_job_id} is {self.factor}: {self.why}"

    def question(self) -> tuple[object, ...]:
        return (*super().question(), self.factor)


@dataclass(frozen=True)
class Power(Act):
    """Let a node sleep that is idle, or wake it."""

    kind = EventKind.POWER
    node: str
    awake: bool
    why: str

    @property
    def subject(self) -> Subject:
        return Subject(NODE, self.node)

    def ask(self, client: SlurmClient) -> None:
        client.set_power(self.node, self.awake)

    def sentence(self) -> str:
        return f"{'wake it' if self.awake else 'let it sleep'}: {self.why}"

    def question(self) -> tuple[object, ...]:
        return (*super().question(), self.awake)


@dataclass(frozen=True)
class _OfResize(JobAct):
    """A step of a resize that fails when Slurm refuses it."""

    resize: int
    """0: it was put back by Slurm or its owner, not by a resize of ours."""

    def if_refused(self, error: str) -> tuple[Action, ...]:
        """What was done before it stays, but for the nodes kept; what fits is looked at again in the next round."""
        if not self.resize:
            return ()
        free = Free(self.job_id, self.slurm_job_id, "its resize was refused")
        return (free, Close(self.job_id, self.resize, ResizeState.FAILED, error))


@dataclass(frozen=True)
class Requeue(_OfResize):
    """Put a job back into the queue, its new nodes kept for it where the site lets us."""

    kind = EventKind.REQUEUE
    nodes: tuple[str, ...]
    user: str
    why: str

    def ask(self, client: SlurmClient) -> None:
        try:
            client.reserve(reservation_of(self.slurm_job_id), self.nodes, self.user, RESERVED_MIN)
        except SlurmRefused as error:
            # Another job may take them in the seconds in which nobody has them.
            without = "job %d is put back without its nodes being kept for it: %s"
            log.info(without, self.slurm_job_id, error, extra={"JOB": self.job_id, "RESIZE": self.resize})
        client.requeue(self.slurm_job_id)

    def sentence(self) -> str:
        return f"requeue {self.slurm_job_id}: {self.why}"


@dataclass(frozen=True)
class Resume(_OfResize):
    """Give a waiting job its size, and let it start at once."""

    kind = EventKind.RESUME
    size: Size
    why: str
    script: Size | None = None
    """What its script asks for, of a job that has never run; None: it comes back."""

    def ask(self, client: SlurmClient) -> None:
        client.resize_waiting(self.slurm_job_id, self.size, reservation_of(self.slurm_job_id) if self.resize else "")

    def sentence(self) -> str:
        size = f"{self.size.nodes} x {self.size.gpus_per_node} GPUs"
        return f"resume {self.slurm_job_id} at {size}: {self.why}"

    def question(self) -> tuple[object, ...]:
        return (*super().question(), self.size)


@dataclass(frozen=True, slots=True)
class Advance:
    """Write down how far a resize that the daemon itself carries out has come, before what follows is done."""

    job_id: int
    resize: int
    state: ResizeState


@dataclass(frozen=True, slots=True)
class Close:
    """Bring an open resize to its end."""

    job_id: int
    resize: int
    state: ResizeState
    """done, failed, withdrawn or overtaken."""
    detail: str


Action = Act | Resize | Advance | Close
"""A Resize is to begin: it is on the disk before its supervisor can see it, and its id is not looked at."""
