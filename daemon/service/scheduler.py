"""When the next round begins: at least every interval, sooner after an event, never sooner than a gap after the last.

A thin shell over APScheduler. Limit: one round at a time; an event during a round makes one more follow it. APScheduler
goes by the host's clock; `check_clock` sees to it that nothing waits for hours because that was set back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger

log = logging.getLogger(__name__)
STEP_S = 2.0
"""How far the host's clock may run away from the time that passes before it counts as set."""
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
        self._often = [_ROUND]
        self._ahead_s = _ahead_s()

    def start(self) -> None:
        """The first round begins at once."""
        self._scheduler.add_job(
            self._run,
            "interval",
            seconds=self._interval.total_seconds(),
            id=_ROUND,
            max_instances=1,
            coalesce=True,
            misfire_grace_time=None,
            next_run_time=_now(),
        )
        self._scheduler.start()

    def daily(self, work: Callable[[], object], at: str, soon: bool) -> None:
        """Call `work` every day at this time (HH:MM by this host's clock), on a thread beside the rounds; `soon`: and
        now. A day that was slept through is made up for. `work` must not raise."""
        hour, minute = at.split(":")
        more = {"next_run_time": _now()} if soon else {}
        self._scheduler.add_job(
            work, CronTrigger(hour=hour, minute=minute), max_instances=1, coalesce=True, misfire_grace_time=None, **more
        )

    def every(self, work: Callable[[], object], seconds: float) -> None:
        """Call `work` so often, from now on, on a thread beside the rounds. `work` must not raise."""
        job = self._scheduler.add_job(
            work, "interval", seconds=seconds, max_instances=1, coalesce=True, misfire_grace_time=None,
            next_run_time=_now(),
        )  # fmt: skip
        self._often.append(job.id)

    def check_clock(self) -> None:
        """Called several times a second: when the host's clock has been set, what is due every few seconds is due now,
        and counts from there. What is due at a time of day comes at that time."""
        ahead_s = _ahead_s()
        if abs(ahead_s - self._ahead_s) < STEP_S:
            return
        log.warning("the clock of this host was set by %+.0f s", ahead_s - self._ahead_s)
        self._ahead_s = ahead_s
        with self._lock:
            self._ended = _NEVER
        for each in self._often:
            if self._scheduler.running and self._scheduler.get_job(each) is not None:
                self._scheduler.modify_job(each, next_run_time=_now())

    def wake(self) -> None:
        """Let the next round come as soon as it may."""
        with self._lock:
            if self._busy:
                self._again = True
            else:
                self._bring_forward()

    def stop(self) -> None:
        """No further round; one that is under way is waited for."""
        with self._lock:
            self._stopped = True
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)

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


def _ahead_s() -> float:
    """What the host's clock shows more than a clock that nobody sets."""
    return time.time() - time.monotonic()
