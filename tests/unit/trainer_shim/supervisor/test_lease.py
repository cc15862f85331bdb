"""One supervisor per job directory: beside a live one, after a killed one, on a host that shares no locks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from local_run import Start

from slurm_elastic.protocol.errors import ConfigError
from slurm_elastic.trainer_shim.allocation import lease
from slurm_elastic.trainer_shim.allocation.lease import Lease


def test_a_second_run_is_refused_and_one_after_a_kill_goes_on(start: Start, tmp_path: Path) -> None:
    """While the first trains; kill -9 of all its processes leaves nothing that holds up the next."""
    words = ("--nproc 1", 2000, 1, 0.02)
    first = start(*words, alone=True)
    first.says("generation 1: 1 workers")
    second = start(*words, alone=True, out="second.txt")
    assert second.wait() == 2, second.text()
    assert f"{first.job_dir} is in use by the supervisor on {os.uname().nodename} (process " in second.text()
    os.killpg(first.process.pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    third = start(*words, alone=True, out="third.txt")
    assert third.wait() == 0, third.text()
    assert "generation 2: 1 workers" in third.text()


def test_copies_of_a_launcher_leave_nothing_behind(start: Start, tmp_path: Path) -> None:
    """The sentence comes before anything is made, from one of them."""
    said = []
    for rank in ("0", "1"):
        env = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": rank}
        run = start("--nproc 1", 32, 1, 0, alone=True, env=env)
        assert run.wait() == 2, run.text()
        said.append(run.text())
    assert "mpirun has started selastic run 2 times" in said[0] and said[0].count("\n") == 1 and said[1] == ""
    assert not (tmp_path / "job").exists()


@pytest.fixture
def other_host(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """other_host("seen"): leases made from now on are of another host, which sees this one's locks; "unseen": of one
    which does not; "none": of one whose mount has no locks."""

    def move(locks: str) -> None:
        def flock(file: int, how: int) -> None:
            if locks != "unseen":
                raise BlockingIOError if locks == "seen" else OSError(38, "Function not implemented")

        monkeypatch.setattr(lease, "_boot", lambda: "another")
        monkeypatch.setattr(lease.fcntl, "flock", flock)

    return move


@pytest.mark.parametrize("locks", ["seen", "unseen", "none"])
def test_a_lease_on_another_host_counts_while_it_is_renewed(
    tmp_path: Path, other_host: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, locks: str
) -> None:
    """Whatever its mount says of locks. A silent one (its host has crashed) is taken over, and its holder, should it
    come back, finds that out; one that was given back is free at once."""
    first = Lease(tmp_path, "7")
    other_host(locks)
    monkeypatch.setattr(lease.time, "sleep", lambda seconds: first.renew())
    with pytest.raises(ConfigError, match="in use by the supervisor of job 7 on "):
        Lease(tmp_path, "8")
    monkeypatch.setattr(lease.time, "sleep", lambda seconds: None)
    second = Lease(tmp_path, "8", silent_s=0.01)
    assert second.renew() and not first.renew()
    first.give_back()
    assert second.renew()
    second.give_back()
    monkeypatch.setattr(lease.time, "sleep", lambda seconds: pytest.fail("waits for a lease that was given back"))
    if locks != "seen":
        assert Lease(tmp_path, "9").renew()


def test_a_job_that_slurm_starts_again_waits_for_nobody(tmp_path: Path, other_host: Callable[[str], None]) -> None:
    """Its earlier run is over, or is on a node that Slurm has given up: that one's supervisor ends by itself."""
    first = Lease(tmp_path, "7")
    other_host("seen")
    again = Lease(tmp_path, "7", restarts=1, silent_s=1e9)
    assert again.renew() and not first.renew()
