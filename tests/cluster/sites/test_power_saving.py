"""Where Slurm puts idle nodes to sleep: what sleeps is counted, and a setting says what is worth keeping awake."""

from __future__ import annotations

import pytest
from live_daemon import live_daemon
from site_cluster import SiteCluster
from waiting import wait_until


def test_what_sleeps_is_told(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has no GPU left to grow onto is told how many are asleep, and not that no other size is worth it."""
    programs = {"SuspendProgram": "/bin/true", "ResumeProgram": "/bin/true", "SuspendExcNodes": "n1"}
    site.configure(SuspendTime="1", SuspendTimeout="1", ResumeTimeout="60", **programs)
    wait_until(
        lambda: site.sandbox.run(["sinfo", "-h", "-N", "-pmain", "-t", "idle", "-o", "%T"]).stdout.count("~") == 7, 90
    )
    with live_daemon(site.sandbox, monkeypatch) as daemon:
        elastic = daemon.submit("-N1", "-wn1", "--gres=gpu:a100:4")
        daemon.settles_at(elastic, 4)

        def told() -> str:
            return " ".join(daemon.selastic("explain", str(elastic)).stdout.split())

        try:
            wait_until(lambda: "28 GPUs asleep" in told(), 60, told)
            assert "worth" not in told().partition("Considered")[2], told()
        finally:
            site.reset()  # the nodes are awake again when the daemon's jobs are cleared away


def test_growth_keeps_awake_what_it_is_worth(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle nodes are left to sleep by a job to which further GPUs are worth less than awake_gain says. At its batch a
    step on eight GPUs is less than twice as fast, also by what the model says of eight before they are measured."""
    small = "elastic:gpus=4-12,step=4,batch=240-240"
    site.configure(SuspendProgram="/bin/true", ResumeProgram="/bin/true", SuspendTime="86400")
    with live_daemon(site.sandbox, monkeypatch, "awake_gain = 0.99") as daemon:
        elastic = daemon.submit("-N1", "--gres=gpu:a100:4", comment=small)

        def told() -> str:
            return " ".join(daemon.selastic("explain", str(elastic)).stdout.split())

        wait_until(lambda: "28 idle GPUs may go to sleep" in told(), 60, told)
        daemon.settles_at(elastic, 4)
    with live_daemon(site.sandbox, monkeypatch, "awake_gain = 0.02") as daemon:
        daemon.settles_at(daemon.submit("-N1", "--gres=gpu:a100:4", comment=small), 12)
