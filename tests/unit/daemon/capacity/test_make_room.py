"""The room that elastic jobs make for waiting ones."""

from __future__ import annotations

import random
from dataclasses import fields, replace

import pytest
from cluster_snapshots import Cluster
from shrink_jobs import REQUEST, giver, room

from slurm_elastic.daemon.capacity.ledger import Amount, Ledger
from slurm_elastic.daemon.capacity.make_room import make_room
from slurm_elastic.daemon.capacity.pending_jobs import NeedPart, needs
from slurm_elastic.daemon.capacity.roster import sort_jobs
from slurm_elastic.daemon.capacity.shrink_options import shrinks
from slurm_elastic.daemon.capacity.slurm_limits import LimitUsage
from slurm_elastic.daemon.slurm.accounting import SlurmLimit
from slurm_elastic.daemon.slurm.model import Snapshot
from slurm_elastic.daemon.slurm.site import Site


def test_idle_gpus_are_kept_for_a_job_that_fits_on_them() -> None:
    """A job that could start without anyone giving takes nothing from anyone, and its room is not grown into."""
    cluster = Cluster(3)
    cluster.run(1, "n1 n2", comment=REQUEST)
    cluster.wait(2)
    made = room(cluster.snapshot())
    assert made.forced == {}
    assert made.served[0].nodes == ("n3",) and not made.served[0].waits
    assert made.ledger.gpus(cluster.nodes) == 0


def test_room_is_exactly_what_the_waiting_job_needs() -> None:
    """Two nodes are needed, one is idle: one node is given up, not two."""
    cluster = Cluster(4)
    cluster.run(1, "n1 n2 n3", comment=REQUEST)
    cluster.wait(2, 2)
    made = room(cluster.snapshot())
    assert made.served[0].givers == {1: 4} and made.served[0].waits
    assert sum(len(units) for units in made.forced.values()) == 1
    assert made.ledger.gpus(cluster.nodes) == 0


def test_companions_on_a_half_used_node_complete_it() -> None:
    """The node that needs least to become free is the one that is freed."""
    cluster = Cluster(3)
    cluster.run(1, "n1", comment=REQUEST)
    cluster.companion(2, 1, "n2", 4)
    cluster.companion(3, 1, "n3", 1)
    cluster.wait(9, 1, 4)
    made = room(cluster.snapshot())
    assert made.forced == {1: frozenset({(3, "n3")})}


def test_no_elastic_job_goes_below_its_minimum() -> None:
    """A waiting job for which someone would have to go below its minimum is not met, and takes nothing."""
    cluster = Cluster(2)
    cluster.run(1, "n1 n2", comment="elastic:gpus=8-16,batch=16-4096")
    cluster.wait(2)
    made = room(cluster.snapshot())
    assert made.forced == {} and [need.job_id for need in made.unserved] == [2]


def test_nothing_moves_when_the_queue_could_not_use_it() -> None:
    """Three nodes are needed and only two can ever be freed: nothing is reserved and nothing given."""
    cluster = Cluster(3)
    cluster.run(1, "n1 n2 n3", comment=REQUEST)
    cluster.wait(2, 3)
    made = room(cluster.snapshot())
    assert made.forced == {} and made.served == ()


def test_size_rules_are_kept_while_giving() -> None:
    """With step=8 a job gives 8 or nothing."""
    cluster = Cluster(4)
    cluster.run(1, "n1 n2 n3 n4", comment="elastic:gpus=8-16,step=8,batch=16-4096")
    cluster.wait(2, 1)
    made = room(cluster.snapshot())
    assert made.served[0].need.job_id == 2
    assert set(shrinks(giver(sort_jobs(cluster.snapshot()), 1), made.forced[1])) & {8, 16} == {8}


@pytest.mark.parametrize("limits", [(), (SlurmLimit("lab", tres={"gres/gpu": 8.0}),)])
def test_what_a_job_could_not_use_any_more_counts_as_given(limits: tuple[SlurmLimit, ...]) -> None:
    """Three GPUs are needed, as nodes or of a limit. Without its companion of three a job of eight would be left with
    five, and train on one. It gives the one of four, and trains on four."""
    cluster = Cluster(3 if limits else 2)
    cluster.run(1, "n1", 1, REQUEST)
    cluster.companion(2, 1, "n1", 3)
    cluster.companion(3, 1, "n2", 4)
    cluster.wait(9, 1, 3)
    snapshot = cluster.snapshot()
    roster = sort_jobs(snapshot)
    powers_of_two = replace(giver(roster, 1), sizes=frozenset({1, 2, 4, 8, 16}))
    usage = LimitUsage(Site(limits=limits), snapshot.jobs.values())
    made = make_room(snapshot, Ledger.of(snapshot), [powers_of_two], needs(snapshot, roster), usage)
    assert made.forced == {1: frozenset({(3, "n2")})}


def test_the_one_that_holds_most_gives_first() -> None:
    """Between equal costs, the job with most GPUs per weight gives."""
    cluster = Cluster(6)
    cluster.run(1, "n1 n2", comment=REQUEST)
    cluster.run(2, "n3 n4 n5 n6", comment=REQUEST)
    cluster.wait(3, 1)
    assert set(room(cluster.snapshot()).forced) == {2}


def test_two_waiting_jobs_get_different_nodes() -> None:
    """What was reserved for the first is not promised to the second."""
    cluster = Cluster(4)
    cluster.run(1, "n1 n2 n3 n4", comment=REQUEST)
    cluster.wait(2, 1)
    cluster.wait(3, 2)
    made = room(cluster.snapshot())
    assert len(set(made.served[0].nodes) | set(made.served[1].nodes)) == 3
    assert len(made.forced[1]) == 3


def test_a_later_job_does_not_overtake_one_that_slurm_holds_nodes_for() -> None:
    """Behind a job that cannot be met, only a job that ends before that one could start is given room."""
    cluster = Cluster(3)
    cluster.run(1, "n1 n2", comment=REQUEST)
    cluster.run(8, "n3", time_left_s=1800.0)
    cluster.run(9, "n3", 0, time_left_s=600.0)
    cluster.change(1, time_left_s=7200.0)
    cluster.wait(2, 2, priority=900)
    cluster.wait(3, 1, priority=1, time_limit_s=3600.0)
    cluster.wait(4, 1, priority=1, time_limit_s=1200.0)
    made = room(cluster.snapshot())
    assert [need.job_id for need in made.unserved] == [2, 3]
    assert [served.need.job_id for served in made.served] == [4]


def test_jobs_like_a_refused_one_are_refused_and_a_smaller_one_behind_them_is_met() -> None:
    """Two need two nodes each and only one node is idle: both are refused, and the one-node job gets it."""
    cluster = Cluster(2)
    cluster.run(1, "n1", time_left_s=None)
    cluster.wait(2, 2)
    cluster.wait(3, 2)
    cluster.wait(4, 1)
    made = room(cluster.snapshot())
    assert [need.job_id for need in made.unserved] == [2, 3]
    assert [served.need.job_id for served in made.served] == [4]


def test_a_job_like_a_refused_one_is_looked_at_again_when_room_was_made_since() -> None:
    """Of a node with more than eight units few sets are tried, none with four GPUs; of two that a job without GPUs has
    freed meanwhile, two more are enough."""
    cluster = Cluster(1, gpus=16, cpus=32)
    cluster.run(1, "n1", comment="elastic:gpus=8-16,batch=16-4096", time_left_s=None)
    for companion in range(10, 22):
        cluster.companion(companion, 1, "n1", 1)
        cluster.change(companion, time_left_s=None)
    cluster.wait(30, 1, 4, cpus=4)
    cluster.wait(31, 1, 0, cpus=4)
    cluster.wait(32, 1, 4, cpus=4)
    made = room(cluster.snapshot(), accepted={1})
    assert [need.job_id for need in made.unserved] == [30]
    assert [served.need.job_id for served in made.served] == [31, 32]


class Unlike(NeedPart):
    """A part that is equal to itself alone: of no waiting job it is known that one like it was refused."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


@pytest.mark.parametrize("seed", range(8))
def test_who_is_like_a_refused_job_would_be_refused_when_looked_at(seed: int) -> None:
    """Over random clusters and queues of few kinds of jobs: the room is the one made when each job is looked at."""
    chance, likes, refused_again = random.Random(seed), 0, 0
    for _ in range(40):
        snapshot = crowded(chance)
        roster = sort_jobs(snapshot, accepted=snapshot.jobs)
        givers = [giver(roster, job_id) for job_id, job in roster.elastic.items() if job.running]
        waiting = needs(snapshot, roster)
        apart = [replace(need, parts=tuple(Unlike(*astuple_of(part)) for part in need.parts)) for need in waiting]
        made = make_room(snapshot, Ledger.of(snapshot), givers, waiting)
        looked_at = make_room(snapshot, Ledger.of(snapshot), givers, apart)
        assert [(served.need.job_id, served.nodes, served.givers, served.waits) for served in made.served] == [
            (served.need.job_id, served.nodes, served.givers, served.waits) for served in looked_at.served
        ]
        assert [need.job_id for need in made.unserved] == [need.job_id for need in looked_at.unserved]
        assert made.forced == looked_at.forced
        assert (made.ledger.now, made.ledger.soon) == (looked_at.ledger.now, looked_at.ledger.soon)
        likes += bool(made.served)
        refused_again += len({need.parts for need in made.unserved}) < len(made.unserved)
    assert likes > 10 and refused_again > 10


def astuple_of(part: NeedPart) -> tuple[object, ...]:
    return tuple(getattr(part, item.name) for item in fields(NeedPart))


def crowded(chance: random.Random) -> Snapshot:
    """One to three nodes, each filled by an elastic job and companions of its own, or half filled by a rigid one; and a
    queue of three kinds of jobs, of which one needs cores alone."""
    count, gpus = chance.choice((1, 1, 2, 3)), chance.choice((4, 16))
    cluster = Cluster(count, gpus, cpus=2 * gpus)
    for number in range(1, count + 1):
        node, size, left = f"n{number}", gpus // 4, chance.choice((None, None, 600))
        elastic = f"elastic:gpus={chance.choice((1, 2)) * size}-64,batch=16-4096" if chance.random() < 0.8 else ""
        cluster.run(number, node, size if elastic else 2 * size, elastic, time_left_s=left)
        for companion in range(100 * number, 100 * number + gpus - size) if elastic else ():
            cluster.companion(companion, number, node, 1)
            cluster.change(companion, time_left_s=left)
    kinds = [(chance.randint(1, count), each, chance.randint(1, 8)) for each in (0, *chance.choices((1, 2, 4, 6), k=2))]
    for waiting in range(1000, 1000 + chance.randint(3, 9)):
        nodes, each, cores = chance.choice(kinds)
        cluster.wait(waiting, nodes, each, cpus=cores * nodes, time_limit_s=300)
    return cluster.snapshot()


def test_memory_and_cores_are_limits_too() -> None:
    """A node whose GPUs are idle but whose cores are taken holds no waiting job."""
    cluster = Cluster(2)
    cluster.run(1, "n1", comment=REQUEST)
    cluster.run(2, "n2", 0, cpus=16)
    cluster.wait(3, 1, 1)
    made = room(cluster.snapshot())
    assert made.served == () and made.forced == {}


def test_a_cpu_job_gets_the_cores_that_companions_sit_on() -> None:
    """Rigid jobs without GPUs come first as well."""
    cluster = Cluster(2)
    cluster.run(1, "n1", comment=REQUEST)
    cluster.companion(5, 1, "n2", 4)
    cluster.wait(3, 1, 0, cpus=16)
    assert room(cluster.snapshot()).forced == {1: frozenset({(5, "n2")})}


def test_drained_nodes_are_no_room() -> None:
    """A drained node is neither kept for a waiting job nor freed for it."""
    cluster = Cluster(3)
    cluster.run(1, "n1 n2", comment=REQUEST)
    cluster.drain("n2")
    cluster.drain("n3")
    cluster.wait(2)
    made = room(cluster.snapshot())
    assert made.served == () and made.forced == {}


def test_what_is_being_released_counts_and_is_marked_as_waiting() -> None:
    """Room that is on its way is not made a second time."""
    cluster = Cluster(3)
    cluster.run(1, "n1 n2 n3", comment=REQUEST)
    cluster.wait(2)
    snapshot = cluster.snapshot()
    ledger = Ledger.of(snapshot)
    ledger.release("n3", Amount(4, 8, 4000))
    made = make_room(snapshot, ledger, [giver(sort_jobs(snapshot), 1)], needs(snapshot, sort_jobs(snapshot)))
    assert made.forced == {} and made.served[0].waits and made.served[0].nodes == ("n3",)
