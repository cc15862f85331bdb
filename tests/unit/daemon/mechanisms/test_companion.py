"""Companions: where they are placed, what is waited for, and what takes them back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_snapshots import Cluster
from resizable_jobs import free_nodes, resizable
from store_records import resize_row

from slurm_elastic.daemon.actions.action import Cancel, Shrink
from slurm_elastic.daemon.capacity.ledger import Amount
from slurm_elastic.daemon.capacity.roster import sort_jobs
from slurm_elastic.daemon.mechanisms.base import ChosenWay, WantedSize
from slurm_elastic.daemon.mechanisms.companion import CompanionJob
from slurm_elastic.daemon.mechanisms.in_place import ShrinkInPlace
from slurm_elastic.daemon.mechanisms.requeue import RequeueResized
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.slurm.site import Site
from slurm_elastic.protocol.messages import Resize, Shape

COMPANION = CompanionJob()
REQUEST = "elastic:gpus=1-32,batch=16-4096"


def cluster(nodes: int = 4) -> Cluster:
    """Job 1 on n1."""
    world = Cluster(nodes)
    world.run(1, "n1", comment=REQUEST)
    return world


def test_it_fits_whoever_names_it_and_costs_a_pause() -> None:
    """The measured pause, or the one that the settings assume."""
    job = resizable(cluster().snapshot())
    assert COMPANION.fits(job, Site()) == ""
    assert COMPANION.cost_s(job, Settings()) == Settings().assumed_pause_s
    assert COMPANION.cost_s(replace(job, pause_s=0.25), Settings()) == 0.25


def test_it_reaches_what_lies_above_what_is_kept() -> None:
    """It cannot make a job smaller, nor move its base."""
    assert COMPANION.reaches(WantedSize(8, 4)) and COMPANION.reaches(WantedSize(8, 4, forced=True))
    assert not COMPANION.reaches(WantedSize(4, 4)) and not COMPANION.reaches(WantedSize(8, 4, elsewhere=True))


def test_it_places_what_is_missing_on_free_nodes_and_takes_it() -> None:
    """The ledger knows, so that the next job is placed elsewhere."""
    snapshot = cluster().snapshot()
    job, free = resizable(snapshot), free_nodes(snapshot)
    placed = COMPANION.place(job, job.pieces, 12, free)
    assert placed is not None and placed.keep == job.pieces and placed.later == ""
    assert [shape.node_list for shape in placed.add] == [("n2", "n3")]
    assert COMPANION.place(job, job.pieces, 12, free) is None


def test_what_is_being_released_is_placed_for_later() -> None:
    """The plan says so, and the resize begins in a later round."""
    world = cluster(2)
    world.run(2, "n2")
    snapshot = world.snapshot()
    job, free = resizable(snapshot), free_nodes(snapshot)
    assert COMPANION.place(job, job.pieces, 8, free) is None
    free.ledger.release("n2", Amount(4, 8, 4000))
    placed = COMPANION.place(job, job.pieces, 8, free)
    assert placed is not None and "still being released" in placed.later


def test_it_is_placed_near_what_the_job_keeps() -> None:
    """Nodes under the same switch come first."""
    snapshot = cluster().snapshot()
    job, free = resizable(snapshot), free_nodes(snapshot)
    switches = {"n1": "leaf2", "n2": "leaf1", "n3": "leaf1", "n4": "leaf2"}
    job = replace(job, shrinkable=replace(job.shrinkable, switches=switches))
    placed = COMPANION.place(job, job.pieces, 8, replace(free, under={"leaf1": ["n2", "n3"], "leaf2": ["n1", "n4"]}))
    assert placed is not None and placed.add[0].node_list == ("n4",)


def test_why_it_was_passed_over() -> None:
    """For growth by others there was no room; for less, it has to hold one that it could give up."""

    def why(world: Cluster, gpus: int, restart: bool = False) -> str:
        by = (RequeueResized() if restart else ShrinkInPlace(),)
        return COMPANION.why_not(resizable(world.snapshot()), Site(), ChosenWay(gpus, by, 1.0), Settings())

    holding = cluster()
    holding.companion(5, 1, "n3", resize=7)
    assert why(cluster(), 8, restart=True) == "no free nodes for one"
    assert why(cluster(), 2) == "it holds none that it could give up"
    assert why(holding, 6) == "others give up enough"
    assert why(holding, 6, restart=True) == "whole nodes given up do not come to 6 GPUs"


@pytest.mark.parametrize(("due", "action"), [
    ({(5, "n3")}, Shrink(1, 5, ("n4",), "why")),
    ({(5, "n3"), (5, "n4")}, Cancel(1, 5, "why")),
    (set(), None),
])  # fmt: skip
def test_any_of_its_nodes_can_be_released(due: set[tuple[int, str]], action: object) -> None:
    """Part of them by a shrink, all of them by ending it."""
    world = cluster()
    world.companion(5, 1, "n3 n4", resize=7)
    job = sort_jobs(world.snapshot(), accepted={1}).elastic[1]
    assert COMPANION.release(job, job.held[1], due, "why") == action


def test_an_open_resize_waits_for_the_companions_in_the_queue() -> None:
    """For one that runs, or was not submitted yet, no nodes can be lost."""
    world = cluster()
    world.wait(5, 1, 4, "selastic:companion-of=1;resize=7", name="selastic-1", required_nodes=("n2",))
    job = sort_jobs(world.snapshot(), accepted={1}).elastic[1]
    queued, granted = Shape(1, 4, node_list=("n2",)), Shape(1, 4, node_list=("n3",))
    resize = resize_row(Resize(7, 1, job.pieces, (queued, granted), 12, 256, "r", 60.0), "submitted", 0.0, 0.0)
    assert COMPANION.awaits(job, resize) == (queued,)
    assert COMPANION.awaits(job, replace(resize, state="accepted")) == ()


def test_what_it_leaves_behind_is_cancelled() -> None:
    """Each companion by its own id: nothing in Slurm ties it to its base."""
    assert COMPANION.undo(1, (5, 6), "why") == [Cancel(1, 5, "why"), Cancel(1, 6, "why")]
