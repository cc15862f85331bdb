"""One running daemon: its parts wired to each other, the rounds begun and ended, old records cleared away.

Promise: `stop` lets waiting supervisors go and lets the round under way finish before the store is closed.
Limit: nothing here listens, and nothing sees to it that no other daemon acts: the service does both first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from slurm_elastic.db.store import Store
from slurm_elastic.protocol.errors import StoreError

from ..api.slurm_roles import SlurmRoles
from ..api.waiters import Waiters
from ..config.settings import Settings
from ..mechanisms.timeouts import Bounds
from ..slurm.model import SlurmClient
from ..slurm.snapshot_cache import SnapshotCache
from .controller import DaemonController
from .job_registry import JobRegistry
from .rounds import Rounds
from .scheduler import Scheduler
from .systemd import stalled

log = logging.getLogger(__name__)

TIDY_S = 3600.0
"""Seconds between two clean-ups of the database."""
DECISIONS_KEEP_S = 30 * 86400.0
"""How long every decision is kept with its evidence, most of the database; of each job the last one stays longer."""


class Daemon:
    """Everything of one running daemon, wired; `start` begins the rounds, `stop` ends all."""

    def __init__(
        self,
        settings: Settings,
        client: SlurmClient,
        store: Store,
        bounds: Bounds | None = None,
        confirm: Callable[[], object] = lambda: None,
        roles: SlurmRoles | None = None,
    ) -> None:
        """confirm: raises unless this daemon may act at this moment; asked before each act."""
        self.settings, self.store = settings, store
        self.roles = roles
        self._tidied = -TIDY_S
        self._progressed = time.monotonic()
        self.waiters = Waiters()
        self.jobs = SnapshotCache(client, confirm=confirm)
        self.registry = JobRegistry(store, settings)
        self.rounds = Rounds(self.jobs, store, settings, self.registry, self.waiters, bounds=bounds)
        self.scheduler = Scheduler(self._work, settings.round_interval_s, settings.min_round_gap_s)
        self.controller = DaemonController(
            store, self.jobs, self.rounds, self.registry, self.waiters, self.scheduler.wake
        )

    def _work(self) -> None:
        if self.rounds.run():
            self.scheduler.wake()  # what it changed is seen by the next one
        self._progressed = time.monotonic()
        if self.roles is not None:
            self.roles.refresh()
        if time.monotonic() - self._tidied >= TIDY_S:
            self._tidied = time.monotonic()
            self.tidy(time.time())

    @property
    def hangs(self) -> bool:
        """No round has ended for longer than a round can take."""
        since = time.monotonic() - self._progressed
        return self.settings.mode != "off" and stalled(since, self.settings.round_interval_s)

    def status(self) -> str:
        """How it goes, in a line for `systemctl status`."""
        return f"mode {self.rounds.mode}; {self.rounds.trouble or 'rounds are well'}"

    def tidy(self, now: float) -> None:
        """Roll old reports up and forget what is older than the settings keep."""
        try:
            self.store.roll_up(now - self.settings.reports_keep_h * 3600)
            self.store.prune(now - self.settings.history_keep_days * 86400)
            self.store.prune_decisions(now - DECISIONS_KEEP_S)
        except StoreError as error:
            log.warning("old records are kept for now: %s", error)

    def start(self) -> None:
        """Rounds begin; `off` has none."""
        self._progressed = time.monotonic()
        if self.settings.mode == "off":
            return
        if self.settings.learn_prior_at:
            priors = self.rounds.priors
            self.scheduler.daily(priors.learn, self.settings.learn_prior_at, soon=priors.due())
        self.scheduler.start()

    def stop(self) -> None:
        """Let waiting supervisors go, finish the round under way, close the store."""
        self.waiters.close()
        self.scheduler.stop()
        self.store.close()
