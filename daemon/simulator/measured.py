"""Programs from measured profiles: step times by placement, gradient statistics by training progress.

Reads the tables of adaptdl's OSDI'21 artifact: placements.csv, scalability.csv and validation-BATCH.csv of one program.
Promise: a broken row is refused with file and line. Limit: the law is the step-time form fitted to the table (about
8 % off it in the median), not the table itself.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict

from ..optimizer.models.observation import Observation
from ..optimizer.models.prior import Prior
from ..optimizer.models.shipped_prior import DEFAULT
from ..optimizer.models.step_time import N
from ..optimizer.models.throughput import fit
from .programs import Program, form_law
from .traces.formats import TraceError

WIDE = Prior(DEFAULT.mean, tuple(tuple(4.0 * (i == j) for j in range(N)) for i in range(N)), noise=0.1, noise_apart=0.1)
PHASES = 10


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
    law = form_law(model.parameters, model.scale_s, model.micro)
    return Program(
        name, law, base, max(noise), (min(micros), max(micros)), work, scale, PHASES, "measured profile, form fitted"
    )


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
    """The noise scale b0 * var / sqr over each tenth of the training."""
    end, out = statistics[-1][0], list[float]()
    for phase in range(PHASES):
        low, high = end * phase / PHASES, end * (phase + 1) / PHASES
        inside = [s for s in statistics if low < s[0] <= high] or [min(statistics, key=lambda s: abs(s[0] - high))]
        out.append(base * sum(v for _, _, v in inside) / max(1e-300, sum(q for _, q, _ in inside)))
    return out
