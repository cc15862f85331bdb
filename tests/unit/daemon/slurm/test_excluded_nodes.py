"""The nodes that jobs exclude, which Slurm lists apart from the rest."""

from __future__ import annotations

from collections.abc import Mapping

from fake_slurm import Component, FakeClient, FakeSlurm

from slurm_elastic.daemon.slurm.snapshot_cache import EXCLUDED_S, SnapshotCache


class Counting(FakeClient):
    """Counts how often it is asked."""

    asked = 0

    def excluded_nodes(self) -> Mapping[int, tuple[str, ...]]:
        self.asked += 1
        return super().excluded_nodes()


def test_they_are_asked_for_when_a_job_is_seen_for_the_first_time() -> None:
    """Not in every round; a while later once more, for users may change them."""
    slurm = FakeSlurm(nodes=1)
    client = Counting(slurm, "root")
    cache = SnapshotCache(client)
    cache.snapshot()
    assert client.asked == 0
    slurm.submit(Component(1, 4))
    waits = slurm.submit(Component(1, 4), excluded_nodes=("n7",))
    for _ in range(3):
        assert cache.snapshot().jobs[waits].excluded_nodes == ("n7",)
    assert client.asked == 1
    slurm.submit(Component(1, 4))
    cache.snapshot()
    assert client.asked == 2
    slurm.now += EXCLUDED_S
    cache.snapshot()
    assert client.asked == 3
    assert cache.latest().jobs[waits].excluded_nodes == ("n7",)
