"""What a decision on one job says of other users' jobs, and what of that its owner may see.

Promise: of another user's job an id and its GPUs, and where Slurm's PrivateData hides jobs not even that. Limit: the
evidence and the alternatives of a decision; nothing else in it names another job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from . import evidence as known
from .common import MOVED, Viewer, may_see

if TYPE_CHECKING:
    from slurm_elastic.db.store import Store

UNNAMED = "too few would be left for waiting jobs to start"
"""Stands for a reason that names jobs which are hidden."""


def hidden(store: Store, viewer: Viewer, decision: Mapping[str, Any]) -> dict[str, Any]:
    """The `evidence` and the `alternatives` of this decision, as the viewer may see them."""

    def own(entry: Mapping[str, Any]) -> bool:
        # A job without a record is an ordinary one, whose owner is not known here.
        job = store.job(known.whole(entry, "job_id") or 0)
        return job is not None and may_see(viewer, job)

    evidence, alternatives = dict(decision["evidence"]), list(decision["alternatives"])
    if not viewer.admin:
        evidence |= _others(evidence, own, viewer.private)
        if viewer.private and not all(own(entry) for entry in _waiting(evidence)):
            evidence = _unnamed(evidence, own)
            alternatives = [entry | ({"why": UNNAMED} if entry.get("why") else {}) for entry in alternatives]
    return {"evidence": evidence, "alternatives": alternatives}


def _others(
    evidence: Mapping[str, Any], own: Callable[[Mapping[str, Any]], bool], private: bool
) -> dict[str, list[dict[str, Any]]]:
    if "others" not in evidence:
        return {}
    told = []
    for entry in known.objects(evidence, "others"):
        if own(entry):
            told.append(entry)
        elif not private:
            told.append({key: value for key, value in entry.items() if key in MOVED})
    return {"others": told}


def _waiting(evidence: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The waiting jobs that GPUs were freed for; `for_job` is the first of them."""
    first = [{"job_id": evidence["for_job"]}] if "for_job" in evidence else []
    return first + known.objects(evidence, "for_jobs")


def _unnamed(evidence: dict[str, Any], own: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any]:
    """Without the waiting jobs that are hidden."""
    if "for_job" in evidence and not own({"job_id": evidence["for_job"]}):
        del evidence["for_job"]
        evidence.pop("for_gpus", None)
    if "for_jobs" in evidence:
        evidence["for_jobs"] = [entry for entry in known.objects(evidence, "for_jobs") if own(entry)]
    return evidence
