"""What a decision on one job says of other users' jobs, and what of that its owner may see.

Promise: of another user's job the public fields (its id and its GPUs), and where Slurm's PrivateData hides jobs not
even those. Limit: the evidence and the alternatives of a decision; nothing else in it names another job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from slurm_elastic.protocol.answers.explain import Alternative, Evidence, OtherMove, RoomFor
from slurm_elastic.protocol.answers.record import redacted

from .common import Viewer, may_see

if TYPE_CHECKING:
    from slurm_elastic.db.store import Store

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
