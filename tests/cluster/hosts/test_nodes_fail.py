"""A companion's node fails, is set down, drained or rebooted in the middle of a growth, and of a shrink."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hosts_cluster import hosts_up
from sandbox_jobs import cancel_all
from sandbox_of_hosts.sandbox import HostsSandbox
from training import on
from training_job import Start, TrainingJob
from waiting import wait_until

GROWTH = ("issued", "submitted", "granted", "ready")
SHRINK = ("issued", "accepted", "running")
WHAT = ("fails", "down", "drain", "reboot")
EVERYWHERE = bool(os.environ.get("SELASTIC_EVERYWHERE"))
IN_GROWTH = [(what, state) for what in WHAT for state in GROWTH]
IN_SHRINK = [(what, state) for what in WHAT for state in SHRINK]


@pytest.fixture(scope="module")
def cluster(can_run_slurm: None) -> Iterator[HostsSandbox]:
    """Slurm notices a node that fails by itself, after some seconds. A host that is rebooted ends its process 1."""
    conf = ("SlurmdTimeout=10", 'RebootProgram="/bin/kill 1"', "ResumeTimeout=120")
    with hosts_up("full", nodes=2, extra_slurm_conf=conf) as sandbox:
        yield sandbox


@pytest.fixture
def hosts(cluster: HostsSandbox) -> Iterator[HostsSandbox]:
    """In place of the session's hosts, for `start`."""
    cancel_all(cluster)
    yield cluster
    if not cluster.daemons.pid("host-n2"):  # the test has failed
        cluster.start_host("n2")
    cancel_all(cluster)


def happens(hosts: HostsSandbox, what: str) -> None:
    """To n2."""
    if what == "fails":
        hosts.daemons.stop("host-n2")
        return
    to = ["reboot", "ASAP", "nextstate=resume", "reason=test", "n2"]
    if what != "reboot":
        to = ["update", "nodename=n2", f"state={what}", "reason=test"]
    answer = hosts.run(["scontrol", *to])
    assert answer.returncode == 0, answer.stderr


def is_over(hosts: HostsSandbox, what: str) -> None:
    """n2 takes jobs again: an admin says so, or it has booted."""
    if what in ("down", "drain"):
        hosts.run(["scontrol", "update", "nodename=n2", "state=resume"])
    else:
        wait_until(lambda: not hosts.daemons.pid("host-n2"), 60, lambda: node(hosts))
        hosts.start_host("n2")


def node(hosts: HostsSandbox) -> str:
    """What Slurm says of n2."""
    return hosts.run(["scontrol", "-o", "show", "node", "n2"]).stdout


@pytest.mark.parametrize(("what", "state"), IN_GROWTH if EVERYWHERE else [("fails", "granted"), ("reboot", "issued")])
def test_in_a_growth(hosts: HostsSandbox, start: Start, what: str, state: str) -> None:
    """Training goes on, without a node that is lost and with one that only waits for its jobs to end. The companion is
    given back, the node can be used again, and no step is lost or done twice."""
    job = start("-N1 -wn1 --gres=gpu:a100:1")
    base = job.base()
    job.trains_past(3)
    asked = state in ("issued", "submitted")
    joins = what == "reboot" or (what == "drain" and not asked)
    job.grow_until(state, lambda: happens(hosts, what), wait=120 if joins or not asked else 15)
    if joins and asked:
        is_over(hosts, what)
    ended = wait_until(lambda: job.daemon.ended(1), 180, job.story)
    if what == "down" and asked:  # its slurmd lives: where it registers in time, Slurm takes the node back
        joins = ended.what == "running"
    assert (ended.what == "running") == joins, job.story()
    job.trains_on()
    if joins:
        job.resize(base)
        release(job)
    job.gives_back()
    if not (joins and asked):
        is_over(hosts, what)
    grows_again_and_ends(hosts, job)


def release(job: TrainingJob) -> None:
    """What selasticd does when training has left a companion."""
    job.slurm("scancel", f"--name=selastic-{job.id}")


def grows_again_and_ends(hosts: HostsSandbox, job: TrainingJob) -> None:
    wait_until(lambda: "State=IDLE " in node(hosts), 60, lambda: node(hosts))
    job.resize(job.base()[:1], on("n2"))
    job.finish()
    job.gives_back()


@pytest.mark.parametrize(("what", "state"), IN_SHRINK if EVERYWHERE else [("fails", "accepted")])
def test_in_a_shrink(hosts: HostsSandbox, start: Start, what: str, state: str) -> None:
    """The shrink is carried out, the companion is given back, and no step is lost or done twice."""
    job = start("-N1 -wn1 --gres=gpu:a100:1")
    base = job.base()
    job.trains_past(3)
    job.resize(base, on("n2"))
    if state == "issued":
        happens(hosts, what)
        job.order(base)
    elif state == "accepted":
        with job.there_is("stuck"):
            job.daemon.wait_phase(job.order(base), "accepted", 60)
            happens(hosts, what)
    else:
        job.resize(base, steps=0)
        happens(hosts, what)
    # As failed, where training loses the companion before.
    wait_until(lambda: job.daemon.ended(2), 180, job.story)
    wait_until(lambda: job.daemon.happenings[-1].pieces == base, 120, job.story)
    job.trains_on()
    release(job)
    job.gives_back()
    is_over(hosts, what)
    grows_again_and_ends(hosts, job)
