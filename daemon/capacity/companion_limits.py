"""What Slurm's limits say of a companion as a job of its own: how many more, how small, how much on a node. Pure.

Promise: companions leave the user some of the jobs that he may submit. Limit: how many GPUs they may hold is said by
slurm_limits.gpu_limits; what it does not know, Slurm will say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf

from slurm_elastic.protocol.messages import Shape, Tried

from ..slurm.model import Job
from ..slurm.site import PartitionRules
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
