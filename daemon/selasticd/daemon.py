"""One running daemon: connects its parts, starts and stops the rounds, deletes old records.

Promise: `stop` answers waiting supervisors and waits for the round under way before it closes the store.
Limit: it neither listens nor makes sure that no other daemon acts; main does both first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from slurm_elastic.db.clock import steady_now
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.errors import StoreError

from ..api.auth import SlurmRoles
from ..api.waiters import Waiters
from ..models.priors import ENDED_EVERY_S
from ..rounds.job_registry import JobRegistry
from ..rounds.loop import Rounds
from ..slurm.model import SlurmClient
from ..slurm.slurms_clock import SlurmsClock
from ..slurm.snapshot_cache import Shares, SnapshotCache
from .controller import DaemonController
from .scheduler import Scheduler
from .settings import Settings
from .systemd import stalled

log = logging.getLogger(__name__)

DAY_S = 86400.0
RESIZE_KB = 2.0
"""A resize with its steps, its decisions and its row in the history, while they are kept in full."""
LIFE_KB = 2.5
"""What is left of a job once they are thinned."""
CLEAN_UP_S = 600.0
"""Seconds between two clean-ups of the database."""
FIRST_CLEAN_UP_S = 3600.0
"""From the start to the first one: a host that boots with a wrong clock has had the time to set it."""
DECISIONS_KEEP_S = 30 * 86400.0
"""How long advice is kept with its evidence. A job's last decision is kept longer."""
STEPS_KEEP_S = 7 * 86400.0
"""How long each step of a resize is kept, and the decision that was acted on: most of the database."""

SHARES: dict[str, Shares] = {"fairshare": "always", "auto": "counted"}
"""When Slurm's shares are read, by the setting fairness."""


class Daemon:
    """All parts of one running daemon, connected."""

    def __init__(
        self,
        settings: Settings,
        client: SlurmClient,
        store: Store,
        confirm: Callable[[], object] = lambda: None,
        roles: SlurmRoles | None = None,
        slurms_clock: SlurmsClock | None = None,
    ) -> None:
        """confirm: called before each change to Slurm; raises unless this daemon may make it now."""
        self.settings, self.store = settings, store
        self._slurms_clock = slurms_clock or SlurmsClock(client.slurms_time)
        self.roles = roles
        self._cleaned_up = time.monotonic() + FIRST_CLEAN_UP_S - CLEAN_UP_S
        self._said_size = -DAY_S
        self._round_ended = time.monotonic()
        self.waiters = Waiters()
        shares = SHARES.get(settings.fairness, "never")
        self.jobs = SnapshotCache(client, confirm=confirm, slurms_clock=self._slurms_clock, shares=shares)
        self.registry = JobRegistry(store, settings)
        self.rounds = Rounds(self.jobs, store, settings, self.registry, self.waiters)
        self.scheduler = Scheduler(self._work, settings.round_interval_s, settings.min_round_gap_s)
        self.controller = DaemonController(
            *(store, self.jobs, self.rounds, self.registry, self.waiters, self.scheduler.wake),
            settings.report_interval_s,
        )

    def _work(self) -> None:
        if self.rounds.run():
            self.scheduler.wake()  # the next round sees what this one changed
        self._round_ended = time.monotonic()
        if self.roles is not None:
            self.roles.refresh()
        if time.monotonic() - self._cleaned_up >= CLEAN_UP_S:
            self._cleaned_up = time.monotonic()
            slurms = self._slurms_clock.said()
            if slurms is not None:
                self.clean_up(min(slurms, steady_now()))

    @property
    def hangs(self) -> bool:
        """No round has ended for longer than a round can take."""
        since = time.monotonic() - self._round_ended
        return self.settings.mode != "off" and stalled(since, self.settings.round_interval_s)

    def status(self) -> str:
        """One line for `systemctl status`."""
        return f"mode {self.rounds.mode}; {self.rounds.trouble or 'rounds succeed'}"

    def clean_up(self, now: float) -> None:
        """Aggregate old reports, and delete what is older than the settings allow."""
        try:
            self.store.retention.roll_up(now - self.settings.reports_keep_h * 3600)
            self.store.retention.prune(now - self.settings.history_keep_days * 86400)
            self.store.retention.prune_decisions(now - DECISIONS_KEEP_S)
            self.store.retention.prune_decisions(now - STEPS_KEEP_S, mode="act")
            self.store.thinning.thin(now - STEPS_KEEP_S)
            if time.monotonic() - self._said_size >= DAY_S:
                self._said_size = time.monotonic()
                self._say_size(now)
        except StoreError as error:
            log.warning("old records are kept for now: %s", error)

    def _say_size(self, now: float) -> None:
        resizes, ended = self.store.thinning.pace(now)
        held = self.store.retention.size_mb()
        expected = expected_mb(resizes, ended, STEPS_KEEP_S / DAY_S, self.settings.history_keep_days)
        log.info(
            "the database has %s; a year at the pace of the last day (%d resizes, %d jobs that ended) comes to %.0f MB",
            "a size that its server knows" if held is None else f"{held:.0f} MB", resizes, ended, expected,
        )  # fmt: skip

    def start(self) -> None:
        """Start the rounds; mode `off` has none."""
        self._round_ended = time.monotonic()
        if self.settings.mode == "off":
            return
        if self.settings.learn_prior_at:
            priors = self.rounds.priors
            self.scheduler.daily(priors.learn, self.settings.learn_prior_at, soon=priors.due())
            self.scheduler.every(priors.learn_ended, ENDED_EVERY_S)
        self.scheduler.start()

    def stop(self) -> None:
        """Answer waiting supervisors, finish the round under way, close the store."""
        self.waiters.close()
        self.scheduler.stop()
        self.store.close()


def expected_mb(resizes: int, ended: int, full_days: float, history_days: float) -> float:
    """The size of the database after a year, in MB, of so many resizes and ended jobs a day, by the figures of `make
    bench-history`: for jobs that train for a day each."""
    return (resizes * RESIZE_KB * full_days + ended * LIFE_KB * min(history_days, 365.0)) / 1e3
