"""Proof by killing: a short campaign with a fixed seed in every run of the tests, a long one by `make soak-cluster`."""

from __future__ import annotations

import campaign
import pytest
from cluster_ground import ElasticJobs
from live_daemon import live_daemon

from slurm_elastic.daemon.sandbox import Sandbox

ASKED = campaign.asked(rounds=3, seed=11, most=4)


@pytest.mark.timeout(0 if campaign.SOAK else 900)
def test_nothing_is_lost_whatever_is_killed_in_the_middle_of_resizes(
    empty_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each kill: no job lost, stuck or held, no companion leaked, allocations as planned; every sample once."""
    with live_daemon(empty_sandbox, monkeypatch, host=ElasticJobs.listen) as daemon:
        ground = ElasticJobs(daemon, ASKED.seed)
        happened = campaign.run(ground, ASKED.rounds, ASKED.most, ASKED.kinds)
    assert happened.total() >= 2 * ASKED.rounds
    assert ground.ended >= 2
