"""Components of a heterogeneous job: given up whole, or down to their first node."""

from __future__ import annotations

import pytest
from cluster_snapshots import Cluster
from resizable_jobs import free_nodes, resizable

from slurm_elastic.daemon.actions.action import Cancel, Shrink
from slurm_elastic.daemon.capacity.roster import sort_jobs
from slurm_elastic.daemon.mechanisms.base import ChosenWay, WantedSize
from slurm_elastic.daemon.mechanisms.companion import CompanionJob
from slurm_elastic.daemon.mechanisms.component import ComponentRelease
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.slurm.model import Snapshot
from slurm_elastic.daemon.slurm.site import Site

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
