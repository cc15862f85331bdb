"""Proof by killing on several hosts: partitions, one-way loss and delays among the kills."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import campaign
import pytest
from cluster_ground import NETWORK, ElasticJobsOnHosts
from hosts_cluster import hosts_up
from live_daemon import live_daemon
from sandbox_of_hosts.sandbox import HostsSandbox

ASKED = campaign.asked(rounds=2, seed=17, most=3)
NAMES = os.environ.get("SELASTIC_SOAK_NAMES", "loopback").split(",")


@pytest.fixture(params=NAMES)
def grounds(can_run_slurm: None, request: pytest.FixtureRequest) -> Iterator[HostsSandbox]:
    """Four hosts besides slurmctld's, which are known to be down a minute after the last packet."""
    with hosts_up(request.param, nodes=4, gpus_per_node=4, extra_slurm_conf=("SlurmdTimeout=60",)) as sandbox:
        yield sandbox


@pytest.mark.timeout(0 if campaign.SOAK else 900)
def test_nothing_is_lost_whatever_is_killed_and_cut_off(grounds: HostsSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each round: no job lost, stuck or held, no companion leaked, allocations as planned; every sample once."""
    monkeypatch.setattr(tempfile, "tempdir", str(grounds.home))  # a folder that all hosts see
    with live_daemon(grounds, monkeypatch, host=ElasticJobsOnHosts.listen) as daemon:
        ground = ElasticJobsOnHosts(daemon, ASKED.seed)
        happened = campaign.run(ground, ASKED.rounds, ASKED.most, ASKED.kinds)
    assert happened.total() >= ASKED.rounds
    assert ASKED.kinds or sum(happened[kind] for kind in NETWORK) >= ASKED.rounds
    assert ground.ended >= 2
