"""slurmctld moves to its backup and back in the middle of a resize: the training goes on, and the resize ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from host_training import HostTraining, there_is
from live_daemon import Selasticd, live_daemon
from sandbox_jobs import cancel_all
from sandbox_of_hosts.names import HEAD, address
from sandbox_of_hosts.sandbox import HostsSandbox
from two_controllers import Controllers, two_controllers
from waiting import wait_until

Start = Callable[..., HostTraining]


@pytest.fixture(scope="module")
def both(can_run_slurm: None) -> Iterator[Controllers]:
    with two_controllers() as controllers:
        yield controllers


@pytest.fixture
def controllers(both: Controllers) -> Iterator[Controllers]:
    """No job, and the primary in charge."""
    cancel_all(both.hosts)
    yield both
    both.wait_for_backup()
    both.restore()
    cancel_all(both.hosts)


@pytest.fixture
def hosts(controllers: Controllers) -> HostsSandbox:
    """In place of the session's hosts, for `start`."""
    return controllers.hosts


def fill_n2(hosts: HostsSandbox) -> str:
    """An ordinary job on all GPUs of n2; its id."""
    answer = hosts.run(["salloc", "--no-shell", "-ptrain", "-wn2", "--gres=gpu:a100:4", "-Jfiller"])
    assert answer.returncode == 0, answer.stderr
    return answer.stderr.rpartition("job allocation ")[2].split()[0]


EVERYWHERE = bool(os.environ.get("SELASTIC_EVERYWHERE"))
LOST = ("process", "host")
IN_GROWTH = [(state, lost) for state in ("issued", "submitted", "granted", "ready") for lost in LOST]
"""All of them in `make soak-cluster`, which takes minutes more."""


@pytest.mark.parametrize(("state", "lost"), IN_GROWTH if EVERYWHERE else [("issued", "host"), ("granted", "process")])
def test_a_growth_outlives_the_primary(controllers: Controllers, start: Start, state: str, lost: str) -> None:
    """The primary, or its whole host, dies in each state of a growth. It is carried out, no step is trained twice, and
    the job ends well.

    The companion is asked for while nobody answers, waits for nodes, warms up, or trains before the backup knows it.
    """
    job = start("-N1", "-ptrain", "-wn1", "--gres=gpu:a100:1")
    base = job.daemon.wait_registered(120).pieces
    job.trains_past(3)
    grow = (1, job.id, base, (job.shape("n2"),))
    if state == "issued":
        controllers.lose(lost)
        job.daemon.order(*grow, wait=120)
    elif state == "submitted":
        filler = fill_n2(controllers.hosts)
        job.daemon.order(*grow, wait=120)
        wait_until(lambda: f"selastic-{job.id} PENDING" in "\n".join(job.others()), 60, job.text)
        controllers.lose(lost)
        controllers.wait_for_backup()
        controllers.hosts.run(["scancel", filler])
    elif state == "granted":
        with there_is(job, "cold"):
            job.daemon.order(*grow, wait=120)
            job.daemon.wait_phase(1, "granted", 60)
            controllers.lose(lost)
            job.trains_past(job.trained() + 3)
    else:
        with there_is(job, "stuck"):
            job.daemon.order(*grow, wait=120)
            job.daemon.wait_phase(1, "ready", 120)
            controllers.lose(lost)
    grown = job.daemon.wait_phase(1, "running", 150)
    assert [piece.nodes for piece in grown.pieces] == [("n1",), ("n2",)]
    controllers.wait_for_backup()
    if state == "issued":
        job.daemon.order(2, job.id, base)
        job.daemon.wait_phase(2, "running", 60)
        the_primary_comes_back(controllers, job)
    job.go()
    job.ends()
    job.checked(job.samples, 1)
    wait_until(lambda: not any("selastic-" in other for other in job.others()), 60, job.text)


def the_primary_comes_back(controllers: Controllers, job: HostTraining) -> None:
    """While a companion that the backup granted warms up."""
    base = job.daemon.wait_registered().pieces
    with there_is(job, "cold"):
        job.daemon.order(3, job.id, base, (job.shape("n2"),), wait=120)
        job.daemon.wait_phase(3, "granted", 60)
        controllers.restore()
        job.trains_past(job.trained() + 3)
    grown = job.daemon.wait_phase(3, "running", 150)
    job.trains_past(grown.step + 3)


@pytest.fixture
def selasticd(controllers: Controllers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Selasticd]:
    """On head's host; its files lie where every host sees them."""
    monkeypatch.setattr("tempfile.tempdir", str(controllers.hosts.home))
    with live_daemon(controllers.hosts, monkeypatch, host=address(HEAD)) as daemon:
        yield daemon


@pytest.mark.parametrize("lost", LOST if EVERYWHERE else LOST[1:])
def test_selasticd_goes_on_with_the_backup(controllers: Controllers, selasticd: Selasticd, lost: str) -> None:
    """It releases by the backup what a job gave up while no slurmctld answered, and plans by it, and by the primary
    again when that is back."""
    request = "elastic:gpus=4-8,step=4,batch=240-3840"
    job = selasticd.submit("-N1", "-ptrain", "-wn1", "--gres=gpu:a100:4", hold="ready", comment=request)
    granted = selasticd.stubs / f"{job}.go"
    granted.touch()
    selasticd.settles_at(job, 8)
    granted.unlink()
    waiting = controllers.hosts.run(["sbatch", "--parsable", "-ptrain", "--gres=gpu:a100:4", "--wrap", "sleep 600"])
    wait_until(lambda: "holds at ready" in (selasticd.stubs / f"{job}.log").read_text(), 60, selasticd.log)
    controllers.lose(lost)
    granted.touch()
    controllers.wait_for_backup()
    selasticd.settles_at(job, 4, 120)
    wait_until(lambda: selasticd.jobs()[int(waiting.stdout)].running, 150, selasticd.log)
    controllers.restore()
    selasticd.slurm.cancel(int(waiting.stdout))
    selasticd.settles_at(job, 8, 120)
