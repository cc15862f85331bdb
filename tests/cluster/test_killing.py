"""Proof by killing: `make soak-cluster` runs the campaign; other runs of the tests leave it out for now."""

from __future__ import annotations

import os

import pytest
from campaign import ALL_KINDS, KINDS, Campaign
from live_daemon import live_daemon

from slurm_elastic.daemon.sandbox import Sandbox

pytestmark = pytest.mark.skipif("SELASTIC_SOAK_ROUNDS" not in os.environ, reason="only under make soak for now")
ROUNDS = int(os.environ.get("SELASTIC_SOAK_ROUNDS", "6"))
SEED = int(os.environ.get("SELASTIC_SOAK_SEED", "7"))
KILLS = int(os.environ.get("SELASTIC_SOAK_KILLS", "3"))


@pytest.mark.timeout(0 if "SELASTIC_SOAK_ROUNDS" in os.environ else 900)
def test_nothing_is_lost_whatever_is_killed_in_the_middle_of_resizes(
    empty_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each kill: no job lost, stuck or held, no companion leaked, allocations as planned; every sample once."""
    with live_daemon(empty_sandbox, monkeypatch, host="0.0.0.0") as daemon:
        campaign = Campaign(daemon, SEED, kinds_of(os.environ.get("SELASTIC_SOAK_KINDS", "")))
        counts = campaign.run(ROUNDS, KILLS, jobs=2)
    print(counts.text())
    assert counts.kills.total() >= ROUNDS
    assert counts.jobs >= 2


def kinds_of(text: str) -> tuple[str, ...]:
    """Those named, or all in the long campaign and the quicker ones in the short."""
    if text:
        return tuple(text.split(","))
    return ALL_KINDS if "SELASTIC_SOAK_ROUNDS" in os.environ else KINDS
