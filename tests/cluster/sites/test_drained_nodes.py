"""An admin drains a node, and need not wait for elastic jobs that could train elsewhere."""

from __future__ import annotations

import pytest
from live_daemon import live_daemon
from site_cluster import SiteCluster
from waiting import wait_until


def test_a_drained_node_is_left_for_another(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job has as many GPUs afterwards as before, and the node is empty."""
    with live_daemon(site.sandbox, monkeypatch) as daemon:
        job = daemon.submit("-N1", "-wn1", "--gres=gpu:a100:4")
        daemon.settles_at(job, 12)
        [node, *_] = [name for one in daemon.jobs().values() if one.job_id != job for name in one.nodes]
        update = ["scontrol", "update", f"nodename={node}"]
        assert site.sandbox.run([*update, "state=drain", "reason=repair"]).returncode == 0
        try:
            wait_until(lambda: node not in used(site), 90, daemon.log)
            daemon.settles_at(job, 12)
            assert node not in used(site)
            assert "shrink_drain" in str(daemon.client().get(f"/v1/jobs/{job}/events"))
        finally:
            site.sandbox.run([*update, "state=resume"])


def used(site: SiteCluster) -> set[str]:
    """Nodes with jobs on them."""
    lists = site.sandbox.run(["squeue", "-h", "-t", "R,CG", "-o", "%N"]).stdout.split()
    return set(site.sandbox.run(["scontrol", "show", "hostnames", ",".join(lists)]).stdout.split())
