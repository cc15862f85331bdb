"""Companions: further Slurm jobs of the same user that hold GPUs for the base job, submitted by its supervisor. Pure.

The only way to grow without giving anything up, and the cheapest to give up again: training goes on while a companion
waits, and any of its nodes may go, or all. Limit: nothing in Slurm ties a companion to its base. What a resize leaves
behind is cancelled here, by the supervisor, or by the epilog.
"""

from collections.abc import Iterable

from slurm_elastic.db.rows import ResizeRow
from slurm_elastic.protocol.codes import EventKind, ResizeState
from slurm_elastic.protocol.messages import Piece, Resize, Shape

from ..actions.action import Action, Cancel
from ..actions.refusals import companion_by
from ..capacity.constraints import held_to
from ..capacity.placement import ShapeTemplate, one_node_each, place, reservation_of, take
from ..capacity.roster import ElasticJob
from ..capacity.shrink_options import DropRule
from ..slurm.model import Job
from ..slurm.site import Site
from .base import ChosenWay, FreeNodes, Mechanism, Placement, ResizableJob, WantedSize
from .settings import ResizeSettings


class CompanionJob(Mechanism):
    name = "companion"
    drops = DropRule("companion", price=1, whole=True)
    adds = True
    asks = (EventKind.RESIZE_SUBMITTED,)

    def fits(self, job: ResizableJob, site: Site) -> str:
        return super().fits(job, site) or _unfollowed(job.job) or _barred(job.job.base, site)

    def unsuited(self, job: ResizableJob, chosen: ChosenWay, settings: ResizeSettings) -> str:
        if chosen.gpus > job.gpus:
            return "no free nodes for one"
        if all(piece.kind != "companion" for piece in job.pieces):
            return "it holds none that it could give up"
        return super().unsuited(job, chosen, settings)

    def reaches(self, wanted: WantedSize) -> bool:
        return wanted.gpus > wanted.left and not wanted.elsewhere

    def place(self, job: ResizableJob, keep: tuple[Piece, ...], gpus: int, free: FreeNodes) -> Placement | None:
        more = gpus - sum(piece.gpus for piece in keep)
        base, limits = job.job.base, free.companions
        template = ShapeTemplate.of(base)
        if limits is not None:
            by = limits.by or companion_by(limits.found(base))
            template = ShapeTemplate.of(base, limits.most_on_a_node(base), limits.companion_qos, by, limits.minutes)
        for soon in (False, True):
            shapes = _placed(job, keep, more, template, free, soon)
            if shapes is None:
                continue
            shapes = one_node_each(shapes) if job.one_node_each else shapes
            if limits is None or limits.allow(base, shapes):
                take(free.ledger, shapes)
                if limits is not None:
                    limits.take(base, shapes)
                return Placement(keep, shapes, "the GPUs are still being released" if soon else "")
        return None

    def carries(self, resize: Resize) -> bool:
        return bool(resize.keep and resize.add)

    def awaits(self, job: ElasticJob, resize: ResizeRow) -> tuple[Shape, ...]:
        if resize.state != ResizeState.SUBMITTED:
            return ()
        queued = [set(asked.required_nodes) for asked, tag in job.queued if tag.resize == resize.id]
        return tuple(shape for shape in resize.add if set(shape.node_list) in queued)

    def undo(self, job_id: int, left: Iterable[int], why: str) -> list[Action]:
        return [Cancel(job_id, slurm_job_id, why) for slurm_job_id in left]


def _unfollowed(job: ElasticJob) -> str:
    """What the base asked for that a companion could not be held to."""
    base = job.base
    if base.reservation not in ("", reservation_of(base.job_id)):
        return f"it runs in reservation {base.reservation}, and a companion would leave it"
    if job.constraint is not None:
        return ""
    if held_to(base.features, ()) is None:
        return f"a companion cannot be held to --constraint={base.features}"
    return f"its nodes have no alternative of --constraint={base.features} in common any more"


def _barred(base: Job, site: Site) -> str:
    partition = base.partition.split(",")[0]
    rules = site.partitions.get(partition)
    closed = rules.closed(base.user, site.listed_as(base.account), base.qos) if rules is not None else ""
    if closed:
        return f"partition {partition} {closed}"
    if site.bars_companion_qos(base.account, base.user, base.partition):
        return f"{base.user} may not use the QOS of companions with account {base.account}"
    return ""


def _placed(
    job: ResizableJob, keep: Iterable[Piece], gpus: int, template: ShapeTemplate, free: FreeNodes, soon: bool
) -> tuple[Shape, ...] | None:
    """So many more GPUs, beside what it keeps where nodes are equal."""
    switches = job.shrinkable.switches
    home = {switches[node] for piece in keep for node in piece.nodes if node in switches} if free.under else ()
    near = {node for switch in home for node in free.under[switch]}
    return place(free.ledger, gpus, template, free.nodes, soon, near)
