"""Hosts whose clocks differ: what Slurm takes of it, and what is said where it does not."""

from __future__ import annotations

import re
import time

import pytest
from host_clock import clock_of
from live_daemon import live_daemon
from sandbox_of_hosts.names import HEAD, address
from sandbox_of_hosts.sandbox import HostsSandbox
from training import on
from training_job import Start
from waiting import wait_until

from slurm_elastic.trainer_shim.allocation.companions import minutes_left

DIFFER = "do the clocks of the two hosts differ?"


def test_a_node_whose_clock_is_wrong_is_resized_as_long_as_munge_takes_it(hosts: HostsSandbox, start: Start) -> None:
    """The batch host is 90 s ahead, then 4 minutes behind in the middle of a resize, then an hour ahead, then right.

    Each companion has the time that its base has, the difference is told once, the hour is told as one of clocks, and
    no step is lost or done twice."""
    if hosts.spec.hosts != "loopback":
        pytest.skip("names change nothing about clocks")
    with clock_of(hosts, "n1") as clock:
        clock.set(90)
        job = start("-N1 --gres=gpu:1 -w n1 --time=30", env=clock.env)
        base = job.base()
        job.trains_past(3)
        number = job.order(base, on("n3"))
        granted = job.daemon.wait_phase(1, "granted", 120)
        assert granted.at > time.time() + 60, "the job has that clock"
        clock.set(-240)
        grown = job.resized(number)
        told = hosts.run(["squeue", "-h", "-j", f"{grown.pieces[-1].slurm_job_id}", "-o", "%S %l"]).stdout.split()
        left = minutes_left(job.field("EndTime"), moment(told[0]))
        assert left is not None and left <= minutes(told[1]) <= left + 1, told
        job.resize(base)
        clock.set(3600)
        number = job.order(base, on("n3"))
        refused = wait_until(
            lambda: [p for p in list(job.daemon.happenings) if p.resize == number and p.detail], 120, job.text
        )
        assert DIFFER in refused[0].detail, refused
        job.trains_on()
        clock.set(0)
        job.resize(base, on("n2"))
        job.finish()
        assert re.findall("clock of n1 is (\\d+) s ahead", job.text()) in (["89"], ["90"], ["91"]), job.text()


def moment(text: str) -> float:
    """A time as Slurm writes it."""
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


def minutes(text: str) -> int:
    """A time limit of less than an hour as squeue writes it, 29:00."""
    return int(text.partition(":")[0])


def test_a_refusal_of_munge_is_told_once_as_one_of_clocks(
    hosts: HostsSandbox, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job on a host that is an hour ahead cannot register: it says so once, trains on, and is managed when the clock
    is right."""
    if hosts.spec.hosts != "loopback":
        pytest.skip("names change nothing about clocks")
    with clock_of(hosts, "n1") as clock, live_daemon(hosts, monkeypatch, host=address(HEAD)) as daemon:
        seen = hosts.home / "client.json"
        seen.write_bytes((daemon.state / "client.json").read_bytes())
        daemon.kill()
        env = {**clock.env, "SELASTIC_CLIENT_CONF": str(seen)}
        job = start("-N1 --gres=gpu:1 -w n1 --comment=elastic:gpus=1-2,batch=16-64", alone=True, env=env)
        job.trains_past(3)
        clock.set(3600)
        daemon.start()
        job.says(DIFFER)
        job.trains_on(50)
        assert job.text().count(DIFFER) == 1, job.text()
        clock.set(0)
        job.says("selasticd manages this job")
