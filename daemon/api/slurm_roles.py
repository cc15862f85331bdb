"""What callers may do according to Slurm: who is Operator or Administrator, and so an admin of selasticd, and whether
users see each other's jobs.

Promise: no request waits for Slurm: it is asked in the background every REFRESH_S seconds, and its last answer counts.
Limit: without slurmdbd, or where it hides its users from the daemon's, there are no operators; the setting `admins`
names more.
"""

from __future__ import annotations

import logging
import pwd
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from slurm_elastic.protocol.errors import SlurmError

log = logging.getLogger(__name__)
REFRESH_S = 60.0


class SlurmRoles:
    """`ask` gives user names, `private_data` slurmctld's PrivateData; both raise SlurmError when there is no answer."""

    def __init__(
        self,
        ask: Callable[[], Collection[str]],
        private_data: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._private_data, self._clock = ask, private_data, clock
        self._due = float("-inf")
        self._busy = threading.Lock()
        self.uids: frozenset[int] = frozenset()
        self.private: bool | None = None
        """Others' jobs are hidden; None: Slurm has not said yet."""

    def refresh(self) -> None:
        """Ask in the background if it is due."""
        if self._clock() >= self._due and self._busy.acquire(blocking=False):
            self._due = self._clock() + REFRESH_S
            threading.Thread(target=self._ask_slurm, name="operators", daemon=True).start()

    def _ask_slurm(self) -> None:
        try:
            with _logged("Slurm's operators"):
                self.uids = uids(self._ask())
            with _logged("Slurm's PrivateData"):
                self.private = hides_jobs(self._private_data())
        finally:
            self._busy.release()


@contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except SlurmError as error:
        log.debug("%s: not known for now: %s", what, error)


def hides_jobs(private_data: str) -> bool:
    """Whether this value of Slurm's PrivateData hides others' jobs."""
    return bool({"jobs", "all"} & set(private_data.lower().split(",")))


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
