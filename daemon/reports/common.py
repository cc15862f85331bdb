"""Who may see what of a job, and what of a decision on one that says something of other users' jobs.

Promise: a record of another user's job holds its public fields (id, state, number of GPUs) and None everywhere else;
where Slurm's PrivateData hides jobs there is no such record, and none is named.
Limit: the viewer is taken at its word; the API says who it is.
"""

import pwd
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from slurm_elastic.db.rows import JobRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers.explain import Alternative, Evidence, OtherMove, RoomFor
from slurm_elastic.protocol.answers.record import not_known, redacted
from slurm_elastic.protocol.errors import NotAllowed, NotFound


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


UNNAMED = "too few would be left for waiting jobs to start"
"""Stands for a reason that names jobs which are hidden."""
Alternatives = tuple[Alternative, ...]


def seen(store: Store, viewer: Viewer, evidence: Evidence, alternatives: Alternatives) -> tuple[Evidence, Alternatives]:
    """The evidence and the alternatives of a decision, as the viewer may see them."""
    if viewer.admin:
        return evidence, alternatives

    def own(job_id: int) -> bool:
        # A job without a record is an ordinary one, whose owner is not known here.
        job = store.jobs.get(job_id)
        return job is not None and may_see(viewer, job)

    evidence = replace(evidence, others=_others(evidence.others, own, viewer.private))
    waiting = [entry.job_id for entry in evidence.for_jobs or ()]
    waiting += [evidence.for_job] if evidence.for_job is not None else []
    if viewer.private and not all(own(job_id) for job_id in waiting):
        evidence = _unnamed(evidence, own)
        alternatives = tuple(replace(entry, why=entry.why and UNNAMED) for entry in alternatives)
    return evidence, alternatives


def _others(
    others: tuple[OtherMove, ...] | None, own: Callable[[int], bool], private: bool
) -> tuple[OtherMove, ...] | None:
    if others is None:
        return None
    known = ((entry, own(entry.job_id)) for entry in others)
    return tuple(entry if mine else redacted(entry) for entry, mine in known if mine or not private)


def _unnamed(evidence: Evidence, own: Callable[[int], bool]) -> Evidence:
    """Without the waiting jobs that are hidden."""
    if evidence.for_job is not None and not own(evidence.for_job):
        evidence = replace(evidence, for_job=None, for_gpus=None)
    left: tuple[RoomFor, ...] = tuple(entry for entry in evidence.for_jobs or () if own(entry.job_id))
    return replace(evidence, for_jobs=left if evidence.for_jobs is not None else None)
