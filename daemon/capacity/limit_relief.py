"""What Slurm's limits lack for a waiting job, and what elastic jobs that give up nodes bring back of it. Pure.

Promise: a limit of jobs is relieved by companions given up whole, every other by any node.
Limit: which of the elastic jobs gives is make_room's to choose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ..slurm.model import Job, Snapshot
from .shrink_options import ShrinkableJob, Unit
from .slurm_limits import Bound, LimitUsage, amounts_of, charged


class LimitRelief:
    """The usage of Slurm's limits, and the givers that make it less."""

    def __init__(self, snapshot: Snapshot, givers: Mapping[int, ShrinkableJob], usage: LimitUsage) -> None:
        self._jobs, self._givers, self._usage = snapshot.jobs, givers, usage

    def lacks(
        self, jobs: Sequence[Job], promised: LimitUsage, dropped: Mapping[int, frozenset[Unit]]
    ) -> dict[Bound, float] | None:
        """How much has to be given back of each limit for the waiting job to start, after what others were promised and
        what is given up already; None: no giving up is enough."""
        if not self._usage.site.limits:
            return {}
        left = self._usage.plus(promised)
        for owner, units in dropped.items():
            self._give_back(left, owner, units)
        found: dict[Bound, float] = {}
        for job in jobs:
            lacks = left.lacks(charged(job), left.of(job))
            if lacks is None:
                return None
            found |= lacks
            left.add(charged(job), left.of(job))
        return found

    def share(
        self, owner: int, units: Collection[Unit], dropped: Mapping[int, frozenset[Unit]], lacks: Mapping[Bound, float]
    ) -> float:
        """How much of what is lacking these units bring back: 1 for all of it, 0 for nothing."""
        before = dropped.get(owner, frozenset())
        more = self._usage.empty()
        self._give_back(more, owner, before)
        self._give_back(more, owner, before | set(units), sign=1)
        return sum(min(more.used.get((bound.key, bound.name), 0.0) / lack, 1.0) for bound, lack in lacks.items()) / len(
            lacks
        )

    def _give_back(self, usage: LimitUsage, owner: int, units: Collection[Unit], sign: int = -1) -> None:
        giver = self._givers[owner]
        by_job = Counter(slurm_job_id for slurm_job_id, _ in units)
        for piece in giver.pieces:
            count, job = by_job[piece.slurm_job_id], self._jobs.get(piece.slurm_job_id)
            if count and job is not None:
                amounts = amounts_of(giver.share[piece.slurm_job_id], count, piece.gpu_type)
                if count == len(piece.nodes):
                    amounts["jobs"] = amounts["submits"] = 1
                usage.add(charged(job), usage.part_of(job, amounts), sign)
