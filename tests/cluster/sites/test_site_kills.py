"""Proof by killing at a site with limits, vetoes, an epilog, an exclusive job and urgent jobs that preempt, while
people change jobs by hand.
"""

from __future__ import annotations

import os

import pytest
from live_daemon import live_daemon
from site_campaign import SiteCampaign
from site_cluster import SiteCluster

ROUNDS = int(os.environ.get("SELASTIC_SOAK_ROUNDS", "2"))
SEED = int(os.environ.get("SELASTIC_SOAK_SEED", "13"))
KILLS = int(os.environ.get("SELASTIC_SOAK_KILLS", "2"))


@pytest.mark.timeout(0 if "SELASTIC_SOAK_ROUNDS" in os.environ else 900)
def test_nothing_is_lost_where_the_site_interferes(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each round: no job lost, stuck or held, no companion leaked, allocations as planned; every sample once."""
    with live_daemon(site.sandbox, monkeypatch, host="0.0.0.0") as daemon:
        named = os.environ.get("SELASTIC_SOAK_KINDS", "")
        campaign = SiteCampaign(daemon, site, SEED, tuple(named.split(",")) if named else ())
        counts = campaign.run(ROUNDS, KILLS, jobs=2)
        interference = campaign.interference()
    print(interference)
    assert counts.kills.total() >= ROUNDS
    assert counts.jobs >= 2
    assert interference["refused"] > 0
