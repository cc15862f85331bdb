"""Which of several daemons on one database acts: waits for the database's lease, then keeps it renewed.

Promise: one daemon per state directory (a lock file) and one per database (the lease). No other part of the daemon is
built before the lease is held, so that a standby has no stale state; a daemon that loses the lease exits, and starts
again as a standby. Limit: Slurm knows no fencing number. The lease is checked right before each change to Slurm; a
moment remains between the two. The lock holds on one host, or where the file system locks for all hosts.
"""

import fcntl
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slurm_elastic.db.engine import Database
from slurm_elastic.db.lease import Lease
from slurm_elastic.db.migrate import prepare
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.errors import ConfigError, LeaseLost, NotAllowed, StoreError

from .settings import Settings

log = logging.getLogger(__name__)

TRY_S = 10.0
"""Longest time between two tries of a standby to take the lease."""
RENEWALS = 5
"""Renewals in the time that a lease lasts."""


class Leader:
    """Holds the lease; a thread renews it until `stop`, or until it is lost."""

    def __init__(self, lease: Lease, lease_s: float) -> None:
        self.lease, self._every = lease, lease_s / RENEWALS
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def confirm(self, store: Store) -> None:
        """Raise LeaseLost or StoreError unless this daemon may act at this moment. See the module's limit."""
        self.lease.check()
        store.confirm()
        # Again: the database may have taken long to answer.
        self.lease.check()

    def stop(self) -> None:
        """Stop renewing, and release the lease."""
        self._stopped.set()
        self._thread.join()
        if not self.lease.lost:
            with suppress(StoreError):
                self.lease.release()

    def _keep(self) -> None:
        while not self._stopped.wait(self._every):
            try:
                self.lease.renew()
            except LeaseLost as error:
                log.error("%s; this one stops", error)
                return
            except StoreError as error:
                log.warning("the lease could not be renewed: %s", error)


@contextmanager
def instance_lock(settings: Settings) -> Iterator[Path]:
    """Hold the state directory's lock and yield its path. NotAllowed when another daemon holds it."""
    path = Path(settings.state_dir) / "selasticd.lock"
    try:
        handle = path.open("a")
    except OSError as error:
        raise ConfigError(f"state_dir={settings.state_dir} cannot be written ({error.strerror})") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotAllowed(f"another selasticd runs on state_dir={settings.state_dir}; stop it first") from None
        except OSError as error:
            log.warning(
                "no lock on state_dir=%s (%s): make sure that only one daemon uses it", path.parent, error.strerror
            )
        yield path


@contextmanager
def leading(
    url: str, lock_file: Path, lease_s: float, standby: Callable[[str], object] = lambda holder: None
) -> Iterator[Leader]:
    """Wait for the database's lease, hold it in the block, release it after.

    lock_file: locked by this process. standby: called with the holder's name at every try. Raises StoreError.
    """
    database = Database(url)
    try:
        prepare(database)
        lease = Lease(database, _lock_identity(lock_file), f"{socket.gethostname()} pid {os.getpid()}", lease_s)
        _wait_for_lease(lease, lease_s, standby)
        leader = Leader(lease, lease_s)
        leader.start()
        try:
            yield leader
        finally:
            leader.stop()
    finally:
        database.close()


def _wait_for_lease(lease: Lease, lease_s: float, standby: Callable[[str], object]) -> None:
    logged = ""
    while True:
        try:
            held = lease.try_take()
        except StoreError as error:
            if not logged:
                raise
            # A standby waits through a database that is down for a while.
            log.warning("standing by: the lease could not be read: %s", error)
        else:
            if held is None:
                break
            if held.who != logged:
                logged = held.who
                log.info("standing by: selasticd at %s holds the lease (number %d)", held.who, held.fence)
            standby(held.who)
        threading.Event().wait(min(TRY_S, lease_s / RENEWALS))
    log.info("holds the lease, number %d", lease.fence)


def _lock_identity(lock_file: Path) -> str:
    """Identifies the lock file among all hosts: who holds its lock knows that the last holder has died."""
    there = lock_file.stat()
    return f"{socket.gethostname()}:{_boot_id()}:{there.st_dev}:{there.st_ino}"


def _boot_id() -> str:
    # A sandboxed unit cannot read the boot id; either distinguishes two hosts.
    for path in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id"):
        with suppress(OSError):
            return Path(path).read_text().strip()
    return ""
