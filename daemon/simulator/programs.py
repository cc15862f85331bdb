"""What a simulated job does with GPUs: its true throughput, the worth of a large batch, its feasible sizes and batches.

Promise: pure and deterministic; the law is the step-time form or a measured table. Limit: a program is as fast on any
nodes of the same count; input pipelines and neighbours do not slow it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from ..optimizer.models.step_time import Parameters, parameters, step_time

StepTime = Callable[[int, int, float], float]
"""(GPUs, nodes, micro batch) -> s without accumulation"""


@dataclass(eq=False)
class Program:
    """One kind of training. Compared by identity: each is made once and shared by its jobs."""

    name: str
    law: StepTime
    base_batch: int
    max_batch: int
    micro_range: tuple[int, int]
    """Smallest and largest micro batch of one GPU; beyond it, gradients are accumulated."""
    work: float = 0.0
    """Samples, counted at the base batch, of a whole training; 0: the trace says."""
    noise: Callable[[float, int], float] | None = None
    """(share of the work done, batch) -> gradient noise scale in samples; None: every batch is as good."""
    phases: int = 1
    """Stretches of the work over which the noise scale is taken as constant."""
    note: str = ""
    """Where the law comes from: measured, declared or assumed; printed with every result that rests on it."""
    _speeds: dict[tuple[int, int, int], float] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Callable[[str], Program], tuple[str]]:
        """Another process gets its name alone: what is made of a law is made where the simulation runs."""
        return rigid, (self.name,)

    def throughput(self, gpus: int, nodes: int, batch: int) -> float:
        """Samples per second, accumulating where the slice of one GPU exceeds the largest micro batch."""
        key = gpus, nodes, batch
        known = self._speeds.get(key)
        if known is None:
            micro, steps = self.split(gpus, batch)
            whole = self.law(gpus, nodes, micro)
            known = self._speeds[key] = batch / (whole + (steps - 1) * self.law(1, 1, micro))
        return known

    def split(self, gpus: int, batch: int) -> tuple[float, int]:
        """(micro batch, micro batches per step)."""
        slice_ = batch / gpus
        steps = max(1, math.ceil(slice_ / self.micro_range[1]))
        return slice_ / steps, steps

    def efficiency(self, batch: int, done: float) -> float:
        """Worth of a sample at this batch relative to the base batch: (phi + b0) / (phi + b)."""
        if self.noise is None:
            return 1.0
        phase = min(self.phases - 1, int(done * self.phases)) / self.phases
        phi = self.noise(phase, batch)
        return (phi + self.base_batch) / (phi + batch)

    def noise_scale(self, batch: int, done: float) -> float | None:
        """The noise scale as a job would measure it now; None when it does not matter."""
        if self.noise is None:
            return None
        return self.noise(min(self.phases - 1, int(done * self.phases)) / self.phases, batch)


@dataclass(frozen=True, slots=True)
class BatchLadder:
    """Feasible global batches between two bounds at a number of GPUs: powers of two of the smallest, and the ends."""

    lowest: int
    highest: int
    least_micro: int = 1

    def __call__(self, gpus: int) -> tuple[int, ...]:
        low = max(self.lowest, gpus * self.least_micro)
        low = -(-low // gpus) * gpus
        high = self.highest // gpus * gpus
        if low > high:
            return ()
        out, batch = [low], low * 2
        while batch < high:
            out.append(batch)
            batch *= 2
        return (*out, high) if high > low else tuple(out)

    def as_asked(self, gpus: int, batch: int) -> int:
        """The batch that a job was submitted with, as so many GPUs share it out evenly: between the steps, too."""
        steps = self(gpus) or (batch,)
        return max(steps[0], min(steps[-1], -(-batch // gpus) * gpus))


def size_ladder(least: int, most: int, per_node: int, asked: int = 0) -> tuple[tuple[int, int], ...]:
    """(GPUs, nodes) that pack without moving others: powers of two inside a node, then whole nodes, thinning out."""
    sizes = {k for k in (1, 2, 4, 8, 16) if k < per_node} | {per_node}
    nodes = 2
    while nodes * per_node <= most:
        sizes.add(nodes * per_node)
        nodes += 1 if nodes < 8 else 2 if nodes < 16 else 4 if nodes < 64 else 16
    sizes |= {least, most} | ({asked} if asked else set())
    return tuple((k, -(-k // per_node)) for k in sorted(sizes) if least <= k <= most)


def form_law(own: Parameters, scale_s: float, micro: float) -> StepTime:
    """The step-time form as a law."""
    return lambda gpus, nodes, m: scale_s * float(step_time(own, gpus, nodes, m / micro, 1))


def builtin() -> dict[str, Program]:
    """Three declared classes, by what bounds them; assumed shapes, not measurements."""
    rows = {
        "compute": ((-1.6, -0.22, -4.0, -6.0, -2.5, -6.5, -1.0), 0.40, 2000.0),
        "balanced": ((-1.2, -0.36, -2.8, -5.0, -1.2, -5.0, -1.0), 0.25, 1000.0),
        "communication": ((-0.9, -0.52, -1.2, -3.5, 0.2, -3.5, -1.0), 0.15, 500.0),
    }
    out = {}
    for name, (theta, scale, phi) in rows.items():
        law = form_law(parameters(theta), scale, 32.0)
        out[name] = Program(name, law, 32, 32 * 64, (4, 128), 0.0, _constant(phi), 1, "assumed class")
    return out


def _constant(phi: float) -> Callable[[float, int], float]:
    return lambda done, batch: phi


@cache
def curve(speedup: float, most: int) -> Program:
    """A job without a batch (`selastic hold`) whose request says that twice the GPUs are `speedup` of twice as fast, of
    at most so many. Each GPU counts as a sample of a batch, which matters to nothing."""
    exponent = math.log2(2.0 * speedup)
    law: StepTime = lambda gpus, nodes, micro: micro * gpus ** (1.0 - exponent)  # noqa: E731
    return Program(f"speedup={speedup:g}", law, 1, most, (1, 1_000_000_000), note="declared in the request")


def rigid(name: str = "rigid") -> Program:
    """A job nothing is known of: it runs at the size it asked for, for as long as it ran."""
    return Program(name, lambda gpus, nodes, micro: micro, 1, 1, (1, 1), note="no profile: rigid, run time as recorded")
