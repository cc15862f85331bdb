"""What `selastic probe` has found and selasticd remembers: the rows of its table.

Promise: everybody sees what an admin has found for the site, and their own; an admin sees all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from slurm_elastic.protocol.answers.record import made_from
from slurm_elastic.protocol.messages import Tried

if TYPE_CHECKING:
    from slurm_elastic.db.store import Store

    from .common import Viewer
from slurm_elastic.protocol.answers.site import Finding, Findings


def findings(partition: str, user: str, at: float, tried: Iterable[Tried]) -> tuple[Finding, ...]:
    """Rows of one probe, which was last at this time; what it did not try was found by an earlier one."""
    return tuple(made_from(Finding, one, partition=partition, user=user, at=one.at or at) for one in tried)


def probes(store: Store, viewer: Viewer) -> Findings:
    """Those that the viewer may see."""
    seen = [row for row in store.probes.all() if viewer.admin or row.user in ("", viewer.name)]
    return Findings(findings=tuple(one for row in seen for one in findings(row.partition, row.user, row.at, row.tried)))
