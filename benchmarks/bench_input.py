"""Jobs that wait for their input: the error of predicted step times with and without the models' term for it.

    python benchmarks/bench_input.py [--programs N]

Made up: compute and communication are drawn from the assumed prior, 5 % off its form at every configuration; each GPU
has a loader whose workers read micro batches one by one, in order, two ahead of each, as torch's DataLoader does. The
truth is the mean step of that queue, never the models' own law. Limit: no program of the world.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import _setup  # noqa: F401
import numpy as np
from bench_models import Truth, made_up_law

from slurm_elastic.daemon.models.cache import observation
from slurm_elastic.daemon.optimizer.models.observation import Observation
from slurm_elastic.daemon.optimizer.models.throughput import fit
from slurm_elastic.db.rows import ObservationRow

STEPS, WARM_UP = 160, 40
PREFETCH = 2
PER_NODE = 4
PLACES = ((1, 1), (2, 1), (4, 1), (8, 2), (16, 4))
MICROS = (8, 16, 32, 64, 128)
NOISE = 0.03


@dataclass(frozen=True)
class Program:
    """One job: a law of its step without input, and the loader of each GPU."""

    law: Truth
    workers: int
    """Of each loader; 0: nothing is read ahead."""
    sample_s: float
    """That one worker takes for a sample."""
    spread: float
    """Standard deviation of ln of the time of a micro batch."""
    cores: int
    """Of a node, for the workers of all its GPUs."""

    def read_s(self, gpus: int, nodes: int, micro: int) -> float:
        """One worker's micro batch."""
        at_work = -(-gpus // nodes) * max(1, self.workers)
        return self.sample_s * micro * max(1.0, at_work / self.cores)


def drawn(kind: str, rng: random.Random) -> Program:
    """A program of one kind. At 32 samples its loaders take 1/4 to 4 times as long as its step, too slow ones 1.2 to
    3.6 times."""
    off: dict[tuple[int, int, float], float] = {}
    law = made_up_law(rng)

    def uneven(gpus: int, nodes: int, micro: float) -> float:
        return law(gpus, nodes, micro) * off.setdefault((gpus, nodes, micro), 1 + rng.gauss(0, 0.05))

    workers = 0 if kind == "nothing read ahead" else rng.choice((1, 2, 4, 8, 16))
    short = {"fast loaders": 0.1, "loaders too slow": 1.2 * 3 ** rng.random()}.get(kind, 0.25 * 16 ** rng.random())
    sample_s = law(1, 1, 32) / 32 * short * max(1, workers)
    return Program(uneven, workers, sample_s, rng.uniform(0.05, 0.4), workers if kind == "shared CPUs" else 10**6)


def measured(program: Program, gpus: int, nodes: int, micro: int, seed: str) -> ObservationRow:
    """What a job's reports say of one configuration: as the trainer shim measures each step."""
    rng = np.random.default_rng(list(seed.encode()))
    compute = program.law(1, 1, micro)
    travel = max(0.0, program.law(gpus, nodes, micro) - compute)
    read_s, workers = program.read_s(gpus, nodes, micro), program.workers
    ready: list[np.ndarray] = []
    got: list[np.ndarray] = []
    waits, exposed, ends = [], [], [0.0]
    for step in range(STEPS):
        took = read_s * rng.lognormal(-(program.spread**2) / 2, program.spread, gpus)
        if workers:
            asked = got[step - PREFETCH * workers] if step >= PREFETCH * workers else np.zeros(gpus)
            free = ready[step - workers] if step >= workers else np.zeros(gpus)
            ready.append(np.maximum(asked, free) + took)
            got.append(np.maximum(ends[-1], ready[-1]))
        else:
            got.append(ends[-1] + took)
        done = got[-1] + compute * (1 + rng.normal(0, NOISE, gpus))
        waits.append(got[-1] - ends[-1])
        ends.append(float(done.max()) + travel)
        exposed.append(ends[-1] - done)
    steps = np.diff(ends)[WARM_UP:]
    mean = float(steps.mean())
    share, comm = np.mean(waits[WARM_UP:], 0).max() / mean, np.mean(exposed[WARM_UP:], 0).min() / mean
    batch = gpus * micro
    return ObservationRow(gpus, nodes, batch, micro, 1, 9, float(np.median(steps)), batch / mean, 0.0, 0.0,
                          float(min(0.99, comm)) if gpus > 1 else 0.0, float(share))  # fmt: skip


def as_before(row: ObservationRow) -> Observation:
    """The median step, whatever it waited for."""
    return observation(replace(row, input_wait_share=0.0))


def whole_steps(row: ObservationRow) -> Observation:
    """The mean step, as if all of it were compute and communication."""
    return replace(observation(row), input_share=0.0)


WAYS: dict[str, Callable[[ObservationRow], Observation]] = {
    "median step, no term": as_before, "mean step, no term": whole_steps, "the term": observation,
}  # fmt: skip
KINDS = ("a loader each", "loaders too slow", "shared CPUs", "nothing read ahead", "fast loaders")
ORDERS = ("1, any place", "growth, 3", "random, 3", "random, 6")


def seen(order: str, rng: random.Random) -> list[tuple[int, int, int]]:
    """Configurations that reports come from."""
    everything = [(*place, micro) for place in PLACES for micro in MICROS]
    if order == "growth, 3":
        return [(*place, 32) for place in PLACES[:3]]
    return rng.sample(everything, int(order.split(",")[0]) if order[0].isdigit() else int(order[-1]))


def errors(kind: str, programs: int) -> dict[tuple[str, str], tuple[float, float]]:
    """(mean of the programs' mean errors, share of the truth in intervals of 80 %), by way and order."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number in range(programs):
        rng = random.Random(f"{kind} {number}")
        program = drawn(kind, rng)
        rows = {
            (*place, micro): measured(program, *place, micro, f"{kind} {number} {place} {micro}")
            for place in PLACES
            for micro in MICROS
        }
        for order in ORDERS:
            at = seen(order, rng)
            rest = [place for place in rows if place not in at]
            for way, taken in WAYS.items():
                found.setdefault((way, order), []).append(_error([taken(rows[place]) for place in at], rows, rest))
    return {
        key: (statistics.median(e for e, _ in each), statistics.mean(c for _, c in each)) for key, each in found.items()
    }


def _error(
    told: Sequence[Observation], rows: dict[tuple[int, int, int], ObservationRow], rest: Sequence[tuple[int, int, int]]
) -> tuple[float, float]:
    model = fit(told)
    points = [(gpus, nodes, gpus * micro) for gpus, nodes, micro in rest]
    off = [model.throughput(*point) / rows[place].samples_per_s for place, point in zip(rest, points, strict=True)]
    inside = [abs(math.log(x)) <= 1.2816 * sigma for x, sigma in zip(off, model.sigmas(points), strict=True)]
    return statistics.mean(abs(1 / x - 1) for x in off), statistics.mean(inside)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=40, help="of each kind")
    args = parser.parse_args()
    for kind in KINDS:
        found = errors(kind, args.programs)
        print(f"\n{kind}: error of the step time in %, median of {args.programs} programs (truth in intervals of 80 %)")
        print(" " * 22 + "".join(f"{order:>16}" for order in ORDERS))
        for way in WAYS:
            cells = [found[way, order] for order in ORDERS]
            print(f"  {way:<20}" + "".join(f"{f'{100 * e:.1f} ({100 * c:.0f})':>16}" for e, c in cells), flush=True)


if __name__ == "__main__":
    main()
