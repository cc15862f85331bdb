"""What every report shares: who may see what, the reason's words, whose job a record is about.

Promise: a record of another user's job holds its public fields (id, state, number of GPUs) and None everywhere else;
where Slurm's PrivateData hides jobs there is no such record.
Limit: the viewer is taken at its word; the API says who it is.
"""

from __future__ import annotations

import pwd
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from slurm_elastic.protocol.errors import NotAllowed, NotFound
from slurm_elastic.protocol.request import ACCEPTED_FORM

from ..text.reasons import Reason
from .record import Column, about, record

if TYPE_CHECKING:
    from slurm_elastic.db.rows import JobRow
    from slurm_elastic.db.store import Store

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


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who asks. Admins (root, Slurm's user and operators, `admins` of the settings) see and pin everyone's jobs."""

    uid: int
    admin: bool = False
    private: bool = False
    """Others' jobs are hidden altogether, as Slurm's PrivateData=jobs has it."""
    key: bytes = field(default=b"", compare=False, repr=False)
    """What the answer to them is proven with; empty: nothing."""

    @property
    def name(self) -> str:
        """As Slurm shows it: the number where the user has no name here."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)


def may_see(viewer: Viewer, job: JobRow) -> bool:
    """Whether the viewer sees all of this job: its owner and admins do."""
    return viewer.admin or viewer.uid == job.uid


def known_job(store: Store, job_id: int, viewer: Viewer) -> JobRow:
    """The job. Raises NotFound with one sentence, which names the job where this one only holds GPUs for it."""
    job = store.jobs.get(job_id)
    if job is None:
        whole = _held_for(store, job_id)
        if whole is not None and (may_see(viewer, whole) or not viewer.private):
            raise NotFound(f"job {job_id} only holds GPUs for job {whole.job_id}; accepted: {whole.job_id}")
        raise NotFound(not_known([job_id]))
    return job


def _held_for(store: Store, slurm_job_id: int) -> JobRow | None:
    """The job that trains on this Slurm job: its companion, or its component."""
    for job_id, used in store.allocations.all_in_use().items():
        if any(piece.slurm_job_id == slurm_job_id for piece in used.pieces):
            return store.jobs.get(job_id)
    return None


def not_known(job_ids: Sequence[int]) -> str:
    """The sentence about jobs without a record, at least one."""
    if len(job_ids) == 1:
        jobs, it, its = f"job {job_ids[0]} is", "it", "its"
    else:
        jobs, it, its = f"jobs {', '.join(map(str, job_ids))} are", "they", "their"
    never = f"{it} never had an elastic request (--comment={ACCEPTED_FORM})"
    came = f"{it} came after the daemon's last look at the queue (try again in a few seconds)"
    return f"{jobs} not known to selasticd: {never}, {its} records are gone, or {came}"


def visible_job(store: Store, job_id: int, viewer: Viewer) -> JobRow:
    """The job, for someone who may see all of it. Raises NotFound or NotAllowed with one sentence."""
    job = known_job(store, job_id, viewer)
    if not may_see(viewer, job):
        if viewer.private:
            raise NotFound(not_known([job_id]))
        raise NotAllowed(f"job {job_id} belongs to another user; only its owner and admins see why it has what it has")
    return job


@lru_cache(maxsize=256)  # asked for every row of thousands
def reason_text(code: str) -> str:
    """The words of a reason's code, or of what a supervisor did by itself; empty for a code that is not known here."""
    try:
        return Reason(code).text
    except ValueError:
        return BY_SUPERVISOR.get(code, "")
