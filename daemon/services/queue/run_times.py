"""How long a job will probably run: the median of those like it that have ended. Pure.

The rolling median of a user's own jobs of the same name and size is what Helios (Hu et al., SC 2021) orders by; on
public traces it was as good as learned models.
"""

import re
from bisect import bisect_right
from collections import OrderedDict, deque
from statistics import median

from slurm_elastic.protocol.records import record

LAST = 20
"""How many ended jobs of a kind count."""
MOST_KINDS = 50_000
_NUMBER = re.compile(r"\d+")


@record(frozen=True, slots=True)
class Ended:
    """A job that has run and ended."""

    user: str
    name: str
    gpus: float
    seconds: float
    """How long it ran."""


class RunTimes:
    """Of the jobs of one cluster; those of a kind nobody has seen for long are forgotten first."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[object, ...], deque[float]] = OrderedDict()

    def add(self, ended: Ended) -> None:
        """A job has ended; in the order of the ends."""
        for kind in _kinds(ended.user, ended.name, ended.gpus):
            self._last.setdefault(kind, deque(maxlen=LAST)).append(ended.seconds)
            self._last.move_to_end(kind)
        while len(self._last) > MOST_KINDS:
            self._last.popitem(last=False)

    def left_s(self, user: str, name: str, gpus: float, limit_s: float, ran_s: float = 0.0) -> float:
        """Seconds that a job will still run, at least one: the median of those like it that ran longer than it has.

        Like it are the user's of the same name and size, else of the same size, else all. limit_s: the time limit, the
        most that is believed, and what counts where nothing is known; infinite: a day.
        """
        rest = limit_s - ran_s if limit_s < float("inf") else max(86400.0, ran_s)
        for kind in _kinds(user, name, gpus):
            seen = sorted(self._last.get(kind, ()))
            longer = seen[bisect_right(seen, ran_s) :]
            if longer:
                return max(1.0, min(median(longer) - ran_s, rest))
        return max(1.0, rest)


def _kinds(user: str, name: str, gpus: float) -> tuple[tuple[object, ...], ...]:
    """From the closest to the widest. Runs that are told apart by a number have one name."""
    return (user, _NUMBER.sub("0", name), gpus), (user, gpus), (user,)
