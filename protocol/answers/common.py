"""What all answers about jobs have in common: whose job it is, its id as Slurm shows it, the words of reasons, and the
sentence about jobs that are not known."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from slurm_elastic.protocol.request import ACCEPTED_FORM

from ..text.reasons import Reason
from .record import Column, about, record

BY_SUPERVISOR = {
    "": "its supervisor changed it without a resize from the daemon",
    "registered": "its supervisor registered with this size",
    "requeue": "it was requeued at this size",
    "restart": "its supervisor started the workers again, without a resize from the daemon",
}
"""Reasons of sizes that no decision led to, and what they mean."""


class Named(Protocol):
    """A record with the names of its job."""

    @property
    def job_id(self) -> int: ...

    @property
    def task_name(self) -> str | None: ...


def shown_id(job: Named) -> str:
    """The job's id as Slurm shows it."""
    return job.task_name or str(job.job_id)


@record
class JobRecord:
    """Whose job it is: the first fields of each record about a job."""

    job_id: int = about("job id", Column("JobID", help="job id; 7_3: a task of array 7", cell=shown_id), public=True)
    task_name: str | None = about("7_3 for a task of array 7, as Slurm names it", public=True)
    partition: str | None = about("partition", Column("Partition"))
    name: str | None = about("job name", Column("Name"))
    user: str | None = about("user name", Column("User"))
    uid: int | None = about("user id", Column("UID"))
    account: str | None = about("account", Column("Account"))
    state: str = about("the job's state", Column("State"), public=True)
    own: bool = about("whether it is a job of who asks", public=True)


def not_known(job_ids: Sequence[int]) -> str:
    """The sentence about jobs without a record, at least one."""
    if len(job_ids) == 1:
        jobs, it, its = f"job {job_ids[0]} is", "it", "its"
    else:
        jobs, it, its = f"jobs {', '.join(map(str, job_ids))} are", "they", "their"
    never = f"{it} never had an elastic request (--comment={ACCEPTED_FORM})"
    came = f"{it} came after the daemon's last look at the queue (try again in a few seconds)"
    return f"{jobs} not known to selasticd: {never}, {its} records are gone, or {came}"


@lru_cache(maxsize=256)  # asked for every row of thousands
def reason_text(code: str) -> str:
    """The words of a reason's code, or of what a supervisor did by itself; empty for a code that is not known here."""
    try:
        return Reason(code).text
    except ValueError:
        return BY_SUPERVISOR.get(code, "")
