"""Proof by killing on several hosts: partitions, one-way loss and delays among the kills."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest
from hosts_cluster import hosts_up
from kill_campaign import Campaign
from kill_ground import NETWORK, Hosts
from live_daemon import live_daemon
from sandbox_of_hosts.sandbox import HostsSandbox

ROUNDS = int(os.environ.get("SELASTIC_SOAK_ROUNDS", "2"))
SEED = int(os.environ.get("SELASTIC_SOAK_SEED", "17"))
KILLS = int(os.environ.get("SELASTIC_SOAK_KILLS", "3"))
NAMES = os.environ.get("SELASTIC_SOAK_NAMES", "loopback").split(",")


@pytest.fixture(params=NAMES)
def grounds(can_run_slurm: None, request: pytest.FixtureRequest) -> Iterator[HostsSandbox]:
    """Four hosts besides slurmctld's, which are known to be down a minute after the last packet."""
    with hosts_up(request.param, nodes=4, gpus_per_node=4, extra_slurm_conf=("SlurmdTimeout=60",)) as sandbox:
        yield sandbox


@pytest.mark.timeout(0 if "SELASTIC_SOAK_ROUNDS" in os.environ else 900)
def test_nothing_is_lost_whatever_is_killed_and_cut_off(grounds: HostsSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each round: no job lost, stuck or held, no companion leaked, allocations as planned; every sample once."""
    monkeypatch.setattr(tempfile, "tempdir", str(grounds.home))  # a folder that all hosts see
    with live_daemon(grounds, monkeypatch, host=Hosts.listen) as daemon:
        named = os.environ.get("SELASTIC_SOAK_KINDS", "")
        campaign = Campaign(daemon, SEED, tuple(named.split(",")) if named else (), Hosts)
        counts = campaign.run(ROUNDS, KILLS, jobs=2)
    assert counts.kills.total() >= ROUNDS
    assert named or sum(counts.kills[kind] for kind in NETWORK) >= ROUNDS
    assert counts.jobs >= 2
