"""Companions that Slurm keeps waiting for a limit, or for something else that is not nodes."""

from __future__ import annotations

import pytest
from cluster_snapshots import TYPE, Cluster
from store_records import resize_row

from slurm_elastic.daemon.actions.action import Action, Cancel, Close
from slurm_elastic.daemon.capacity.roster import sort_jobs
from slurm_elastic.daemon.mechanisms.reconcile import kept_waiting
from slurm_elastic.daemon.slurm.accounting import SlurmLimit
from slurm_elastic.daemon.slurm.site import Site
from slurm_elastic.protocol.messages import Piece, Resize, Shape

REQUEST = "elastic:gpus=4-12,step=4,batch=240-3840"


def ends(reason: str, *limits: SlurmLimit) -> list[Action]:
    """What is done about job 1's growth while its companion 2 waits for this reason, at a site with these limits."""
    at = Cluster(3)
    at.run(1, "n1", 4, REQUEST)
    at.wait(2, 1, 4, "selastic:companion-of=1;resize=7", name="selastic-1", required_nodes=("n2",), reason=reason)
    shape = Shape(1, 4, 8, 4000, TYPE, node_list=("n2",))
    growth = Resize(7, 1, (Piece(1, "base", ("n1",), 4, TYPE),), (shape,), 8, 240, "grow_idle", 60.0)
    resize = resize_row(growth, "submitted", 900.0, 950.0)
    snapshot = at.snapshot()
    found = kept_waiting(sort_jobs(snapshot, accepted={1}), [resize])
    assert not kept_waiting(sort_jobs(snapshot, accepted={1}), [resize], but=[7])
    return [action for one in found for action in one.actions(snapshot, Site(limits=limits))]


@pytest.mark.parametrize(
    "reason", ["Resources", "Priority", "None", "", "ReqNodeNotAvail", "ReqNodeNotAvail, UnavailableNodes:n2"]
)
def test_one_that_waits_for_nodes_may_wait(reason: str) -> None:
    """It has its time; so has one that Slurm has not looked at, or whose nodes are planned for another job."""
    assert ends(reason) == []


def test_one_that_waits_for_reserved_nodes_is_withdrawn() -> None:
    """They come back when the reservation is over."""
    assert ends("ReqNodeNotAvail, Reserved for maintenance")


def test_one_that_waits_for_a_limit_is_withdrawn_with_its_name() -> None:
    """A limit that is known now: planned again at once, as far as it allows. Another: not before the backoff."""
    why = "Slurm keeps companion 2 waiting: AssocGrpGRES"
    known = SlurmLimit("lab", tres={"gres/gpu": 6.0})
    assert ends("AssocGrpGRES", known) == [Cancel(1, 2, why), Close(1, 7, "overtaken", why)]
    assert ends("AssocGrpGRES") == [Cancel(1, 2, why), Close(1, 7, "withdrawn", why)]
