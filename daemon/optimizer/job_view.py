"""What a policy may know of a job, and what no plan can be made from.

Promise: plain values, checked before they are used; an error names the job and the value.
Limit: a job's choices lie in one pool of equal GPUs; jobs do not influence each other's speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from slurm_elastic.protocol.records import record

from .errors import PlanInputError


class Model(Protocol):
    """What a policy reads of a throughput model (models.ThroughputModel is one)."""

    @property
    def sizes_seen(self) -> Collection[int]: ...
    @property
    def jitter(self) -> float: ...
    def throughput(self, gpus: int, nodes: int, batch: int) -> float: ...
    def throughputs(self, points: Sequence[tuple[int, int, int]]) -> list[float]: ...
    def uncertainties(self, sizes: Sequence[tuple[int, int]]) -> list[float]: ...


@record(frozen=True, slots=True)
class JobView:
    """What a policy may know of a job."""

    label: str
    """The job id as text, for messages."""
    model: Model | None
    """None: nothing was measured yet."""
    choices: tuple[tuple[int, int], ...]
    """Feasible (GPUs, nodes), GPUs ascending; the current one included when running. (0, 0): may go without."""
    batches: Callable[[int], tuple[int, ...]]
    """Feasible global batches at a number of GPUs."""
    current_gpus: int
    """0 when not running."""
    current_batch: int
    reference_gpus: int
    """That it asked for. No unit of progress: that is one GPU, at the reference batch."""
    reference_batch: int
    """That a sample's worth is measured by."""
    weight: float = 1.0
    pause_s: float = 5.0
    """Measured or assumed cost of a resize."""
    horizon_s: float = 600.0
    """Expected time until it is moved again or ends."""
    frozen: bool = False
    """May not move now (cooldown, pinned, resize in flight): only the current size."""
    sigma: float | None = None
    """Relative noise of the curve between two decisions; None: from the model."""
    noise_scale: float | None = None
    """Gradient noise scale in samples; None: not measured."""
    quality: bool = False
    """Whether the training ends at a reached quality, not after a number of epochs: what `auto` goes by."""
    least_per_gpu: float = 0.0
    """What each further GPU has to bring, as a share of what a GPU brings at its best size; 0: anything."""
    restart_sizes: frozenset[int] = frozenset()
    """Sizes that only a restart of the whole job reaches."""
    restart_pause_s: float = 0.0
    """What a move to one of them costs instead of `pause_s`."""


def check(job: JobView) -> None:
    """Refuse what no plan can be made from, naming the job and the value."""
    sigma, inf = job.sigma or 0.0, math.inf
    usual = 0 < job.weight < inf and 0 <= job.pause_s < inf and 0 < job.horizon_s < inf and 0 <= sigma < inf
    if not (usual and 0 <= job.restart_pause_s < inf):
        _refuse(job)
    if not job.choices and not job.current_gpus:
        raise PlanInputError(f"job {job.label} has no feasible size")
    if job.reference_gpus < 1 or job.reference_batch < 1:
        raise PlanInputError(f"job {job.label}: reference {job.reference_gpus} GPUs at batch {job.reference_batch}")


def _refuse(job: JobView) -> None:
    numbers = {"weight": job.weight, "pause": job.pause_s, "horizon": job.horizon_s, "sigma": job.sigma or 0.0}
    for name, value in {**numbers, "pause of a restart": job.restart_pause_s}.items():
        if not math.isfinite(value) or value < 0 or (name in ("weight", "horizon") and value == 0):
            raise PlanInputError(f"job {job.label}: {name} {value} is not a positive number")


def nodes_at(job: JobView, gpus: int) -> int:
    """Nodes of a size: as the choices say, else as dense as the densest of them."""
    for k, nodes in job.choices:
        if k == gpus:
            return max(1, nodes)
    dense = max((k / n for k, n in job.choices if n > 0), default=float(gpus))
    return max(1, math.ceil(gpus / dense))
