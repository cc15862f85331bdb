"""Jobs that may give up GPUs, and the room that they make: what the tests of capacity are made of."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from slurm_elastic.daemon.capacity.ledger import Ledger, per_node
from slurm_elastic.daemon.capacity.make_room import Room, make_room
from slurm_elastic.daemon.capacity.pending_jobs import needs
from slurm_elastic.daemon.capacity.roster import Roster, sort_jobs
from slurm_elastic.daemon.capacity.shrink_options import ShrinkableJob
from slurm_elastic.daemon.capacity.slurm_limits import LimitUsage
from slurm_elastic.daemon.mechanisms.registry import drop_rules
from slurm_elastic.daemon.slurm.accounting import SlurmLimit
from slurm_elastic.daemon.slurm.model import Snapshot
from slurm_elastic.daemon.slurm.site import Site

REQUEST = "elastic:gpus=1-16,batch=16-4096"


def giver(roster: Roster, job_id: int) -> ShrinkableJob:
    """An elastic job of a roster, free to give whatever it accepts to give."""
    job = roster.elastic[job_id]
    return ShrinkableJob(
        job_id,
        job.pieces,
        frozenset((held.job.job_id, held.job.batch_host) for held in job.held),
        frozenset(job.request.sizes()),
        drop_rules(job.request.via),
        {held.job.job_id: per_node(held.job) for held in job.held},
    )


def room(snapshot: Snapshot, accepted: Collection[int] = (), limits: Sequence[SlurmLimit] = ()) -> Room:
    roster = sort_jobs(snapshot, accepted=accepted)
    givers = [giver(roster, job_id) for job_id, job in roster.elastic.items() if job.running]
    usage = LimitUsage(Site(limits=tuple(limits)), snapshot.jobs.values())
    return make_room(snapshot, Ledger.of(snapshot), givers, needs(snapshot, roster), usage)
