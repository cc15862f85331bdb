"""A companion's node fails, is set down, drained or rebooted in the middle of a growth, and of a shrink."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from host_training import HostTraining, there_is
from hosts_cluster import hosts_up
from sandbox_jobs import cancel_all
from sandbox_of_hosts.sandbox import HostsSandbox
from waiting import wait_until

from slurm_elastic.protocol.messages import Phase

Start = Callable[..., HostTraining]
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
    job = start("-N1", "-wn1", "--gres=gpu:a100:1")
    base = job.daemon.wait_registered(120).pieces
    job.trains_past(3)
    asked = state in ("issued", "submitted")
    joins = what == "reboot" or (what == "drain" and not asked)
    grow = (1, job.id, base, (job.shape("n2"),))
    wait = 120 if joins or not asked else 15
    if state == "issued":
        happens(hosts, what)
        job.daemon.order(*grow, wait=wait)
    elif state == "submitted":
        filler = hosts.run(["sbatch", "--parsable", "--no-requeue", "-wn2", "--gres=gpu:a100:2", "--wrap", "sleep 600"])
        wait_until(lambda: job.field("JobState", int(filler.stdout)) == "RUNNING", 60)
        job.daemon.order(*grow, wait=wait)
        wait_until(lambda: f"selastic-{job.id} PENDING" in "\n".join(job.others()), 60, job.text)
        happens(hosts, what)
        hosts.run(["scancel", filler.stdout.strip()])
    else:
        with there_is(job, "cold" if state == "granted" else "stuck"):
            job.daemon.order(*grow, wait=wait)
            job.daemon.wait_phase(1, state, 120)
            happens(hosts, what)
    if joins and asked:
        is_over(hosts, what)
    ended = wait_until(lambda: ended_as(job, 1), 180, job.text)
    if what == "down" and asked:  # its slurmd lives: where it registers in time, Slurm takes the node back
        joins = ended.phase == "running"
    assert (ended.phase == "running") == joins, job.text()
    job.trains_past(job.trained() + 3)
    if joins:
        job.daemon.order(2, job.id, base)
        job.daemon.wait_phase(2, "running", 60)
        release(job)
    gives_back(job)
    if not (joins and asked):
        is_over(hosts, what)
    grows_again_and_ends(hosts, job)


def ended_as(job: HostTraining, resize: int) -> Phase | None:
    """How a resize ended, if it has."""
    phases = list(job.daemon.phases)
    over = ("running", "failed", "withdrawn")
    return next((one for one in phases if one.resize == resize and one.phase in over), None)


def release(job: HostTraining) -> None:
    """What selasticd does when training has left a companion."""
    job.slurm("scancel", f"--name=selastic-{job.id}")


def gives_back(job: HostTraining) -> None:
    wait_until(lambda: not any("selastic-" in other for other in job.others()), 60, job.text)


def grows_again_and_ends(hosts: HostsSandbox, job: HostTraining) -> None:
    wait_until(lambda: "State=IDLE " in node(hosts), 60, lambda: node(hosts))
    base = job.daemon.wait_registered().pieces[:1]
    job.daemon.order(9, job.id, base, (job.shape("n2"),), wait=120)
    grown = job.daemon.wait_phase(9, "running", 150)
    job.trains_past(grown.step + 3)
    job.go()
    job.ends()
    job.checked(job.samples, 1)
    gives_back(job)


@pytest.mark.parametrize(("what", "state"), IN_SHRINK if EVERYWHERE else [("fails", "accepted")])
def test_in_a_shrink(hosts: HostsSandbox, start: Start, what: str, state: str) -> None:
    """The shrink is carried out, the companion is given back, and no step is lost or done twice."""
    job = start("-N1", "-wn1", "--gres=gpu:a100:1")
    base = job.daemon.wait_registered(120).pieces
    job.trains_past(3)
    job.daemon.order(1, job.id, base, (job.shape("n2"),), wait=120)
    grown = job.daemon.wait_phase(1, "running", 150)
    job.trains_past(grown.step + 3)
    if state == "issued":
        happens(hosts, what)
        job.daemon.order(2, job.id, base)
    elif state == "accepted":
        with there_is(job, "stuck"):
            job.daemon.order(2, job.id, base)
            job.daemon.wait_phase(2, "accepted", 60)
            happens(hosts, what)
    else:
        job.daemon.order(2, job.id, base)
        job.daemon.wait_phase(2, "running", 60)
        happens(hosts, what)
    wait_until(lambda: ended_as(job, 2), 180, job.text)  # as failed, where training loses the companion before
    wait_until(lambda: job.daemon.phases[-1].pieces == base, 120, job.text)
    job.trains_past(job.trained() + 3)
    release(job)
    gives_back(job)
    is_over(hosts, what)
    grows_again_and_ends(hosts, job)
