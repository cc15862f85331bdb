"""Companions that Slurm keeps waiting for something else than nodes: withdrawn in the round in which it says so. Pure.

Where the limits of the site, read anew, explain it, the job grows again at once as far as they allow; where they do not
(a limit that is not known, a node that is gone), not before its backoff. One whose nodes another job is to get before
it would end may wait: its supervisor gives it less time.
Limit: Slurm gives one reason of perhaps several.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from slurm_elastic.db.rows import ResizeRow
from slurm_elastic.protocol.codes import ResizeState
from slurm_elastic.protocol.records import record

from ..actions.action import Action, Close
from ..capacity.pending_jobs import RESOURCE_REASONS
from ..capacity.roster import Roster
from ..capacity.slurm_limits import LimitUsage, charged
from ..slurm.model import Job, Snapshot
from ..slurm.site import Site
from .registry import COMPANION


@record(frozen=True, slots=True)
class KeptWaiting:
    """A resize whose companion waits in vain."""

    resize: ResizeRow
    companion: Job

    def actions(self, snapshot: Snapshot, site: Site) -> list[Action]:
        """How it ends. `site`: as it is now."""
        usage = LimitUsage(site, snapshot.jobs.values(), snapshot.at)
        explained = usage.lacks(charged(self.companion), usage.of(self.companion)) != {}
        state = ResizeState.OVERTAKEN if explained else ResizeState.WITHDRAWN
        why = f"Slurm keeps companion {self.companion.job_id} waiting: {self.companion.reason}"
        close = Close(self.resize.job_id, self.resize.id, state, why)
        return [*COMPANION.undo(self.resize.job_id, (self.companion.job_id,), why), close]


def kept_waiting(roster: Roster, resizes: Iterable[ResizeRow], but: Collection[int] = ()) -> list[KeptWaiting]:
    """One for each such resize. `but`: resizes that are given up already."""
    found = []
    for resize in resizes:
        job = roster.elastic.get(resize.job_id)
        if job is None or resize.id in but or resize.state != ResizeState.SUBMITTED:
            continue
        own = (asked for asked, tag in job.queued if tag.resize == resize.id)
        late = next((asked for asked in own if not _for_nodes(asked.reason)), None)
        if late is not None:
            found.append(KeptWaiting(resize, late))
    return found


def _for_nodes(reason: str) -> bool:
    return reason in RESOURCE_REASONS or reason == _PLANNED or reason.startswith(f"{_PLANNED}, UnavailableNodes:")


_PLANNED = "ReqNodeNotAvail"
"""What Slurm says of a companion that must get nodes planned for another job; a node that is down is `overtaken`."""
