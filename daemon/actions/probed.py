"""What `selastic probe` found of a site, as plans use it. Pure.

Promise: only what Slurm or the site refused as such rules anything out; a limit that was full, or nodes that were busy,
say nothing of the next hour. Limit: it holds until it is probed again or forgotten,
however old it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurm_elastic.protocol.messages import REFUSED, WORKS, Tried

SALLOC, SBATCH, SHRINK, REQUEUE, COMPONENT, EPILOG = "salloc", "sbatch", "shrink", "requeue", "component", "epilog"
"""What is tried and decides how jobs are resized; all else is for people."""
Found = Mapping[str, Tried]
"""By the name of what was tried."""
MOST_S = 1800.0
"""For nothing that a user says are nodes kept longer than any setting allows."""
_FOR_NOW = re.compile(r"limit|violates accounting|busy|not available|odes required for job|temporarily", re.IGNORECASE)


def refused(found: Found, name: str) -> str:
    """The words with which it is refused whenever it is asked; empty: it is not."""
    one = found.get(name)
    return "" if one is None or one.outcome != REFUSED or _FOR_NOW.search(one.said) else one.said


def no_companions(found: Found) -> str:
    """Why there are no companions, in neither form; empty: there are."""
    return refused(found, SALLOC) and refused(found, SBATCH)


def companion_by(found: Found) -> str:
    """The one form in which a companion can be had; empty: salloc can be tried first."""
    works = SBATCH in found and found[SBATCH].outcome == WORKS
    return "sbatch" if works and refused(found, SALLOC) else ""


def seconds(found: Found, name: str) -> float:
    """How long it took; 0: that is not known."""
    return (found[name].seconds or 0.0) if name in found else 0.0


def granted_s(found: Found) -> float:
    """After how many seconds the first companion was granted, MOST_S at most; 0: that is not known."""
    return min(MOST_S, seconds(found, SALLOC) or seconds(found, SBATCH))
