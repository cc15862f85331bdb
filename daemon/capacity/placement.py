"""Where further GPUs for a job can come from: the shapes of the companions it would submit. Pure.

Whole nodes first, then what is left over on the fullest node that still has it: the fewest pieces, the least spread.
Companions are pinned to their nodes, so that they do not land on what is kept for a waiting job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import islice

from slurm_elastic.protocol.messages import Shape
from slurm_elastic.protocol.records import record

from ..slurm.model import Job
from .ledger import Amount, Ledger, amount_of


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
