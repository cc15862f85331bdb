"""The job's own Slurm job: shrunk to whole nodes, and never expanded; components: given up whole, or down to their
first node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_snapshots import Cluster
from resizable_jobs import free_nodes, resizable
from store_records import resize_row

from slurm_elastic.daemon.actions.action import Cancel, Close, Shrink
from slurm_elastic.daemon.capacity.roster import sort_jobs
from slurm_elastic.daemon.mechanisms.base import ChosenWay, WantedSize
from slurm_elastic.daemon.mechanisms.companion import CompanionJob
from slurm_elastic.daemon.mechanisms.in_place import ComponentRelease, ExpandInPlace, ShrinkInPlace
from slurm_elastic.daemon.mechanisms.requeue import RequeueResized
from slurm_elastic.daemon.mechanisms.settings import Bounds
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.slurm.model import Snapshot
from slurm_elastic.daemon.slurm.site import Site
from slurm_elastic.protocol.messages import Piece, Resize

SHRINK, EXPAND = ShrinkInPlace(), ExpandInPlace()
REFUSED = "Slurm refuses it for a job that holds GPUs"
COMPONENT = ComponentRelease()


def snapshot(via: str = "") -> Snapshot:
    """Job 1 on n1 with a component on n2 and n3."""
    world = Cluster(4)
    world.run(1, "n1", comment=f"elastic:gpus=1-32,batch=16-4096{via}", het_job_id=1)
    world.run(2, "n2 n3", 4, het_job_id=1, het_offset=1)
    return world.snapshot()


def test_it_fits_heterogeneous_jobs_alone() -> None:
    """An ordinary job has nothing that it could release."""
    world = Cluster(2)
    world.run(1, "n1", comment="elastic:gpus=1-32,batch=16-4096")
    assert COMPONENT.fits(resizable(world.snapshot()), Site()) == "it is no heterogeneous job"
    assert COMPONENT.fits(resizable(snapshot()), Site()) == ""
    unnamed = COMPONENT.fits(resizable(snapshot(",via=shrink")), Site())
    assert unnamed == "its request does not name it (via=shrink)"


def test_it_costs_a_pause_and_never_grows() -> None:
    """Slurm adds no component to a job that runs."""
    at = snapshot()
    job = resizable(at, pause_s=0.25)
    assert COMPONENT.cost_s(job, Settings()) == 0.25
    assert not COMPONENT.reaches(WantedSize(32, 12)) and COMPONENT.place(job, job.pieces, 16, free_nodes(at)) is None
    chosen = ChosenWay(16, (CompanionJob(),), 0.25)
    assert COMPONENT.why_not(job, Site(), chosen, Settings()) == "it only gives up nodes"


@pytest.mark.parametrize(("due", "action"), [
    ({(2, "n3")}, Shrink(1, 2, ("n2",), "why")),
    ({(2, "n2"), (2, "n3")}, Cancel(1, 2, "why")),
    ({(2, "n2")}, None),
])  # fmt: skip
def test_it_keeps_its_first_node_or_goes_whole(due: set[tuple[int, str]], action: object) -> None:
    """Slurm refuses to take a component's first node."""
    job = sort_jobs(snapshot(), accepted={1}).elastic[1]
    assert COMPONENT.release(job, job.held[1], due, "why") == action


def test_a_release_is_not_undone() -> None:
    """What is given up does not come back."""
    assert COMPONENT.undo(1, (2,), "why") == []


def of_one_job(via: str = "") -> Snapshot:
    """Job 1 on n1, n2 and n3; n4 is idle."""
    world = Cluster(4)
    world.run(1, "n1 n2 n3", comment=f"elastic:gpus=1-32,batch=16-4096{via}")
    return world.snapshot()


def test_it_fits_whoever_names_it_and_costs_a_pause() -> None:
    """The measured pause, or the one that the settings assume."""
    job = resizable(of_one_job())
    assert SHRINK.fits(job, Site()) == ""
    assert SHRINK.fits(resizable(of_one_job(",via=companion")), Site()).startswith("its request does not name it")
    assert SHRINK.cost_s(job, Settings()) == Settings().assumed_pause_s
    assert SHRINK.cost_s(replace(job, pause_s=0.25), Settings()) == 0.25


def test_it_adds_nothing() -> None:
    """Sizes below are reached by giving up nodes, which the planner tries first."""
    at = of_one_job()
    job = resizable(at)
    assert not SHRINK.reaches(WantedSize(16, 12)) and SHRINK.place(job, job.pieces, 16, free_nodes(at)) is None


def test_why_it_was_passed_over() -> None:
    """It gives up nodes only, whole ones, and not the batch host's."""
    job, requeue = resizable(of_one_job()), (RequeueResized(),)

    def why(chosen: ChosenWay) -> str:
        return SHRINK.why_not(job, Site(), chosen, Settings())

    assert why(ChosenWay(16, requeue, 20.0)) == "it only gives up nodes"
    assert why(ChosenWay(6, requeue, 20.0)) == "whole nodes given up do not come to 6 GPUs"
    assert why(ChosenWay(4, (), 0.5)) == "others give up enough"
    assert why(ChosenWay(12, requeue, 20.0, elsewhere=True)).startswith("one of its own nodes is to become empty")


@pytest.mark.parametrize(("due", "kept"), [
    (("n2",), ("n1", "n3")),
    (("n1", "n2", "n3"), ("n1",)),
    (("n1",), None),
])  # fmt: skip
def test_the_batch_host_is_never_released(due: tuple[str, ...], kept: tuple[str, ...] | None) -> None:
    """Slurm refuses to take it."""
    job = sort_jobs(of_one_job(), accepted={1}).elastic[1]
    action = SHRINK.release(job, job.held[0], {(1, node) for node in due}, "why")
    assert action == (Shrink(1, 1, kept, "why") if kept else None)


def test_a_base_seen_without_its_batch_host_is_not_ended() -> None:
    """Whatever a listing says, the base's own Slurm job is never cancelled to give up nodes."""
    job = sort_jobs(of_one_job(), accepted={1}).elastic[1]
    odd = replace(job, base=replace(job.base, batch_host="n9"))
    action = SHRINK.release(odd, job.held[0], {(1, node) for node in ("n1", "n2", "n3")}, "why")
    assert action == Shrink(1, 1, ("n1",), "why")


def test_an_open_resize_needs_the_job_to_run() -> None:
    """Its releases follow from what is held and not used; a job that is gone ends it."""
    job = sort_jobs(of_one_job(), accepted={1}).elastic[1]
    keep = (Piece(1, "base", ("n1",), 4),)
    resize = resize_row(Resize(7, 1, keep, (), 4, 256, "r", 60.0), "accepted", 0.0, 0.0)
    assert SHRINK.next_actions(job, None, resize, 1.0, Bounds()) == []
    assert SHRINK.next_actions(None, None, resize, 1.0, Bounds()) == [
        Close(1, 7, "withdrawn", "the job does not run any more")
    ]
    assert SHRINK.undo(1, (), "why") == []


def test_expand_is_accepted_and_never_used() -> None:
    """Whoever names it hears why."""
    job = resizable(of_one_job(",via=shrink+expand"))
    assert EXPAND.fits(job, Site()) == REFUSED
    assert EXPAND.why_not(job, Site(), ChosenWay(4, (SHRINK,), 0.5, elsewhere=True), Settings()) == REFUSED
    assert not EXPAND.reaches(WantedSize(16, 12))
    assert EXPAND.place(job, job.pieces, 16, free_nodes(of_one_job())) is None
