"""What an action, a refusal or a decision is about: a job, a node, or Slurm's queue. Pure."""

from __future__ import annotations

from slurm_elastic.protocol.records import record

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
