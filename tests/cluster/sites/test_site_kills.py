"""Proof by killing at a site with limits, vetoes, an epilog, an exclusive job and urgent jobs that preempt, while
people change jobs by hand.
"""

from __future__ import annotations

import campaign
import pytest
from live_daemon import live_daemon
from site_cluster import SiteCluster
from site_ground import ElasticJobsAtSite

ASKED = campaign.asked(rounds=2, seed=13, most=2)


@pytest.mark.timeout(0 if campaign.SOAK else 900)
def test_nothing_is_lost_where_the_site_interferes(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each round: no job lost, stuck or held, no companion leaked, allocations as planned; every sample once."""
    with live_daemon(site.sandbox, monkeypatch, host=ElasticJobsAtSite.listen) as daemon:
        ground = ElasticJobsAtSite(daemon, site, ASKED.seed)
        happened = campaign.run(ground, ASKED.rounds, ASKED.most, ASKED.kinds)
        interference = ground.interference()
    print(interference)
    assert happened.total() >= ASKED.rounds
    assert ground.ended >= 2
    assert interference["refused"] > 0
