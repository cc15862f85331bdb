"""The clock of selasticd's host is really set, while a resize runs: by an hour, by 500 days, and set right again."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from host_clock import HostClock
from host_clock import host_clock as host_clock
from live_daemon import Selasticd, live_daemon
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox

HOUR, DAY = 3600, 86400


@pytest.mark.parametrize("step", [-HOUR, 500 * DAY])
def test_jobs_are_resized_and_make_room_whatever_the_clock_says(
    empty_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, host_clock: HostClock, step: int
) -> None:
    """A growth under way is finished, an ordinary job gets its nodes, a job that starts meanwhile is managed and grows;
    so too after selasticd was killed, and after the clock was set right. No duration is wrong, and it is told once."""
    began, more = time.time(), "\ncooldown_grow_s = 3\n"
    with monkeypatch.context() as clock:
        for name, value in host_clock.env.items():
            clock.setenv(name, value)
        with live_daemon(empty_sandbox, clock, more) as daemon:
            job = daemon.submit("-N1", "--gres=gpu:a100:4", hold="granted")
            log = daemon.stubs / f"{job}.log"
            wait_until(lambda: log.exists() and "holds at granted" in log.read_text(), 60, daemon.log)
            host_clock.set(step)
            wait_until(lambda: told(daemon, f"was set by {step:+d} s"), 60, daemon.log)
            (daemon.stubs / f"{job}.go").touch()
            daemon.settles_at(job, 12)
            gives_way(daemon, job)
            differs = f"{'ahead of' if step > 0 else 'behind'} Slurm's"
            assert told(daemon, differs) == 1, daemon.log()
            daemon.kill()
            daemon.start()
            gives_way(daemon, job)
            host_clock.set(0)
            wait_until(lambda: told(daemon, "of Slurm agree again"), 60, daemon.log)
            gives_way(daemon, job)
            assert told(daemon, differs) == 2, "once by each of the two daemons"
            assert not {"resize_withdrawn", "resize_failed"} & set(daemon.events(job)), daemon.log()
            rows = (daemon.client().get(f"/v1/acct?job={job}") or {})["allocations"]
    assert [row["gpus"] for row in rows] == [4, *[12, 4] * 3, 12]
    times = [began, *(row["start"] for row in rows), time.time()]
    assert all(later - earlier > -2 for earlier, later in pairwise(times)), times
    assert sum(row["elapsed_s"] for row in rows) <= times[-1] - began + 2


def gives_way(daemon: Selasticd, job: int) -> None:
    """The job makes room for an ordinary one, and grows again once that is gone; another one is managed beside it."""
    rigid = daemon.rigid(7)
    wait_until(lambda: daemon.jobs()[rigid].running, 60, daemon.log)
    daemon.settles_at(job, 4)
    daemon.slurm.cancel(rigid)
    daemon.settles_at(job, 12)
    other = daemon.submit("-N1", "--gres=gpu:a100:4")
    daemon.settles_at(other, 12)
    daemon.finish(other)
    wait_until(lambda: other not in daemon.jobs(), 60, daemon.log)


def told(daemon: Selasticd, words: str) -> int:
    return (daemon.folder / "selasticd.log").read_text().count(words)
