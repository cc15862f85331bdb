"""One running daemon: connects its parts, starts and stops the rounds, deletes old records.

A round begins at least every interval, sooner after an event, never sooner than a gap after the last; one at a time,
and after an event during a round one more follows. APScheduler uses the host's clock; `check_clock` makes sure that
nothing waits for hours because that was set back.

Promise: `stop` answers waiting supervisors and waits for the round under way before it closes the store.
Limit: it neither listens nor makes sure that no other daemon acts; main does both first.
"""

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from apscheduler.job import Job
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from slurm_elastic.db.clock import steady_now
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.errors import StoreError

from ..api.auth import SlurmRoles
from ..api.controller import DaemonController
from ..models.priors import ENDED_EVERY_S
from ..rounds.job_registry import JobRegistry
from ..rounds.loop import Rounds
from ..rounds.waiters import Waiters
from ..slurm.model import SlurmClient
from ..slurm.slurms_clock import SlurmsClock
from ..slurm.snapshot_cache import Shares, SnapshotCache
from .settings import Settings
from .systemd import stalled

log = logging.getLogger(__name__)
CLOCK_STEP_S = 2.0
"""A larger difference between the host's clock and the time that has passed means that the clock was set."""
_ROUND = "round"
_NEVER = datetime.min.replace(tzinfo=timezone.utc)


class Scheduler:
    """Calls `work` from one thread of its own until it is stopped. `work` must not raise."""

    def __init__(self, work: Callable[[], object], interval_s: float, gap_s: float) -> None:
        self._work, self._interval, self._gap = work, timedelta(seconds=interval_s), timedelta(seconds=gap_s)
        self._lock = threading.Lock()
        self._busy = self._again = self._stopped = False
        self._ended = _NEVER
        self._scheduler = BackgroundScheduler(timezone=timezone.utc)
        self._interval_jobs = [_ROUND]
        self._clock_offset = _clock_offset()

    def start(self) -> None:
        self._add(self._run, IntervalTrigger(seconds=self._interval.total_seconds()), id=_ROUND, next_run_time=_now())
        self._scheduler.start()

    def daily(self, work: Callable[[], object], at: str, soon: bool) -> None:
        """Call `work` every day at this time (HH:MM by this host's clock), on a thread beside the rounds; `soon`: also
        now. A time missed while the host slept is made up for. `work` must not raise."""
        hour, minute = at.split(":")
        more = {"next_run_time": _now()} if soon else {}
        self._add(work, CronTrigger(hour=hour, minute=minute), **more)

    def every(self, work: Callable[[], object], seconds: float) -> None:
        """Call `work` now and every so many seconds, on a thread beside the rounds. `work` must not raise."""
        self._interval_jobs.append(self._add(work, IntervalTrigger(seconds=seconds), next_run_time=_now()).id)

    def check_clock(self) -> None:
        """Called several times a second: when the host's clock has been set, interval work is due now, and again each
        interval. Daily work stays due at its time of day."""
        offset = _clock_offset()
        if abs(offset - self._clock_offset) < CLOCK_STEP_S:
            return
        log.warning("the clock of this host was set by %+.0f s", offset - self._clock_offset)
        self._clock_offset = offset
        with self._lock:
            self._ended = _NEVER
        for each in self._interval_jobs:
            if self._scheduler.running and self._scheduler.get_job(each) is not None:
                self._scheduler.modify_job(each, next_run_time=_now())

    def wake(self) -> None:
        """Start the next round as soon as the gap allows."""
        with self._lock:
            if self._busy:
                self._again = True
            else:
                self._bring_forward()

    def stop(self) -> None:
        """No further round; waits for one that is under way."""
        with self._lock:
            self._stopped = True
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)

    def _add(self, work: Callable[[], object], trigger: BaseTrigger, **more: Any) -> Job:
        """One call at a time; a time that was missed is made up for, once."""
        return self._scheduler.add_job(work, trigger, max_instances=1, coalesce=True, misfire_grace_time=None, **more)

    def _run(self) -> None:
        with self._lock:
            if self._stopped:
                return
            self._busy, self._again = True, False
        try:
            self._work()
        finally:
            with self._lock:
                self._busy, self._ended = False, _now()
                if self._again:
                    self._bring_forward()

    def _bring_forward(self) -> None:
        if self._stopped:
            return
        due = max(_now(), self._ended + self._gap)
        job = self._scheduler.get_job(_ROUND)
        if job is not None and (job.next_run_time is None or job.next_run_time > due):
            self._scheduler.modify_job(_ROUND, next_run_time=due)


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _clock_offset() -> float:
    """The host's clock, less a clock that cannot be set."""
    return time.time() - time.monotonic()


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
