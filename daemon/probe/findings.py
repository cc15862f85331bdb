"""What follows for a site from what a probe found: the settings to write. Pure.

Limit: one partition stands for all, and one look for every hour of the day.
"""

from __future__ import annotations

from collections.abc import Collection

from slurm_elastic.protocol.messages import REFUSED, Tried
from slurm_elastic.protocol.request import DEFAULT_VIA

from ..actions.refusals import EPILOG, SHRINK, companion_by, granted_s, no_companions, seconds
from ..selasticd.settings import Settings

CLEANS_S = 5.0
"""An epilog that takes longer cleans more than processes."""


def settings_to_write(tried: Collection[Tried]) -> list[str]:
    """Lines for selasticd.toml, and for elastic requests; each says why. Empty: the defaults fit."""
    found, defaults = {one.name: one for one in tried}, Settings()
    granted, epilog = granted_s(found), seconds(found, EPILOG)
    no = {one.name for one in tried if one.outcome == REFUSED} | ({"companion"} if no_companions(found) else set())
    cleans = (
        "single nodes cannot be given back" if SHRINK in no else f"if the epilog ({epilog:.0f} s) cleans GPUs or disks"
    )
    via = "+".join(name for name in DEFAULT_VIA if name not in no) or "requeue"
    lines = {
        'companion_by = "sbatch"  # salloc is refused': companion_by(found),
        f"companion_wait_s = {2 * granted:.0f}  # a companion was granted after {granted:.0f} s": (
            2 * granted > defaults.companion_wait_s
        ),
        f'release_by = "job"  # {cleans}': SHRINK in no or epilog > CLEANS_S,
        f"release_s = {2 * epilog:.0f}  # nodes are free {epilog:.0f} s after a job": 2 * epilog > defaults.release_s,
        "# selasticd's user has to be a coordinator or an operator: docs/how-to/install.md": "rights" in no,
        f"# in elastic requests: via={via}": no & set(DEFAULT_VIA),
        "# two jobs on one node get the same GPUs: gres.conf is to be mended, or jobs get whole nodes": "gpus" in no,
        "# nodes do not reach each other: docs/how-to/sites.md#several-networks-names-that-mean-nothing": "network"
        in no,
    }
    found_lines = [line for line, holds in lines.items() if holds]
    return ["[resizes]"] * (not all(line.startswith("#") for line in found_lines)) + found_lines
