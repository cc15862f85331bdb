"""Where GPUs for a job can come from: the shapes of the companions it would submit, what Slurm's limits say of each as
a job of its own, and of a job that restarts which equal share of how many nodes it can have. Pure.

For companions whole nodes first, then what is left over on the fullest node that still has it: the fewest pieces, the
least spread. They are pinned to their nodes, so that they do not land on what is kept for a waiting job, and leave the
user some of the jobs that he may submit. How many GPUs they may hold is said by slurm_limits.gpu_limits; what that does
not know, Slurm will say.

Whole sizes are for a resize by requeue, and for a job that was preempted or lost its node and comes back at what is
left. Limit: for ordinary batch jobs that asked for their GPUs per node; others come back as they were submitted. Of a
job that comes back Slurm chooses the nodes, and not always those that were found here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from math import inf

from slurm_elastic.protocol.messages import Shape, Tried
from slurm_elastic.protocol.records import record

from ..slurm.model import Job, Size, Snapshot
from ..slurm.site import PartitionRules
from .constraints import meets, out_of_reach
from .ledger import Amount, Ledger, amount_of
from .pending_jobs import SOON_S
from .roster import ElasticJob
from .slurm_limits import SHARED, Bound, LimitUsage, as_companion, charged, companions_left, of_shape, uses


class CompanionLimits:
    """For one plan: what it places is counted, so that two jobs do not take the same last place."""

    def __init__(
        self, usage: LimitUsage, promised: LimitUsage, companion_qos: str = "", by: str = "", minutes: int = 0
    ) -> None:
        """by, minutes: `Shape.by` of companions, empty: as was probed; and `Shape.minutes`."""
        self.companion_qos, self.by, self.minutes = companion_qos, by, minutes
        self._usage = usage.plus(promised)
        self.refused: dict[int, str] = {}
        """The limit that keeps a job from a companion, by job id."""

    def found(self, base: Job) -> Mapping[str, Tried]:
        """What `selastic probe` found that counts for this job."""
        return self._usage.site.found(base.user, base.partition)

    def allow(self, base: Job, shapes: Collection[Shape]) -> bool:
        """Whether a job may ask for these companions, as jobs."""
        partition = base.partition.split(",")[0]
        rules = self._usage.site.partitions.get(partition, _NO_RULES)
        unfit = next(filter(None, (rules.unfit(shape.nodes) for shape in shapes)), "")
        if unfit:
            self.refused[base.job_id] = f"{unfit} of partition {partition}"
            return False
        bounds = self._bounds(base)
        wanted = [self._usage.beside(base, of_shape(shape)) for shape in shapes] if bounds else []
        for bound in bounds:
            if bound.scope in SHARED and bound.name in ("jobs", "submits"):
                allowed = len(shapes) <= companions_left(bound, self._usage.left(bound))
            elif bound.scope in SHARED and bound.of_time:
                allowed = sum(one.get(bound.name, 0.0) for one in wanted) <= max(0.0, self._usage.left(bound))
            elif bound.scope == "least":
                allowed = all(one.get(bound.name, bound.most) >= bound.most for one in wanted)
            elif bound.scope == "job":
                allowed = all(one.get(bound.name, 0.0) <= bound.most for one in wanted)
            else:
                continue
            if not allowed:
                self.refused[base.job_id] = bound.label
                return False
        self.refused.pop(base.job_id, None)
        return True

    def take(self, base: Job, shapes: Collection[Shape]) -> None:
        """Count the shapes as asked for."""
        for shape in shapes if self._bounds(base) else ():
            who = charged(as_companion(base, self.companion_qos))
            self._usage.add(who, self._usage.beside(base, of_shape(shape)))

    def most_on_a_node(self, base: Job) -> int:
        """The most GPUs that one of its companions may have on a node; 0: as many as there are."""
        bounds = self._bounds(base)
        each = uses(base) if bounds else {}
        found = [
            int(bound.most // (each[bound.name] / max(1, base.gpus)))
            for bound in bounds
            if bound.scope == "node" and each.get(bound.name) and bound.name.startswith("gres/gpu")
        ]
        each_cpus = base.cpus / max(1, base.gpus)
        rules = self._usage.site.partitions.get(base.partition.split(",")[0], _NO_RULES)
        if each_cpus and rules.max_cpus_per_node < inf:
            found.append(max(1, int(rules.max_cpus_per_node // each_cpus)))
        return min(found, default=0)

    def _bounds(self, base: Job) -> tuple[Bound, ...]:
        if not self._usage.site.limits:
            return ()
        return self._usage.bounds(charged(as_companion(base, self.companion_qos)))


_NO_RULES = PartitionRules()


@record(frozen=True, slots=True)
class ShapeTemplate:
    """What every shape for a job has in common, whatever its size."""

    partition: str
    account: str
    qos: str
    gpu_type: str
    cpus_per_gpu: float
    mem_mb_per_gpu: float
    most_on_a_node: int = 0
    """GPUs; 0: as many as there are."""
    node_gpus: int = 0
    """GPUs of the whole nodes that it takes; 0: parts of nodes do."""
    by: str = ""
    minutes: int = 0
    """`Shape.by` and `Shape.minutes`."""

    @classmethod
    def of(
        cls, job: Job, most_on_a_node: int = 0, companion_qos: str = "", by: str = "", minutes: int = 0
    ) -> ShapeTemplate:
        """That of an elastic job's base. `companion_qos`: QOS of the shapes, where it is not the base's."""
        gpus = max(1, job.gpus)
        partition = job.partition.split(",")[0]
        share = max(1, job.gpus_per_node or gpus // max(1, len(job.nodes)))
        whole = job.gpus_per_node if job.exclusive else 0
        per_gpu = job.cpus / gpus, job.mem_mb / share
        qos = companion_qos or job.qos
        return cls(partition, job.account, qos, job.gpu_type, *per_gpu, most_on_a_node, whole, by, minutes)

    def amount(self, gpus: int) -> Amount:
        """What `gpus` GPUs on one node come with."""
        return amount_of(gpus, max(1, round(self.cpus_per_gpu * gpus)), round(self.mem_mb_per_gpu * gpus))

    def most(self, free: Amount) -> int:
        """The most GPUs that fit into what is free on a node."""
        most = min(free.gpus, self.most_on_a_node or free.gpus)
        if self.node_gpus:
            return self.node_gpus if self.node_gpus <= most and free.covers(self.amount(self.node_gpus)) else 0
        gpus = most
        while gpus > 0 and not free.covers(self.amount(gpus)):
            gpus -= 1
        return gpus

    def shape(self, gpus_per_node: int, nodes: Collection[str]) -> Shape:
        """So many GPUs on each of these nodes."""
        amount = self.amount(gpus_per_node)
        return Shape(
            nodes=len(nodes),
            gpus_per_node=gpus_per_node,
            cpus_per_node=amount.cpus,
            mem_mb_per_node=amount.mem_mb,
            gpu_type=self.gpu_type,
            partition=self.partition,
            account=self.account,
            qos=self.qos,
            node_list=tuple(sorted(nodes)),
            by=self.by,
            minutes=self.minutes,
        )


def place(
    ledger: Ledger,
    gpus: int,
    template: ShapeTemplate,
    nodes: Iterable[str],
    soon: bool = False,
    near: Collection[str] = (),
) -> tuple[Shape, ...] | None:
    """Shapes that hold exactly `gpus` further GPUs; None when they do not fit. Takes nothing from the ledger.

    `near`: nodes to take before others with as many free GPUs, for they lie next to the job's own.
    `soon`: count what is being released as well; such a plan can only be carried out later.
    """
    idle = ledger.idle_nodes(nodes, soon)
    fits: dict[int, list[Amount]] = {}
    for amount in idle.amounts:  # most nodes are alike
        fits.setdefault(template.most(amount), []).append(amount)
    fits.pop(0, None)
    taken: dict[str, int] = {}
    left = gpus
    for size in sorted(fits, reverse=True):
        for name in islice(idle.of(fits[size], near), left // size):
            taken[name] = size
            left -= size
    if left and template.node_gpus:
        return None
    if left:
        # the remainder where it leaves least over
        spare = (name for size in sorted(fits) if size >= left for name in idle.of(fits[size], near))
        last = next((name for name in spare if name not in taken), None)
        if last is None:
            return None
        taken[last] = left
    return _shapes(taken, template)


def one_node_each(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    """The same nodes, each as a shape of its own."""
    return tuple(replace(shape, nodes=1, node_list=(node,)) for shape in shapes for node in shape.node_list)


def take(ledger: Ledger, shapes: Iterable[Shape]) -> None:
    """Count the shapes as used, so that the next one is placed elsewhere."""
    for shape in shapes:
        for node in shape.node_list:
            if ledger.usable(node):
                ledger.take(node, Amount(shape.gpus_per_node, shape.cpus_per_node, shape.mem_mb_per_node))


def _shapes(taken: dict[str, int], template: ShapeTemplate) -> tuple[Shape, ...]:
    by_size: dict[int, list[str]] = {}
    for name, gpus in taken.items():
        by_size.setdefault(gpus, []).append(name)
    return tuple(template.shape(gpus, names) for gpus, names in sorted(by_size.items(), reverse=True))


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
