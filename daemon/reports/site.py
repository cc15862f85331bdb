"""What users found out of the site: the rows of `selastic hosts`, pairs of hosts that did not reach each other, and who
may say that they do again; and those of `selastic probe` that selasticd remembers.

Promise: an admin sees all, and clears what everybody's jobs found out; a user what all jobs of theirs did, and what an
admin has found for the site. Limit: a user none of whose jobs runs or waits sees no pairs.
"""

from collections.abc import Iterable

from slurm_elastic.db.rows import HostPair
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers.record import made_from
from slurm_elastic.protocol.answers.site import Cleared, Finding, Findings, PairOfHosts, PairsOfHosts
from slurm_elastic.protocol.messages import Tried

from ..capacity.constraints import left_out_until
from .common import Viewer


def hosts(store: Store, viewer: Viewer, now: float) -> PairsOfHosts:
    users = whose(store, viewer)
    seen = (pair for pair in store.host_pairs.all() if users is None or pair.user in users)
    return PairsOfHosts(pairs=tuple(_row(pair, now) for pair in seen))


def whose(store: Store, viewer: Viewer) -> frozenset[str] | None:
    """Users whose pairs the viewer sees and clears; None: everybody's."""
    return None if viewer.admin else frozenset(job.user for job in store.jobs.all() if job.uid == viewer.uid)


def clear(store: Store, viewer: Viewer, host: str, other: str, now: float) -> Cleared:
    """Forget what is known of the two, or of the one and all others. What others' jobs found out stays for a user."""
    gone = store.host_pairs.forget(host, other, whose(store, viewer))
    return Cleared(pairs=tuple(_row(pair, now) for pair in gone))


def _row(pair: HostPair, now: float) -> PairOfHosts:
    until = left_out_until(pair)
    return made_from(PairOfHosts, pair, again_at=until if until > now else None)


def findings(partition: str, user: str, at: float, tried: Iterable[Tried]) -> tuple[Finding, ...]:
    """Rows of one probe, which was last at this time; what it did not try was found by an earlier one."""
    return tuple(made_from(Finding, one, partition=partition, user=user, at=one.at or at) for one in tried)


def probes(store: Store, viewer: Viewer) -> Findings:
    seen = [row for row in store.probes.all() if viewer.admin or row.user in ("", viewer.name)]
    return Findings(findings=tuple(one for row in seen for one in findings(row.partition, row.user, row.at, row.tried)))
