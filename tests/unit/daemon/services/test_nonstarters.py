"""Waiting jobs that do not take the room made for them."""

from __future__ import annotations

from cluster_snapshots import Cluster
from shrink_jobs import REQUEST, room

from slurm_elastic.daemon.capacity.make_room import RoomMade
from slurm_elastic.daemon.services.elastic import RETRY_S, WAIT_S, Nonstarters


def ready(cluster: Cluster) -> tuple[RoomMade, ...]:
    """The waiting jobs that could start now."""
    return tuple(served for served in room(cluster.snapshot()).served if not served.waits)


def waiting(*job_ids: int) -> Cluster:
    """An elastic job on n1, idle nodes, and equal jobs that wait."""
    cluster = Cluster(8)
    cluster.run(1, "n1", 4, REQUEST)
    for job_id in job_ids:
        cluster.wait(job_id, 1, 4)
    return cluster


def test_no_room_is_made_for_a_kind_of_job_that_does_not_start() -> None:
    """Not before it had the time to start; for all jobs like it at once; the next time for twice as long."""
    kept, cluster, t = Nonstarters(), waiting(5, 6), 1000.0
    served = ready(cluster)
    kept.record(served, cluster.snapshot(), t)
    kept.record(served, cluster.snapshot(), t + WAIT_S - 1)
    assert not kept.excluded(t + WAIT_S - 1)
    kept.record(served, cluster.snapshot(), t + WAIT_S)
    assert kept.excluded(t + WAIT_S + RETRY_S - 1) == {served[0].need.kind} == {one.need.kind for one in served}
    again = t + WAIT_S + RETRY_S
    assert not kept.excluded(again)
    kept.record((), cluster.snapshot(), again - 1)
    kept.record(served, cluster.snapshot(), again)
    kept.record(served, cluster.snapshot(), again + WAIT_S)
    assert kept.excluded(again + WAIT_S + 2 * RETRY_S - 1)
    assert not kept.excluded(again + WAIT_S + 2 * RETRY_S)


def test_one_that_starts_is_believed() -> None:
    """Its time begins anew when it is ready again."""
    kept, cluster, t = Nonstarters(), waiting(5), 1000.0
    kept.record(ready(cluster), cluster.snapshot(), t)
    kept.record((), cluster.snapshot(), t + 10)
    kept.record(ready(cluster), cluster.snapshot(), t + WAIT_S)
    assert not kept.excluded(t + WAIT_S)


def test_who_gave_in_vain_is_known() -> None:
    """Because the job did not start, or is gone; not when it started, and not after the next resize."""
    cluster, t = waiting(5), 1000.0
    served = ready(cluster)
    for ends in ("waits", "gone", "runs"):
        kept, cluster = Nonstarters(), waiting(5)
        kept.gives(1, served)
        kept.record(served, cluster.snapshot(), t)
        assert kept.in_vain == set()
        if ends == "gone":
            del cluster.jobs[5]
        elif ends == "runs":
            cluster.run(5, "n2", 4)
            kept.record((), cluster.snapshot(), t + 1)
            del cluster.jobs[5]
        kept.record(served if ends == "waits" else (), cluster.snapshot(), t + WAIT_S)
        assert kept.in_vain == (set() if ends == "runs" else {1})
        kept.gives(1, ())
        assert kept.in_vain == set()
