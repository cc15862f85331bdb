"""How often Python's cyclic collector looks through what the daemon remembers.

By default it looks through all of it twice in a round of thousands of jobs, and everything else, answers to `selastic
status` among it, stands still meanwhile: 0.2 s at 5,000 jobs. What is remembered is freed without it; what libraries
leave behind in cycles is found later all the same.
"""

from __future__ import annotations

import gc

YOUNG, MIDDLE, OLD = 20_000, 10, 20
"""New objects between two looks at the youngest; looks at one generation between two at the next."""


def relax() -> None:
    """Let what is imported by now out of the collector's sight, and make it look at the rest less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
