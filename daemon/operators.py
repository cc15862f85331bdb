"""Who is Operator or Administrator in Slurm: they may do in selasticd what root may.

Promise: nobody waits for slurmdbd: it is asked in the background, once in REFRESH_S, and what it last said counts.
Limit: without slurmdbd, or where it hides its users from the daemon's, there are none; the setting `admins` names more.
"""

from __future__ import annotations

import logging
import pwd
import threading
import time
from collections.abc import Callable, Collection

from slurm_elastic.trainer_shim.errors import SlurmError

log = logging.getLogger(__name__)
REFRESH_S = 60.0


class Operators:
    """`ask` gives user names, and raises SlurmError when slurmdbd does not answer."""

    def __init__(self, ask: Callable[[], Collection[str]], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._clock = ask, clock
        self._due = float("-inf")
        self._busy = threading.Lock()
        self.uids: frozenset[int] = frozenset()

    def look(self) -> None:
        """Ask in the background if it is time."""
        if self._clock() >= self._due and self._busy.acquire(blocking=False):
            self._due = self._clock() + REFRESH_S
            threading.Thread(target=self._refresh, name="operators", daemon=True).start()

    def _refresh(self) -> None:
        try:
            self.uids = uids(self._ask())
        except SlurmError as error:
            log.debug("Slurm's operators are not known for now: %s", error)
        finally:
            self._busy.release()


def uids(users: Collection[str]) -> frozenset[int]:
    """Numbers of these users (names or numbers); a name that is unknown here can call nobody."""
    found = set()
    for user in users:
        if user.isdigit():
            found.add(int(user))
            continue
        try:
            found.add(pwd.getpwnam(user.partition("(")[0]).pw_uid)
        except KeyError:
            continue
    return frozenset(found)
