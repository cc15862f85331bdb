"""The goals that stay, each beside its last committed figure: a few minutes, CPU seconds and ratios only.

    python benchmarks/bench_goals.py [--write]

Ends with status 1 when one is worse by a third than what goals.json has. CPU seconds are first divided by how much
slower this machine runs a fixed loop than the one of the figures; smaller is better in every row. `--write` makes the
figures of this run the committed ones. Limit: on a busy machine seconds differ by a fifth from run to run.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import _setup  # noqa: F401
import numpy as np
from bench_optimizer import again, cpu, measured_job
from bench_paper import fixed, programs, trace
from bench_simulator import made_up
from instances import make

from slurm_elastic.daemon.optimizer.models.observation import Observation
from slurm_elastic.daemon.optimizer.models.prior import DEFAULT, Prior
from slurm_elastic.daemon.optimizer.models.throughput import fit_many
from slurm_elastic.daemon.optimizer.plan import ChoiceTables
from slurm_elastic.daemon.optimizer.solver.knapsack import solve_table
from slurm_elastic.daemon.simulator.jobs import SimulationSettings
from slurm_elastic.daemon.simulator.metrics import summary
from slurm_elastic.daemon.simulator.programs import builtin
from slurm_elastic.daemon.simulator.replay import simulate

FIGURES = Path(__file__).with_name("goals.json")
WORSE = 4 / 3
GPUS = 40


def loop() -> float:
    """CPU seconds of a fixed mixture of Python and numpy."""

    def work() -> None:
        total, column = 0, np.arange(200_000, dtype=np.float64)
        for i in range(300_000):
            total += i * i % 7
        for _ in range(20):
            np.sort(np.sqrt(column[::-1] + total))

    return cpu(work, 5)[0]


def exact_plan() -> float:
    """The optimizer alone: 1,000 jobs on 4,096 GPUs."""
    instance = make("smooth", 1000, 4096, 128)
    table = instance.table()
    return cpu(lambda: solve_table(table, instance.capacity), 5)[0]


def plan_again() -> float:
    """A plan of 1,000 jobs of which a tenth has been measured anew, from their models on."""
    rng, tables, best = np.random.default_rng(1), ChoiceTables(), math.inf
    views = [measured_job(rng, j) for j in range(1000)]
    again(views, 4096, tables)
    for turn in range(3):
        views[turn::10] = [measured_job(rng, j) for j in range(turn, 1000, 10)]
        best = min(best, cpu(lambda: again(views, 4096, tables))[0])
    return best


def fits() -> float:
    """Models of 500 jobs with three reports each."""
    rng, prior = np.random.default_rng(2), DEFAULT
    rows = [
        [Observation(k, -(-k // 8), 64 * k, 64, 1, float(rng.uniform(0.9, 1.1)) * (0.2 + 0.02 * k)) for k in (1, 2, 8)]
        for _ in range(500)
    ]

    def work(prior: Prior = prior) -> None:
        fit_many(rows, prior)

    return cpu(work, 2)[0]


def replayed() -> float:
    """500 made-up jobs replayed."""
    jobs = made_up(500, 512, 0.7)
    start = time.process_time()
    simulate(jobs, builtin(), "auto", SimulationSettings(512, 8))
    return time.process_time() - start


def beside_static() -> float:
    """Mean completion time under `auto` by that with fixed sizes, made-up jobs."""
    jobs, settings = made_up(160, 64, 1.2), SimulationSettings(64, 4)
    found = [summary(simulate(jobs, builtin(), policy, settings)[0]).mean_s for policy in ("auto", "static")]
    return found[0] / found[1]


def shorter_first() -> float:
    """Mean completion time with `shorter_first` as shipped by that without, over three classes at load 1."""
    ratios = []
    for kind in sorted(builtin()):
        known, rows = programs(True), trace(kind, GPUS, 1.0, False, 1)
        rows = [replace(row, samples=row.duration_s * known[row.program].throughput(1, 1, 32)) for row in rows]
        shipped = SimulationSettings(GPUS, 4)
        both = (shipped, replace(shipped, shorter_first=0.0))
        with_it, without = (summary(simulate(rows, known, "auto", one)[0]).mean_s for one in both)
        ratios.append(with_it / without)
    return math.fsum(ratios) / len(ratios)


def beside_fixed_batch() -> float:
    """Mean completion time with elastic batches by that with the smallest, the same exact optimizer, load 0.5."""
    known, rows, settings = programs(False), trace("mixed", GPUS, 0.5, False, 1), SimulationSettings(GPUS, 4)
    same = [replace(row, samples=row.duration_s * known[row.program].throughput(1, 1, 32)) for row in rows]
    elastic = summary(simulate(same, known, "throughput", settings)[0]).mean_s
    held = fixed(rows, "fixed at min", known, 1)
    return elastic / summary(simulate(held, known, "fixed-batch", settings)[0]).mean_s


SECONDS: tuple[Callable[[], float], ...] = (exact_plan, plan_again, fits, replayed)
RATIOS: tuple[Callable[[], float], ...] = (beside_static, shorter_first, beside_fixed_batch)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="commit the figures of this run")
    write = parser.parse_args().write
    before: dict[str, float] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    now, worse = {"loop": loop()}, False
    slower = now["loop"] / before.get("loop", now["loop"])
    print(f"this machine takes {slower:.2f} times as long as the one of the figures; worse by a third: *")
    for goal in (*SECONDS, *RATIOS):
        name, seconds = goal.__name__, goal in SECONDS
        now[name] = goal()
        found = now[name] / slower if seconds else now[name]
        known = before.get(name, found)
        worse |= found > WORSE * known
        unit, words = " s" if seconds else "", (goal.__doc__ or "").strip().rstrip(".")
        print(
            f"{found:>9.4f}{unit:<2} {known:>9.4f}{unit:<2}{'*' if found > WORSE * known else ' '} {words}", flush=True
        )
    if write:
        FIGURES.write_text(json.dumps({name: float(f"{one:.4g}") for name, one in now.items()}, indent=1) + "\n")
    return int(worse and not write)


if __name__ == "__main__":
    raise SystemExit(main())
