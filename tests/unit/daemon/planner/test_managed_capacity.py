"""Managed capacity is what is there: of every order in which a grant and a shrink, both listings and the store can be
read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from cluster_snapshots import Cluster
from plan_cases import NOW, REQUEST, SETTINGS, Curve, seen
from store_records import resize_row

from slurm_elastic.daemon.capacity.ledger import Ledger, held_but_idle
from slurm_elastic.daemon.capacity.roster import sort_jobs
from slurm_elastic.daemon.models.cache import observations
from slurm_elastic.daemon.planner import Inputs, JobState, Plan, plan_round
from slurm_elastic.daemon.planner.tables import Tables
from slurm_elastic.daemon.slurm.model import Snapshot
from slurm_elastic.db.rows import InUse, ResizeRow
from slurm_elastic.protocol.codes import ResizeState
from slurm_elastic.protocol.messages import Piece, Resize, Shape

BASE, COMPANION = Piece(1, "base", ("n1",), 4, "a100"), Piece(101, "companion", ("n2", "n3"), 4, "a100")
ADD = Shape(2, 4, 8, 4000, "a100", node_list=("n2", "n3"))
GPUS = 12
"""n4 is an ordinary job's; n1, n2 and n3 are all that elastic jobs may have."""
WINDOW = 6
"""So many things happen at most while one round reads."""


@dataclass(frozen=True)
class Moment:
    """What is so at one moment, in Slurm and in the store."""

    snapshot: Snapshot
    resize: ResizeRow | None
    trained_on: tuple[Piece, ...]


def moment(companion: str, state: ResizeState | None, trained_on: tuple[Piece, ...], grows: bool = True) -> Moment:
    """`companion`: none, waits or runs. `state`: of the open resize, if there is one."""
    cluster = Cluster(4)
    cluster.run(1, "n1", 4, REQUEST)
    cluster.run(9, "n4", 4)
    if companion != "none":
        cluster.companion(101, 1, "n2 n3")
    if companion == "waits":
        cluster.change(101, state="PENDING", nodes=(), num_nodes=2)
    resize = Resize(1, 1, (BASE,), (ADD,) if grows else (), 12 if grows else 4, 256, "grow_idle", 60.0)
    row = None if state is None else resize_row(resize, state, NOW, NOW)
    return Moment(cluster.snapshot(), row, trained_on)


def story() -> list[Moment]:
    """A job grows by a companion, and gives it back."""
    small, large = (BASE,), (BASE, COMPANION)
    grows = [
        *[moment("none", None, small), moment("none", ResizeState.ISSUED, small)],
        *[moment("waits", ResizeState.SUBMITTED, small), moment("runs", ResizeState.SUBMITTED, small)],
        *[moment("runs", ResizeState.READY, small), moment("runs", ResizeState.READY, large)],
        *[moment("runs", ResizeState.RUNNING, large), moment("runs", None, large)],
    ]
    shrinks = [
        *[moment("runs", ResizeState.ISSUED, large, False), moment("runs", ResizeState.READY, small, False)],
        *[moment("runs", ResizeState.RUNNING, small, False), moment("none", ResizeState.RUNNING, small, False)],
        moment("none", None, small),
    ]
    return grows + shrinks


def planned(jobs: Moment, nodes: Moment, resize: Moment, trained_on: Moment) -> Plan:
    """The plan of a round that read each of these at that moment."""
    snapshot = replace(jobs.snapshot, nodes=nodes.snapshot.nodes)
    measured = (seen(4), seen(12, 0.4))
    state = JobState(
        in_use=InUse(1, 0, trained_on.trained_on, 256, 0.0, 0.0),
        resize=resize.resize,
        observations=measured,
        model=Curve(observations(measured)),
        reference=(4, 256),
        reported_at=NOW - 20,
    )
    roster = sort_jobs(snapshot, accepted={1})
    return plan_round(Inputs(snapshot, roster, {1: state}, SETTINGS, NOW, (), Tables()))


def orders(last: int) -> Iterator[tuple[int, int, int, int]]:
    """Every order of reading: the jobs first, then the nodes, the open resizes, what is trained on."""
    for jobs in range(last):
        within = range(jobs, min(last, jobs + WINDOW))
        yield from (
            (jobs, nodes, resize, use)
            for nodes in within
            for resize in within
            for use in within
            if nodes <= resize <= use
        )


def test_every_gpu_counts_once_in_whatever_order_a_round_reads() -> None:
    """No more than the pool has, and no less than the job holds and nobody else does."""
    moments = story()
    wrong = {}
    for order in orders(len(moments)):
        plan = planned(*(moments[index] for index in order))
        if sum(plan.capacity.values()) != GPUS:
            wrong[order] = plan.capacity
    assert wrong == {}


def test_no_resize_begins_that_what_was_read_later_makes_needless() -> None:
    """A job is not grown onto the nodes that it has just got, nor shrunk from what it has just left."""
    moments = story()
    for order in orders(len(moments)):
        plan = planned(*(moments[index] for index in order))
        added = {node for resize in plan.resizes for shape in resize.add for node in shape.node_list}
        running = moments[order[0]].snapshot.jobs.get(101)
        later = moments[order[2]]
        assert not (added and COMPANION in moments[order[3]].trained_on and later.resize is None), (order, plan.resizes)
        assert all(running is None or not running.running or COMPANION in r.keep for r in plan.resizes if added), order


@pytest.mark.parametrize(("held", "used", "free"), [(4, 0, 0), (4, 2, 0), (2, 0, 2), (2, 4, 0)])
def test_a_gpu_is_not_free_where_either_listing_has_it_in_use(held: int, used: int, free: int) -> None:
    """The listing of nodes may be older, or newer, than that of jobs."""
    cluster = Cluster(1)
    cluster.run(1, "n1", held)
    snapshot = cluster.snapshot()
    snapshot = replace(snapshot, nodes={"n1": replace(snapshot.nodes["n1"], gpus_used=used)})
    assert Ledger.of(snapshot).gpus(["n1"]) == free
    assert held_but_idle(snapshot) == ({"n1": held - used} if held > used else {})


def test_a_completing_job_holds_nothing_that_its_node_gives_back() -> None:
    """Slurm gives its GPUs to the next one while its epilog runs."""
    cluster = Cluster(1)
    cluster.run(1, "n1", 4)
    idle = Cluster(1).snapshot().nodes
    cluster.change(1, state="COMPLETING")
    snapshot = replace(cluster.snapshot(), nodes=idle)
    assert held_but_idle(snapshot) == {} and Ledger.of(snapshot).gpus(["n1"]) == 4
