"""The batch host, and a companion's, cut off from slurmctld and selasticd, one way and both, and from each other."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

import pytest
from host_training import SAMPLES, TRAIN, HostTraining
from live_daemon import live_daemon
from sandbox_of_hosts.links import CUT, Links
from sandbox_of_hosts.names import HEAD, address
from sandbox_of_hosts.sandbox import HostsSandbox
from training_job import TrainingJob
from waiting import wait_until

from slurm_elastic.trainer_shim.training import audit

CUTS = {
    "the batch host both ways": Links().with_both_ways("n1", HEAD, CUT),
    "nothing from the companion's": Links().with_one_way("n2", HEAD, CUT),
}
if os.environ.get("SELASTIC_EVERYWHERE"):  # `make soak-cluster`
    CUTS |= {
        "nothing from the batch host": Links().with_one_way("n1", HEAD, CUT),
        "nothing to the batch host": Links().with_one_way(HEAD, "n1", CUT),
        "the companion's both ways": Links().with_both_ways("n2", HEAD, CUT),
    }
STEPS = 60
"""Of training while a host is cut off: more seconds than a round, a report and a heartbeat take."""


def test_training_goes_on_while_a_host_is_cut_off_and_is_resized_afterwards(
    hosts: HostsSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is restarted by it, no step is done twice, and after each of the cuts the job takes resizes again."""
    if hosts.spec.hosts != "full":
        pytest.skip("once is enough")
    monkeypatch.setattr(tempfile, "tempdir", str(hosts.home))  # a folder that all hosts see
    folder = hosts.home / "cut"
    folder.mkdir()
    with live_daemon(hosts, monkeypatch, host=address(HEAD)) as selasticd:
        env = {"SELASTIC_CLIENT_CONF": str(selasticd.state / "client.json")}
        options = "-N1 -w n1 --exclude=n3 --gres=gpu:2 --time=30 --comment=elastic:gpus=2-4,batch=16-16"
        job = TrainingJob(hosts, folder, options, "train.py", env, train=TRAIN)

        def trained() -> int:
            return max((int(row["step"]) for row in audit.read(folder / "audit") if "indices" in row), default=0)

        def story() -> str:
            return selasticd.log() + job.text()

        def comes_to(size: int, after: str) -> None:
            pinned = selasticd.selastic("pin", str(job.id), str(size))
            assert pinned.returncode == 0, pinned.stderr
            wait_until(lambda: selasticd.trains_on(job.id) == size, 180, lambda: f"{after}: {story()}")

        def trains_on_without(links: Links) -> None:
            hosts.links, before = links, trained()
            wait_until(lambda: trained() > before + STEPS, 120, story)
            hosts.links = Links()

        wait_until(lambda: selasticd.trains_on(job.id) == 2, 120, story)
        comes_to(4, "the start")
        for what, links in CUTS.items():
            trains_on_without(links)
            comes_to(2, what)
            comes_to(4, what)
        job.go()
        job.ends()
    assert "starting again" not in job.text()
    job.checked(SAMPLES, 1)


def test_a_companion_orphaned_by_a_partition_is_given_back_when_it_heals(
    hosts: HostsSandbox, start: Callable[..., HostTraining]
) -> None:
    """Training goes on without the host that is cut off from everybody. The batch host reaches nobody either, so the
    companion cannot be given back until packets flow again: then the supervisor does it, and nobody else could, for
    its agents reach the supervisor again and leave it the decision. The job can grow there once more."""
    if hosts.spec.hosts != "full":
        pytest.skip("once is enough")
    job = start("-N1", "-wn1", "--gres=gpu:1", env={"SELASTIC_ORPHAN_S": "600"})
    base = job.daemon.wait_registered(120).pieces
    job.trains_past(3)
    job.daemon.order(1, job.id, base, (job.shape("n2"),), wait=120)
    grown = job.daemon.wait_phase(1, "running", 150)
    companion = grown.pieces[-1].slurm_job_id
    job.trains_past(grown.step + 3)
    everybody = [HEAD, "n1", "n2", "n3"]
    hosts.links = Links().apart("n1", everybody).apart("n2", everybody)
    job.says("starting again", 120)
    job.trains_past(job.trained() + 3)
    assert job.field("JobState", companion) == "RUNNING"
    hosts.links = Links()
    wait_until(lambda: job.field("JobState", companion) == "CANCELLED", 60, job.text)
    wait_until(lambda: hosts.status().nodes["n2"] == "idle", 60, lambda: str(hosts.status()))
    job.daemon.order(2, job.id, base, (job.shape("n2"),), wait=120)
    job.daemon.wait_phase(2, "running", 150)
    job.go()
    job.ends()
    job.checked(SAMPLES, 1)
