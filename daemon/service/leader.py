"""Which of several daemons on one database acts: waits for the database's lease, then keeps it renewed.

Promise: nothing of the daemon is built before the lease is held, so a standby remembers nothing that could be stale;
who loses it ends, and starts anew as a standby. Limit: Slurm knows no fencing number. An act is confirmed against the
database right before Slurm is asked, which leaves the moment between the two.
"""

from __future__ import annotations

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
from slurm_elastic.protocol.errors import ConfigError, LeaseLost, StoreError

from ..config.settings import Settings

log = logging.getLogger(__name__)

LOOK_S = 10.0
"""Longest time between two looks of a standby at the lease."""
RENEWALS = 5
"""Renewals in the time that a lease lasts."""


class Leader:
    """A lease that is held, and renewed by a thread of its own until `stop`."""

    def __init__(self, lease: Lease, lease_s: float) -> None:
        self.lease, self._every = lease, lease_s / RENEWALS
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._on_lost: Callable[[], object] | None = None
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    @property
    def fence(self) -> int:
        """The number under which this daemon acts."""
        return self.lease.fence

    @property
    def lost(self) -> bool:
        """Another daemon has taken over."""
        return self.lease.lost

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def on_lost(self, call: Callable[[], object]) -> None:
        """Call this once when the lease is lost; at once if it is already."""
        with self._lock:
            self._on_lost = call
            if not self.lost:
                return
        call()

    def confirm(self, store: Store) -> None:
        """Raise LeaseLost or StoreError unless this daemon may act at this moment. See the module's limit."""
        self.lease.check()
        store.confirm()
        # Again: the database may have kept us waiting.
        self.lease.check()

    def stop(self) -> None:
        """Stop renewing and let the next one in."""
        self._stopped.set()
        self._thread.join()
        if not self.lost:
            with suppress(StoreError):
                self.lease.release()

    def _keep(self) -> None:
        while not self._stopped.wait(self._every):
            try:
                self.lease.renew()
            except LeaseLost as error:
                log.error("%s; this one stops", error)
                with self._lock:
                    call = self._on_lost
                if call is not None:
                    call()
                return
            except StoreError as error:
                log.warning("the lease could not be renewed: %s", error)


@contextmanager
def instance_lock(settings: Settings) -> Iterator[Path]:
    """Hold the state directory's lock, a file whose path is given; ConfigError when another daemon does."""
    path = Path(settings.state_dir) / "selasticd.lock"
    try:
        handle = path.open("a")
    except OSError as error:
        raise ConfigError(f"state_dir={settings.state_dir} cannot be written ({error.strerror})") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another selasticd runs on state_dir={settings.state_dir}; stop it first") from None
        except OSError as error:
            log.warning("no lock on state_dir=%s (%s): see to it that one daemon uses it", path.parent, error.strerror)
        yield path


@contextmanager
def leading(
    url: str, lock_file: Path, lease_s: float, standby: Callable[[str], object] = lambda holder: None
) -> Iterator[Leader]:
    """Wait until this process has the database's lease, hold it in the block, give it back after.

    lock_file: held by this process. standby: called with the holder's name at every look. Raises StoreError.
    """
    database = Database(url)
    try:
        prepare(database)
        lease = Lease(database, _place(lock_file), f"{socket.gethostname()} pid {os.getpid()}", lease_s)
        _wait(lease, lease_s, standby)
        leader = Leader(lease, lease_s)
        leader.start()
        try:
            yield leader
        finally:
            leader.stop()
    finally:
        database.close()


def _wait(lease: Lease, lease_s: float, standby: Callable[[str], object]) -> None:
    told = ""
    while True:
        try:
            held = lease.try_take()
        except StoreError as error:
            if not told:
                raise
            # A database that cannot be asked for a while is what one stands by for.
            log.warning("standing by: the lease could not be looked at: %s", error)
        else:
            if held is None:
                break
            if held.who != told:
                told = held.who
                log.info("standing by: selasticd at %s has the lease (number %d)", held.who, held.fence)
            standby(held.who)
        threading.Event().wait(min(LOOK_S, lease_s / RENEWALS))
    log.info("has the lease, number %d", lease.fence)


def _place(lock_file: Path) -> str:
    """Names the lock file among all hosts' files: whoever holds its lock has seen the last holder die."""
    there = lock_file.stat()
    return f"{socket.gethostname()}:{_host()}:{there.st_dev}:{there.st_ino}"


def _host() -> str:
    # The boot's id is hidden from a sandboxed unit; either tells two hosts apart.
    for path in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id"):
        with suppress(OSError):
            return Path(path).read_text().strip()
    return ""
