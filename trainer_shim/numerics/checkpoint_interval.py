"""How long to train between two checkpoints: long enough to be worth their cost, short enough for what fails.

    t = sqrt(2 c M) (1 + sqrt(c / 2M) / 3 + (c / 2M) / 9) - c        c < 2M; else M

c: seconds that the training stands still for a checkpoint; M: mean seconds between what makes it go back to one.
Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006); its
first term is J. W. Young's (CACM 17, 1974). Promise: between LEAST_S and MOST_S, or as it was told where something is
not known. Limit: failures that come one by one; what writing in the background costs is held at a tenth of the time.
"""

from __future__ import annotations

import math

LEAST_S, MOST_S = 60.0, 3600.0
WRITING = 0.1
"""Most of the time that is spent writing, beside the training."""


def daly_s(cost_s: float, between_s: float) -> float:
    """The formula above; both are positive."""
    ratio = cost_s / (2.0 * between_s)
    if ratio >= 1.0:
        return between_s
    return math.sqrt(2.0 * cost_s * between_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - cost_s


def interval_s(cost_s: float, write_s: float, between_s: float, otherwise_s: float) -> float:
    """Seconds between two checkpoints that cost a pause of `cost_s` and are written in `write_s`; `otherwise_s` while
    no cost was measured or no failure was observed (`between_s` is 0)."""
    if cost_s <= 0 or between_s <= 0:
        return otherwise_s
    return min(MOST_S, max(LEAST_S, write_s / WRITING, daly_s(cost_s, between_s)))
