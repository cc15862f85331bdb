"""slurmctld moves to its backup and back in the middle of a resize: the training goes on, and the resize ends."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from live_daemon import Selasticd, live_daemon
from sandbox_jobs import cancel_all
from sandbox_of_hosts.names import HEAD, address
from sandbox_of_hosts.sandbox import HostsSandbox
from training import on
from training_job import Start, TrainingJob
from two_controllers import Controllers, two_controllers
from waiting import wait_until


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
    job = start("-N1 -ptrain -wn1 --gres=gpu:a100:1")
    base = job.base()
    job.trains_past(3)

    def happens() -> None:
        controllers.lose(lost)
        if state == "submitted":
            controllers.wait_for_backup()
        elif state == "granted":
            job.trains_on()

    job.grow_until(state, happens, wait=600)  # each command tries the lost host first, for seconds
    grown = job.resized(1, steps=0)
    assert [piece.nodes for piece in grown.pieces] == [("n1",), ("n2",)]
    controllers.wait_for_backup()
    if state == "issued":
        job.resize(base, steps=0)
        the_primary_comes_back(controllers, job)
    job.finish()
    job.gives_back()


def the_primary_comes_back(controllers: Controllers, job: TrainingJob) -> None:
    """While a companion that the backup granted warms up."""
    with job.there_is("cold"):
        number = job.order(job.base(), on("n2"))
        job.daemon.wait_phase(number, "granted", 60)
        controllers.restore()
        job.trains_on()
    job.resized(number)


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
