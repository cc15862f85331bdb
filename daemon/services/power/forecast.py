"""How many nodes will be needed in the next three hours, from how many were. Pure.

Promise: knows only steps that have passed. Limit: what comes at the same time of the day on most days is foreseen,
and nothing else; until a day has passed the forecast is persistence, that what is needed now stays.
"""

from __future__ import annotations

from statistics import fmean

STEP_S = 600.0
AHEAD, BEHIND, DAY, DAYS = 18, 12, 144, 14
"""In steps: how far it looks ahead; for how long what was needed counts as still needed; a day; in days: how many it
looks back at."""


class Demand:
    """The most nodes that were needed at once, in each step of ten minutes."""

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}
        self._rises: dict[int, int] = {}
        """By how much the most of the AHEAD steps after each was above it."""

    def add(self, step: int, nodes: int) -> None:
        """A step has passed; steps come in order."""
        self.steps[step] = nodes
        known = [self.steps.get(one) for one in range(step - AHEAD, step + 1)]
        counted = [one for one in known if one is not None]
        if len(counted) == len(known):
            self._rises[step - AHEAD] = max(counted) - counted[0]
        for of in (self.steps, self._rises):
            of.pop(step - (DAYS + 1) * DAY, None)

    def usual_rise(self, step: int) -> float:
        """By how much demand rose within three hours of this time of the day, in the mean of the last days."""
        then = (step - DAY * day for day in range(1, DAYS + 1))
        found = [self._rises[one] for one in then if one in self._rises]
        return fmean(found) if found else 0.0

    def expected(self, step: int, now: int) -> int:
        """The most nodes that will probably be needed in the next three hours, as `now` are needed in this step."""
        return round(now + self.usual_rise(step))

    def recent(self, step: int) -> int:
        """The most that were needed in the last two hours."""
        return max((self.steps.get(one, 0) for one in range(step - BEHIND, step)), default=0)
