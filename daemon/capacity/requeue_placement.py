"""Whole sizes for a job that restarts: which equal share of how many nodes it can have, and where. Pure.

Used for a resize by requeue, and for a job that was preempted or lost its node and comes back at what is left. Limit:
for ordinary batch jobs that asked for their GPUs per node; others come back as they were submitted. Of a job that
comes back Slurm chooses the nodes, and not always those that were found here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from slurm_elastic.protocol.messages import Shape

from ..slurm.model import Job, Size, Snapshot
from .constraints import meets, out_of_reach
from .ledger import Amount, Ledger
from .pending_jobs import SOON_S
from .placement import ShapeTemplate
from .roster import ElasticJob

BEGIN_S = 121.0
"""Seconds for which Slurm keeps a job that was put back from starting."""
SETTLE_S = 2.0
"""Of these, before its size is touched: Slurm fails a launch in the second in which the job was killed."""


def can_restart(job: ElasticJob) -> bool:
    """Whether Slurm can give the job another whole size. One in a reservation of its owner's stays as it is."""
    base = job.base
    ordinary = bool(base.asked_per_node) and not job.components and not base.het_job_id and not base.array_job_id
    return ordinary and base.reservation in ("", reservation_of(job.job_id))


def reservation_of(job_id: int) -> str:
    """The name of the reservation that keeps nodes for a job while a resize puts it back."""
    return f"selastic-{job_id}"


def whole_sizes(gpus: int, most: int) -> Iterator[Size]:
    """Every way to hold so many GPUs in equal shares of at most `most` a node, the fewest nodes first."""
    for share in range(min(gpus, most), 0, -1):
        if gpus % share == 0:
            yield Size(gpus // share, share)


def place_restart(
    ledger: Ledger,
    own: Mapping[str, Amount],
    gpus: int,
    template: ShapeTemplate,
    nodes: Iterable[str],
    most: int,
    apart: Collection[tuple[str, str]] = (),
) -> Shape | None:
    """A shape of exactly `gpus` GPUs on what is free and what the job itself gives back (`own`, by node), its own
    nodes first; None when no equal share fits. Takes nothing from the ledger.

    apart: pairs of nodes that do not reach each other; of each one at most is taken.
    """
    usable = [name for name in nodes if ledger.usable(name)]
    for size in whole_sizes(gpus, most):
        amount = template.amount(size.gpus_per_node)
        fits = [name for name in usable if (ledger.now[name] + own.get(name, Amount())).covers(amount)]
        if apart and size.nodes > 1:
            alone = out_of_reach((), fits, apart)
            fits = [name for name in fits if name not in alone]
        if len(fits) >= size.nodes:
            chosen = sorted(fits, key=lambda name: (name not in own, name))[: size.nodes]
            return template.shape(size.gpus_per_node, chosen)
    return None


def put_back(base: Job, now: float) -> bool:
    """Whether a waiting job has run before and waits for nodes only, or for the time that Slurm set by itself.

    A hold, a dependency, or a begin time further off are somebody's wish.
    """
    if not base.pending or not base.restarts:
        return False
    # "JobHeldUser", and Slurm's own "launch failed requeued held", which is for an admin to look at.
    held = "held" in base.reason.lower()
    wish = held or base.reason.startswith("Depend") or base.eligible_time > now + BEGIN_S
    fresh = base.eligible_time > now + BEGIN_S - SETTLE_S
    return not wish and not fresh


def _nodes(snapshot: Snapshot, base: Job, template: ShapeTemplate) -> list[str]:
    inside = (node for node in snapshot.nodes.values() if template.partition in node.partitions)
    return [node.name for node in inside if meets(base.features, node.features)]


def comes_back_at(
    snapshot: Snapshot,
    job: ElasticJob,
    ledger: Ledger,
    accepted: Collection[int],
    apart: Collection[tuple[str, str]] = (),
) -> Shape | None:
    """The shape to give a job that was put back: the largest accepted one that fits now, up to what it asks for, on
    nodes that reach each other (`apart`: pairs that do not).

    Where none fits, the smallest, without nodes: it then waits for no more than it needs. None: leave it as it is.
    """
    base, now = job.base, snapshot.at
    asks = Size(max(1, base.num_nodes), base.asked_per_node)
    template = ShapeTemplate.of(base)
    nodes = _nodes(snapshot, base, template)
    sizes = sorted((size for size in accepted if size <= asks.gpus), reverse=True)
    for gpus in sizes:
        found = place_restart(ledger, {}, gpus, template, nodes, asks.gpus_per_node, apart)
        if found is not None:
            same = Size(found.nodes, found.gpus_per_node) == asks
            return None if same and base.eligible_time <= now + SOON_S else found
    least = next(whole_sizes(min(sizes), asks.gpus_per_node), None) if sizes else None
    if least is None or (least == asks and base.eligible_time <= now + SOON_S):
        return None
    return Shape(least.nodes, least.gpus_per_node, partition=template.partition)
