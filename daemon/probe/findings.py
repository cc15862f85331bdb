"""What follows for a site from what a probe found: the settings to write. Pure.

Limit: one partition stands for all, and one look for every hour of the day.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from slurm_elastic.protocol.messages import REFUSED, Tried
from slurm_elastic.protocol.request import DEFAULT_VIA

from ..actions import probed
from ..actions.probed import Found, companion_by, granted_s, no_companions, seconds
from ..config.settings import Settings

CLEANS_S = 5.0
"""An epilog that takes longer cleans more than processes."""


def settings_to_write(tried: Iterable[Tried]) -> list[str]:
    """Lines for selasticd.toml, and for elastic requests; each says why. Empty: the defaults fit."""
    found, defaults = {one.name: one for one in tried}, Settings()
    lines = []
    if companion_by(found):
        lines.append('companion_by = "sbatch"  # salloc is refused')
    granted = granted_s(found)
    if 2 * granted > defaults.companion_wait_s:
        lines.append(f"companion_wait_s = {_up(2 * granted)}  # a companion was granted after {granted:.0f} s")
    epilog = seconds(found, probed.EPILOG)
    if _outcome(found, probed.SHRINK) == REFUSED:
        lines.append('release_by = "job"  # single nodes cannot be given back')
    elif epilog > CLEANS_S:
        lines.append(f'release_by = "job"  # if the epilog ({epilog:.0f} s) cleans GPUs or disks')
    if 2 * epilog > defaults.release_s:
        lines.append(f"release_s = {_up(2 * epilog)}  # nodes are free {epilog:.0f} s after a job")
    if _outcome(found, "rights") == REFUSED:
        lines.append("# selasticd's user needs to be a coordinator or an operator: docs/how-to/install.md")
    refused = {name for name in DEFAULT_VIA if _outcome(found, name) == REFUSED}
    refused |= {"companion"} if no_companions(found) else set()
    if refused:
        works = [name for name in DEFAULT_VIA if name not in refused]
        lines.append(f"# in elastic requests: via={'+'.join(works) or 'requeue'}")
    return lines


def _up(seconds: float) -> int:
    return math.ceil(seconds / 10) * 10


def _outcome(found: Found, name: str) -> str:
    return found[name].outcome if name in found else ""
