"""When the next round begins: at least every interval, sooner after an event, never sooner than a gap after the last.

Runs on APScheduler. Limit: one round at a time; after an event during a round one more follows. APScheduler uses the
host's clock; `check_clock` makes sure that nothing waits for hours because that was set back.
"""

from __future__ import annotations

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
        """The first round begins at once."""
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
