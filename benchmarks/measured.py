"""Programs from measured profiles: step times by placement, gradient statistics by training progress.

Reads the tables of adaptdl's OSDI'21 artifact: placements.csv, scalability.csv and validation-BATCH.csv of one program.
Promise: a broken row is refused with file and line; a step takes what was measured where it was, and the step-time form
fitted to the table leads from there to what was not.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from slurm_elastic.daemon.optimizer.models.observation import Observation
from slurm_elastic.daemon.optimizer.models.prior import DEFAULT, Prior
from slurm_elastic.daemon.optimizer.models.step_time import N
from slurm_elastic.daemon.optimizer.models.throughput import fit
from slurm_elastic.daemon.simulator.programs import Program, StepTime, form_law
from slurm_elastic.daemon.simulator.traces.job import TraceError

WIDE = Prior(DEFAULT.mean, tuple(tuple(4.0 * (i == j) for j in range(N)) for i in range(N)), noise=0.1, noise_apart=0.1)
PHASES = 100
"""About the rows of a table: in ten, a noise scale that rises early held jobs small for a tenth of their training."""


def program(name: str, tables: dict[str, str]) -> Program:
    """A program from the texts of its tables by file name. Raises TraceError."""
    rows = list[Observation]()
    for file in ("placements.csv", "scalability.csv"):
        rows += _observations(f"{name}/{file}", tables[file]) if file in tables else []
    noise = {
        int(file.removeprefix("validation-").removesuffix(".csv")): _statistics(f"{name}/{file}", text)
        for file, text in tables.items()
        if file.startswith("validation-")
    }
    if not rows or not noise:
        raise TraceError(f"{name}: expected placements.csv and at least one validation-BATCH.csv")
    base = min(noise)
    model = fit(rows, WIDE)
    work = noise[base][-1][0] * base
    scales = {b: _by_phase(stats, base) for b, stats in noise.items()}

    def scale(done: float, batch: int) -> float:
        nearest = min(scales, key=lambda b: abs(math.log(b / batch)))
        return scales[nearest][min(PHASES - 1, int(done * PHASES + 1e-9))]

    micros = [o.micro_batch for o in rows]
    law = _Measured(rows, form_law(model.parameters, model.scale_s, model.micro))
    return Program(name, law, base, max(noise), (min(micros), max(micros)), work, scale, PHASES, "measured profile")


class _Measured:
    """A law that meets the table: the form's, times what the table says of it, interpolated in logarithms.

    Between micro batches at one placement, then between sizes; one node and several are told apart.
    """

    def __init__(self, rows: Sequence[Observation], form: StepTime) -> None:
        self.form = form
        self.rows: dict[tuple[int, int], tuple[list[float], list[float]]] = {}
        """By (GPUs, nodes): ln of the micro batches, ascending, and of measured over formed step times there."""
        for row in sorted(rows, key=lambda row: row.micro_batch):
            micros, apart = self.rows.setdefault((row.gpus, row.nodes), ([], []))
            micros.append(math.log(row.micro_batch))
            apart.append(math.log(row.step_time_s / form(row.gpus, row.nodes, row.micro_batch)))

    def __call__(self, gpus: int, nodes: int, micro: float) -> float:
        return self.form(gpus, nodes, micro) * math.exp(self._apart(gpus, nodes, math.log(micro)))

    def _apart(self, gpus: int, nodes: int, micro: float) -> float:
        if (gpus, nodes) in self.rows:
            return float(np.interp(micro, *self.rows[gpus, nodes]))
        alike = [place for place in self.rows if (place[1] > 1) == (nodes > 1)] or list(self.rows)
        sizes = sorted({size for size, _ in alike})
        after = bisect_left(sizes, gpus)
        ends = sizes[max(0, after - 1) : after + 1]
        near = [min((p for p in alike if p[0] == size), key=lambda p: abs(math.log(p[1] / nodes))) for size in ends]
        values = [float(np.interp(micro, *self.rows[place])) for place in near]
        return float(np.interp(math.log(gpus), [math.log(size) for size in ends], values))


def _observations(file: str, text: str) -> list[Observation]:
    """One observation per placement and micro batch, the mean of its rows."""
    times: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for line, row in enumerate(csv.DictReader(text.splitlines()), 2):
        try:
            if "placement" in row:
                place = sum(map(int, row["placement"])), len(row["placement"])
            else:
                place = int(row["num_replicas"]), int(row["num_nodes"])
            key = *place, int(row["local_bsz"])
            times[key].append(float(row["step_time"]))
        except (KeyError, ValueError, TypeError):
            columns = "placement (or num_nodes, num_replicas), local_bsz, step_time"
            raise TraceError(f"{file}:{line}: expected numbers in {columns}") from None
    return [Observation(k, n, k * m, m, 1, sum(t) / len(t)) for (k, n, m), t in sorted(times.items())]


def _statistics(file: str, text: str) -> list[tuple[float, float, float]]:
    """(progress in steps of the base batch, squared gradient, gradient variance) by line."""
    out = list[tuple[float, float, float]]()
    for line, row in enumerate(csv.DictReader(text.splitlines()), 2):
        try:
            out.append((float(row["progress"]), float(row["grad_sqr"]), float(row["grad_var"])))
        except (KeyError, ValueError, TypeError):
            raise TraceError(f"{file}:{line}: expected numbers in progress, grad_sqr, grad_var") from None
    if not out:
        raise TraceError(f"{file}:2: expected at least one row")
    return out


def _by_phase(statistics: list[tuple[float, float, float]], base: int) -> list[float]:
    """The noise scale phi of each phase of the training at which a batch takes the samples that it takes there.

    A sample at batch b does the work of (phi + base) / (phi + b), so a stretch of work takes
    1 + (b - base) / (phi + base) times as many: the mean over a phase is that of 1 / (phi + base), for any b. Rows are
    weighted by the work up to them.
    """
    end, out, before = statistics[-1][0], list[float](), 0.0
    rows = list[tuple[float, float, float]]()
    """(from, to, 1 / (phi + base)) of the work"""
    for progress, squared, variance in statistics:
        if progress > before:
            rows.append((before, progress, squared / max(1e-300, base * (variance + squared))))
            before = progress
    for phase in range(PHASES):
        low, high = end * phase / PHASES, end * (phase + 1) / PHASES
        inside = [(min(to, high) - max(start, low), each) for start, to, each in rows if start < high and to > low]
        mean = sum(share * each for share, each in inside) / sum(share for share, _ in inside)
        out.append(max(0.0, 1.0 / max(1e-300, mean) - base))
    return out
