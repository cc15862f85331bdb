"""The batch host, and a companion's, cut off from slurmctld and selasticd, one way and both, and from each other."""

from __future__ import annotations

import os
import tempfile

import pytest
from live_daemon import live_daemon
from sandbox_of_hosts.links import CUT, Links
from sandbox_of_hosts.names import HEAD, address
from sandbox_of_hosts.sandbox import HostsSandbox
from training import on
from training_job import Start
from waiting import wait_until

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
    hosts: HostsSandbox, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is restarted by it, no step is done twice, and after each of the cuts the job takes resizes again."""
    if hosts.spec.hosts != "full":
        pytest.skip("once is enough")
    monkeypatch.setattr(tempfile, "tempdir", str(hosts.home))  # a folder that all hosts see
    with live_daemon(hosts, monkeypatch, host=address(HEAD)) as selasticd:
        options = "-N1 -w n1 --exclude=n3 --gres=gpu:2 --time=30 --comment=elastic:gpus=2-4,batch=16-16"
        job = start(options, alone=True, env=selasticd.found)

        def story() -> str:
            return selasticd.log() + job.text()

        def comes_to(size: int, after: str) -> None:
            pinned = selasticd.selastic("pin", str(job.id), str(size))
            assert pinned.returncode == 0, pinned.stderr
            wait_until(lambda: selasticd.trains_on(job.id) == size, 180, lambda: f"{after}: {story()}")

        def trains_on_without(links: Links) -> None:
            hosts.links = links
            job.trains_on(STEPS)
            hosts.links = Links()

        wait_until(lambda: selasticd.trains_on(job.id) == 2, 120, story)
        comes_to(4, "the start")
        for what, links in CUTS.items():
            trains_on_without(links)
            comes_to(2, what)
            comes_to(4, what)
        job.finish()
    assert "starting again" not in job.text()


def test_a_companion_orphaned_by_a_partition_is_given_back_when_it_heals(hosts: HostsSandbox, start: Start) -> None:
    """Training goes on without the host that is cut off from everybody. The batch host reaches nobody either, so the
    companion cannot be given back until packets flow again: then the supervisor does it, and nobody else could, for
    its agents reach the supervisor again and leave it the decision. The job can grow there once more."""
    if hosts.spec.hosts != "full":
        pytest.skip("once is enough")
    job = start("-N1 -wn1 --gres=gpu:1", env={"SELASTIC_ORPHAN_S": "600"})
    base = job.base()
    job.trains_past(3)
    companion = job.grow("n2").slurm_job_id
    everybody = [HEAD, "n1", "n2", "n3"]
    hosts.links = Links().apart("n1", everybody).apart("n2", everybody)
    job.says("starting again", 120)
    job.trains_on()
    assert job.field("JobState", companion) == "RUNNING"
    hosts.links = Links()
    wait_until(lambda: job.field("JobState", companion) == "CANCELLED", 60, job.text)
    wait_until(lambda: hosts.status().nodes["n2"] == "idle", 60, lambda: str(hosts.status()))
    job.resize(base, on("n2"))
    job.finish()
