"""What a policy may know of a job, and what no plan can be made from.

Promise: plain values, checked before they are used; an error names the job and the value.
Limit: a job's choices lie in one pool of equal GPUs; jobs do not influence each other's speed.
"""

import math
from collections.abc import Callable, Collection, Sequence
from numbers import Integral
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


@record(frozen=True, slots=True, eq=False)
class JobView:
    """What a policy may know of a job. One is equal to itself alone: what is made of it is kept under it."""

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
    batch_pause_s: float = 0.0
    """The same of a change of its batch alone; 0: nothing to speak of, or none was measured."""
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


LARGEST = 1e100
"""Largest weight, pause, horizon, sigma: what is made of them is still a number."""
MOST_GPUS, MOST_SAMPLES = 10**9, 10**15
"""Largest size, and number of nodes; largest batch."""


def check(job: JobView) -> None:
    """Refuse what no plan can be made from, naming the job and the value. Sizes and batches: `check_sizes`."""
    sigma, least = job.sigma or 0.0, job.least_per_gpu
    usual = 0 < job.weight <= LARGEST and 0 <= job.pause_s <= LARGEST and 0 < job.horizon_s <= LARGEST
    costs = 0 <= job.restart_pause_s <= LARGEST and 0 <= job.batch_pause_s <= LARGEST
    if not (usual and costs and 0 <= sigma <= LARGEST and 0 <= least <= LARGEST):
        _refuse(job)
    if not job.choices and not job.current_gpus:
        raise PlanInputError(f"job {job.label} has no feasible size")
    if job.reference_gpus < 1 or not 1 <= job.reference_batch <= MOST_SAMPLES:
        raise PlanInputError(f"job {job.label}: reference {job.reference_gpus} GPUs at batch {job.reference_batch}")
    if not (0 <= job.current_gpus <= MOST_GPUS and job.current_batch <= MOST_SAMPLES):
        raise PlanInputError(f"job {job.label} has {job.current_gpus} GPUs at batch {job.current_batch}")


def _refuse(job: JobView) -> None:
    pauses = {"pause": job.pause_s, "batch pause": job.batch_pause_s}
    numbers = {"weight": job.weight, **pauses, "horizon": job.horizon_s, "sigma": job.sigma or 0.0}
    for name, value in {**numbers, "restart pause": job.restart_pause_s, "gain per GPU": job.least_per_gpu}.items():
        if not 0 <= value <= LARGEST or (name in ("weight", "horizon") and value == 0):
            raise PlanInputError(f"job {job.label}: {name} {value} is not a positive number up to {LARGEST:.0e}")


def check_sizes(sizes: Sequence[tuple[int, int]]) -> None:
    """PlanInputError for (GPUs, nodes) that no job can have, in words that follow the job's label."""
    for gpus, nodes in sizes:
        if not (isinstance(gpus, Integral) and isinstance(nodes, Integral) and gpus <= MOST_GPUS >= nodes):
            where = f"{gpus} GPUs on {nodes} nodes is no size"
            raise PlanInputError(f"{where}; accepted: whole numbers up to {MOST_GPUS:.0e}")
        if gpus < 0 or nodes < 0:
            raise PlanInputError(f"{gpus} GPUs on {nodes} nodes is negative; sizes are 0 or more")


def check_batches(gpus: int, batches: Sequence[int]) -> None:
    """PlanInputError for what is no global batch, in words that follow the job's label."""
    for batch in batches:
        if not (isinstance(batch, Integral) and 1 <= batch <= MOST_SAMPLES):
            accepted = f"whole numbers from 1 to {MOST_SAMPLES:.0e}"
            raise PlanInputError(f"batch {batch} at {gpus} GPUs is none; accepted: {accepted}")


def nodes_at(job: JobView, gpus: int) -> int:
    """Nodes of a size: as the choices say, else as dense as the densest of them."""
    for k, nodes in job.choices:
        if k == gpus:
            return max(1, nodes)
    dense = max((k / n for k, n in job.choices if n > 0), default=float(gpus))
    return max(1, math.ceil(gpus / dense))
