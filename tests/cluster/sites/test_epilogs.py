"""The Epilog of a job is over before the next one has its nodes, where the site wants that."""

from __future__ import annotations

import pytest
from live_daemon import live_daemon
from site_cluster import SiteCluster
from waiting import wait_until


def test_a_node_given_back_waits_for_its_epilog(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """With release_by = job: an ordinary job gets one node of a grown job, and starts when the Epilog there is over."""
    with live_daemon(site.sandbox, monkeypatch, 'release_by = "job"') as selasticd:
        job = selasticd.submit("-N1", "--gres=gpu:a100:4")
        selasticd.settles_at(job, 12)
        before = {companion.job_id: companion.nodes for companion in selasticd.companions()}
        assert [len(nodes) for nodes in before.values()] == [1, 1]
        filler = selasticd.rigid(5)
        wait_until(lambda: selasticd.jobs()[filler].running, 60, selasticd.log)
        site.epilog_takes(4)
        rigid = selasticd.rigid(1)
        wait_until(lambda: selasticd.jobs()[rigid].running, 60, selasticd.log)
        started = selasticd.jobs()[rigid]
        selasticd.settles_at(job, 8)
        # One that was withdrawn while the job grew has had its Epilog, too.
        [gone] = before.keys() - {companion.job_id for companion in selasticd.companions()}
        [(node, ended)] = [(node, at) for kind, node, of, at in site.epilogs() if (kind, of) == ("end", gone)]
        assert before[gone] == (node,), site.epilogs()
        assert started.nodes == (node,) and started.start_time is not None
        assert started.start_time >= int(ended)
        assert "shrink" not in selasticd.events(job)


def test_an_epilog_is_told_of(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, as long as single nodes are given back."""
    with live_daemon(site.sandbox, monkeypatch) as selasticd:
        wait_until(lambda: f"{site.sandbox.dir}/epilog still runs" in selasticd.log(), 60, selasticd.log)
