"""Pairs of hosts that did not reach each other: the rows of `selastic hosts`, and who may say that they do again.

Promise: an admin sees and clears what everybody's jobs found out, a user what all jobs of theirs did.
Limit: a user none of whose jobs runs or waits sees nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_elastic.protocol.answers.record import made_from

from ..capacity.constraints import left_out_until
from .common import Viewer

if TYPE_CHECKING:
    from slurm_elastic.db.rows import HostPair
    from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers.site import Cleared, PairOfHosts, PairsOfHosts


def hosts(store: Store, viewer: Viewer, now: float) -> PairsOfHosts:
    """Those that the viewer may see."""
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
