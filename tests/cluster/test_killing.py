"""Proof by killing: a short campaign with a fixed seed in every run of the tests, a long one by `make soak-cluster`."""

from __future__ import annotations

import os

import pytest
from kill_campaign import Campaign
from live_daemon import live_daemon

from slurm_elastic.daemon.sandbox import Sandbox

ROUNDS = int(os.environ.get("SELASTIC_SOAK_ROUNDS", "3"))
SEED = int(os.environ.get("SELASTIC_SOAK_SEED", "11"))
KILLS = int(os.environ.get("SELASTIC_SOAK_KILLS", "4"))


@pytest.mark.timeout(0 if "SELASTIC_SOAK_ROUNDS" in os.environ else 900)
def test_nothing_is_lost_whatever_is_killed_in_the_middle_of_resizes(
    empty_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each kill: no job lost, stuck or held, no companion leaked, allocations as planned; every sample once."""
    with live_daemon(empty_sandbox, monkeypatch, host="0.0.0.0") as daemon:
        named = os.environ.get("SELASTIC_SOAK_KINDS", "")
        campaign = Campaign(daemon, SEED, tuple(named.split(",")) if named else ())
        counts = campaign.run(ROUNDS, KILLS, jobs=2)
    assert counts.kills.total() >= 2 * ROUNDS
    assert counts.jobs >= 2
