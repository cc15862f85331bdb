"""Snapshots taken because somebody asks for a job: few for those that exist, and bounded for those that do not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from fake_slurm import Component, FakeClient, FakeSlurm

from slurm_elastic.daemon.slurm.accounting import SlurmLimit
from slurm_elastic.daemon.slurm.fair_share import ShareTree
from slurm_elastic.daemon.slurm.model import Snapshot
from slurm_elastic.daemon.slurm.site import PartitionRules, Site
from slurm_elastic.daemon.slurm.snapshot_cache import ASK_EACH_S, ASKS, Shares, SnapshotCache
from slurm_elastic.protocol.errors import SlurmUnreachable, TooOften

ADA, BOB = 1001, 1002


class Counting(FakeClient):
    """Counts how often it lists all jobs."""

    listed = 0

    def snapshot(self) -> Snapshot:
        self.listed += 1
        return super().snapshot()


class World:
    """A cache over a Slurm, with a clock that goes on at every look."""

    def __init__(self) -> None:
        self.slurm = FakeSlurm(nodes=1)
        self.client = Counting(self.slurm, "root")
        self.now = 1000.0
        self.cache = SnapshotCache(self.client, self.clock, lambda seconds: None)

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    def asks(self, uid: int, count: int = 100) -> int:
        """Ask for jobs that do not exist; how many were answered."""
        answered = 0
        for number in range(count):
            try:
                assert self.cache.find(10_000 + number, uid) is None
                answered += 1
            except TooOften:
                continue
        return answered


def test_who_names_jobs_that_do_not_exist_lists_few_times() -> None:
    """Five at once, then one every ten seconds, whatever is asked; others have their own."""
    world = World()
    assert world.asks(ADA) == world.client.listed == ASKS
    world.now += 3 * ASK_EACH_S
    assert world.asks(ADA) == 3
    assert world.asks(BOB) == ASKS
    with pytest.raises(TooOften, match="accepted: one in 10 s"):
        world.cache.find(10_000, ADA)


def test_jobs_that_exist_cost_no_turn() -> None:
    """A user with hundreds of them that begin at once is not kept waiting; known ones are found all the same."""
    world = World()
    for _ in range(3 * ASKS):
        job_id = world.slurm.submit(Component(1, 1))
        assert world.cache.find(job_id, ADA) is not None
    assert world.asks(ADA) == ASKS
    listed = world.client.listed
    assert world.cache.find(job_id, ADA) is not None and world.client.listed == listed


def test_a_job_is_found_after_the_clock_was_set_back() -> None:
    """Which snapshot is the latest is not told from its time: a job that starts in that hour is known."""
    world = World()
    world.slurm.now = 1e9
    world.cache.snapshot()
    world.slurm.now -= 3600
    job_id = world.slurm.submit(Component(1, 1))
    assert world.cache.find(job_id, ADA) is not None


class WithoutSlurmdbd(FakeClient):
    """A site with limits and a QOS of a partition; slurmdbd goes away."""

    gone = False

    def site(self) -> Site:
        return Site(limits=(SlurmLimit(qos="gold", tres={"gres/gpu": 4}),))

    def partitions(self) -> tuple[Mapping[str, PartitionRules], Mapping[str, str]]:
        return {}, {"main": "part"}

    def qos_over_partition(self) -> frozenset[str]:
        if self.gone:
            raise SlurmUnreachable("sacctmgr did not answer")
        return frozenset({"gold"})


def test_what_slurmdbd_said_holds_while_it_is_away() -> None:
    """Else a QOS that goes before its partition's would not, for as long."""
    client = WithoutSlurmdbd(FakeSlurm(nodes=1), "root")
    cache = SnapshotCache(client)
    assert cache.site().qos_over_partition == {"gold"}
    client.gone = True
    assert cache.site().qos_over_partition == {"gold"}


TREE = ShareTree({"root": ("", None)}, {("root", "root"): 1.0})


@pytest.mark.parametrize(
    ("when", "counted", "read"),
    [("counted", True, True), ("counted", False, False), ("always", True, True), ("never", True, False)],
)
def test_shares_are_read_where_they_count(when: Shares, counted: bool, read: bool) -> None:
    """`counted`: where Slurm's own priorities go by them, and nowhere else is sshare run."""
    slurm = FakeSlurm()
    slurm.share_tree = TREE if counted else None
    assert (SnapshotCache(slurm.client(), shares=when).site().shares is TREE) is read


def test_shares_that_are_not_to_be_had_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Without any fairness goes by account; what was read before stands; each time it begins it is said, once."""
    slurm = FakeSlurm()
    cache = SnapshotCache(slurm.client(), shares="always")
    assert cache.site().shares is cache.site().shares is None
    slurm.share_tree = TREE
    assert cache.site().shares is TREE
    slurm.share_tree = None
    assert cache.site().shares is cache.site().shares is TREE
    first, second = (record.getMessage() for record in caplog.records)
    assert "so fairness goes by account: No answer from sshare" in first and "as last read" in second
