"""Slurm's time, as far as it differs from this host's: sdiag tells it, a clock that nobody sets carries it on.

Promise: what is compared with Slurm's times (when a job was submitted, may begin, has ended) is compared by Slurm's own
clock, though this host's is wrong or is set. A difference of a minute or more is told once.
Limit: sdiag says whole seconds, so a difference below AGREE_S is none; a step of Slurm's clock is seen within LOOK_S.
"""

import logging
import threading
import time
from collections.abc import Callable

from slurm_elastic.db.clock import boot_time
from slurm_elastic.protocol.errors import SlurmError

log = logging.getLogger(__name__)
LOOK_S = 60.0
"""Between two questions to Slurm, unless this host's clock was set."""
AGREE_S = 3.0
"""Clocks that differ by less agree."""
DIFFER_S = 60.0
"""From here on somebody should set a clock."""


class SlurmsClock:
    """Called for Slurm's time, in unix seconds; thread-safe. `ask` is SlurmClient.slurms_time."""

    def __init__(
        self,
        ask: Callable[[], float],
        host: Callable[[], float] = time.time,
        ticks: Callable[[], float] = boot_time,
    ) -> None:
        self._ask, self._host, self._ticks = ask, host, ticks
        self._lock = threading.Lock()
        self._offset: float | None = None
        """Slurm's time less the clock that nobody sets; None: Slurm has not said it."""
        self._looked, self._seen = -LOOK_S, 0.0
        """When Slurm was asked last, and how far this host was ahead then."""
        self._told = False

    def __call__(self) -> float:
        """Slurm's time; this host's where both agree, and until Slurm has said its own."""
        return self._host() - self.ahead()

    def said(self) -> float | None:
        """Slurm's time as it follows from what Slurm said last; None: it has said nothing yet."""
        offset = self._offset
        return None if offset is None else self._ticks() + offset

    def ahead(self) -> float:
        """How many seconds this host's clock is ahead of Slurm's; 0 where they agree."""
        slurms = self.said()
        ahead = 0.0 if slurms is None else self._host() - slurms
        return ahead if abs(ahead) >= AGREE_S else 0.0

    def look(self) -> None:
        """Ask Slurm, if it is time to or this host's clock was set. One that does not answer is asked later."""
        with self._lock:
            tick = self._ticks()
            if tick - self._looked < LOOK_S and abs(self.ahead() - self._seen) < AGREE_S:
                return
            self._looked = tick
            try:
                slurms = self._ask()
            except SlurmError as error:
                # Where clocks differ by more than MUNGE takes, Slurm cannot say so: what it said before has to do.
                log.debug("Slurm does not say its time: %s", error)
            else:
                self._offset = slurms - self._ticks()
            self._seen = self.ahead()
            self._tell()

    def _tell(self) -> None:
        differ = abs(self._seen) >= DIFFER_S
        if differ and not self._told:
            where = "ahead of" if self._seen > 0 else "behind"
            log.warning("the clock of this host is %.0f s %s Slurm's: set one of them", abs(self._seen), where)
        elif self._told and not differ:
            log.info("the clocks of this host and of Slurm agree again")
        self._told = differ
