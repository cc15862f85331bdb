"""Who may see what of a job.

Promise: a record of another user's job holds its public fields (id, state, number of GPUs) and None everywhere else;
where Slurm's PrivateData hides jobs there is no such record.
Limit: the viewer is taken at its word; the API says who it is.
"""

from __future__ import annotations

import pwd
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slurm_elastic.protocol.errors import NotAllowed, NotFound

if TYPE_CHECKING:
    from slurm_elastic.db.rows import JobRow
    from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers.common import not_known


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


def visible_job(store: Store, job_id: int, viewer: Viewer) -> JobRow:
    """The job, for someone who may see all of it. Raises NotFound or NotAllowed with one sentence."""
    job = known_job(store, job_id, viewer)
    if not may_see(viewer, job):
        if viewer.private:
            raise NotFound(not_known([job_id]))
        raise NotAllowed(f"job {job_id} belongs to another user; only its owner and admins see why it has what it has")
    return job
