"""The optimizer's table: seconds of CPU, memory and value reached, ours and others', on four families of problems.

    python benchmarks/bench_optimizer.py [--quick] [--ours] [--adversarial]

CPU seconds of one core, best of three for ours (all columns in one table; `+build` adds making it from each job's own
columns, as the daemon does, `from objects` from lists of objects).
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace

import _setup  # noqa: F401
import numpy as np
import peers
from instances import ADVERSARIAL, FAMILIES, SIZES, Instance, curve, make, size_rules

from slurm_elastic.daemon.optimizer.job_view import JobView
from slurm_elastic.daemon.optimizer.models.observation import Observation
from slurm_elastic.daemon.optimizer.models.throughput import fit
from slurm_elastic.daemon.optimizer.plan import ChoiceTables, plan_pools
from slurm_elastic.daemon.optimizer.solver.knapsack import solve, solve_table, solve_table_exactly
from slurm_elastic.daemon.optimizer.solver.multi_pool import PoolChoice, solve_pools
from slurm_elastic.daemon.optimizer.solver.table import Choice, Columns

TARGET_S = {(100, 512): 0.001, (1000, 4096): 0.006, (2000, 16384): 0.02, (10000, 100000): 0.08}
PLAN_TARGET_S = {1000: (None, 0.02, None, None)}
"""By the number of jobs: nothing known from before, a tenth measured again, nothing new, nothing but weights."""
POOLS_TARGET_S = {1000: 0.2}


def cpu(work: Callable[[], object], repeat: int = 1) -> tuple[float, object]:
    """(least CPU seconds, last result)."""
    best, out = float("inf"), None
    for _ in range(repeat):
        start = time.process_time()
        out = work()
        best = min(best, time.process_time() - start)
    return best, out


def ours(instance: Instance) -> tuple[float, float, float, float]:
    """(seconds, MB, value, gap)."""
    table = instance.table()
    seconds, answer = cpu(lambda: solve_table(table, instance.capacity), 3)
    tracemalloc.start()
    solve_table(table, instance.capacity)
    memory = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    value = float(instance.value[np.array(answer.choice) + instance.starts[:-1]].sum())  # type: ignore[attr-defined]
    return seconds, memory, value, answer.gap  # type: ignore[attr-defined]


def exact_seconds(instance: Instance) -> tuple[float, float]:
    """(seconds, value) in Python's integers, as where an int64 would overflow."""
    table = instance.table()
    seconds, answer = cpu(lambda: solve_table_exactly(table, instance.capacity))
    return seconds, float(instance.value[np.array(answer.choice) + instance.starts[:-1]].sum())  # type: ignore[attr-defined]


def with_build(instance: Instance) -> float:
    """From each job's columns, as the daemon has them."""
    rows = [Columns(np.stack([w, x, w, x]).astype(float)) for w, x in instance.rows()]
    return cpu(lambda: solve(rows, instance.capacity), 3)[0]


def from_lists(instance: Instance) -> float:
    """From a list of objects for each job."""
    rows = [[Choice(int(k), float(v)) for k, v in zip(w, x, strict=True)] for w, x in instance.rows()]
    return cpu(lambda: solve(rows, instance.capacity))[0]


def others(instance: Instance, quick: bool) -> dict[str, Callable[[], float | None]]:
    """The peers that can be run at this size."""
    cells = len(instance.weight) * instance.capacity
    runs: dict[str, Callable[[], float | None]] = {"greedy": lambda: peers.greedy(instance)}
    if cells < (3e7 if quick else 5e8):
        runs["recurrence, Python"] = lambda: peers.recurrence_python(instance)
    if cells < (5e8 if quick else 1e10):
        runs["recurrence, numpy"] = lambda: peers.recurrence_numpy(instance)
    if len(instance.weight) < (2e4 if quick else 1e5):
        runs["MILP (HiGHS)"] = lambda: peers.highs(instance)
    if instance.jobs <= 2000:
        seconds = 2.0 if quick else 20.0
        runs[f"evolution, {seconds:.0f} s"] = lambda: peers.evolution(instance, seconds)
    return runs


def table(families: tuple[str, ...], sizes: tuple[tuple[int, int, int], ...], quick: bool, alone: bool) -> bool:
    """Print the table; True when every answer was optimal and equal to every exact peer."""
    good = True
    print(f"{'jobs x GPUs':>15} {'family':<12} {'method':<26} {'CPU s':>10} {'MB':>7} {'of the optimum':>15}")
    for jobs, capacity, kmax in sizes:
        for family in families:
            if family == "minimum-8" and 8 * jobs > capacity:
                continue
            instance = make(family, jobs, capacity, kmax)
            seconds, memory, best, gap = ours(instance)
            head = f"{f'{jobs} x {capacity}':>15} {family:<12}"
            target = TARGET_S.get((jobs, capacity))
            note = f"   (goal {target} s)" if target and family in FAMILIES else ""
            proof = "exact, proven" if gap == 0 else f"gap {gap:.2g}"
            print(f"{head} {'ours':<26} {seconds:>10.4f} {memory:>7.1f} {proof:>15}{note}", flush=True)
            print(f"{head} {'ours, +build':<26} {with_build(instance):>10.4f}")
            print(f"{head} {'ours, from objects':<26} {from_lists(instance):>10.4f}", flush=True)
            exact, value = exact_seconds(instance)
            print(f"{head} {'ours, Python integers':<26} {exact:>10.4f} {'':>7} {share(value, best):>15}", flush=True)
            good &= gap == 0 and abs(value - best) <= 1e-9 * abs(best)
            for label, run in ({} if alone else others(instance, quick)).items():
                spent, reached = cpu(run)
                print(f"{head} {label:<26} {spent:>10.4f} {'':>7} {share(reached, best):>15}", flush=True)
                if reached is not None and (label.startswith("rec") or label.startswith("MILP")):
                    good &= reached <= best * (1 + 1e-9)
    return good


def share(value: object, best: float) -> str:
    return "no answer" if not isinstance(value, float) else f"{100 * value / best:.4f} %"


def pools(quick: bool) -> None:
    """Three GPU types, half of all GPUs of the first."""
    print(f"\n{'jobs x GPUs x types':>20} {'CPU s':>9} {'gap':>9}")
    for jobs, capacity, kmax in SIZES[: 3 if quick else 4]:
        rng = np.random.default_rng(jobs)
        capacities = [capacity // 2, capacity // 4, capacity // 4]
        rows, labels = [pool_job(rng, kmax) for _ in range(jobs)], [str(j) for j in range(jobs)]
        seconds, answer = cpu(lambda r=rows, k=capacities, n=labels: solve_pools(r, k, n), 3)
        gap, goal = answer.gap, goal_of(POOLS_TARGET_S.get(jobs))  # type: ignore[attr-defined]
        print(f"{f'{jobs} x {capacity} x 3':>20} {seconds:>9.3f} {gap:>9.2g}{goal}", flush=True)


def goal_of(seconds: float | None) -> str:
    return f"   (goal {seconds} s)" if seconds else ""


def pool_job(rng: np.random.Generator, kmax: int) -> list[PoolChoice]:
    """A job that runs on one to three GPU types at different speeds, about a dozen sizes each."""
    row, sizes = [PoolChoice((0, 0, 0), 0.0)], size_rules(rng, kmax)
    sizes = sizes[:: max(1, len(sizes) // 12)]
    values = curve(rng, sizes) * rng.choice([0.5, 1.0, 1.0, 2.0])
    for kind in range(3):
        if kind and rng.random() < 0.3:
            continue
        speed = rng.uniform(0.3, 1.0) if kind else 1.0
        for k, v in zip(sizes.tolist(), values.tolist(), strict=True):
            value = v * speed * (1 + 0.03 * rng.standard_normal())
            row.append(PoolChoice(tuple(k * (kind == t) for t in range(3)), value))
    return row


def plans(quick: bool) -> None:
    """What a plan costs the daemon from fitted models on: every job its own curve, 57 sizes, up to 6 batches each."""
    print(f"\n{'jobs x GPUs':>15} {'from fitted models to targets':<44} {'CPU s':>9}")
    plan_pools([[measured_job(np.random.default_rng(0), 0)]], [64], ())  # what is imported on first use
    for jobs, capacity in ((100, 512), (1000, 4096), (10000, 100000))[: 2 if quick else 3]:
        rng, tables = np.random.default_rng(jobs), ChoiceTables()
        views = [measured_job(rng, j) for j in range(jobs)]
        first = cpu(lambda v=views, k=capacity: plan_pools([v], [k], (), tables=ChoiceTables()), 3)[0]
        plan_pools([views], [capacity], (), tables=tables)
        same = cpu(lambda v=views, k=capacity, c=tables: again(v, k, c), 3)[0]
        best = float("inf")
        for turn in range(3):
            views[turn::10] = [measured_job(rng, j) for j in range(turn, jobs, 10)]
            best = min(best, cpu(lambda v=views, k=capacity, c=tables: again(v, k, c))[0])
        others = [replace(view, weight=0.9) for view in views]
        weighed = cpu(lambda v=others, k=capacity, c=tables: again(v, k, c))[0]
        rows = (
            ("nothing known from before", first),
            ("a tenth measured again", best),
            ("nothing new", same),
            ("nothing new but every weight", weighed),
        )
        for (label, seconds), goal in zip(rows, PLAN_TARGET_S.get(jobs, (None,) * 4), strict=True):
            print(f"{f'{jobs} x {capacity}':>15} {label:<44} {seconds:>9.4f}{goal_of(goal)}", flush=True)


def again(views: list[JobView], capacity: int, tables: ChoiceTables) -> object:
    tables.turn()
    return plan_pools([views], [capacity], (), tables=tables)


def measured_job(rng: np.random.Generator, number: int) -> JobView:
    """A running job measured at three configurations."""
    power, speed = rng.uniform(0.6, 0.95), rng.uniform(50, 200)
    seen = [
        Observation(k, -(-k // 8), b, b // k, 1, b / (speed * k**power * b / (b + 64)), 8.0)
        for k, b in ((4, 256), (8, 256), (8, 512))
    ]
    return JobView(str(number), fit(seen), WIDE, FEASIBLE, 4, 256, 4, 256, pause_s=2.0)


@dataclass(frozen=True)
class Feasible:
    """Every power of two times the smallest batch that the GPUs share out evenly, from 256 to 8192."""

    def __call__(self, gpus: int) -> tuple[int, ...]:
        low = -(-256 // gpus) * gpus
        return tuple(low * 2**i for i in range(6) if low * 2**i <= 8192)


FEASIBLE = Feasible()
WIDE = tuple((k, -(-k // 8)) for k in range(2, 59))
"""The sizes of a job, which jobs alike share in the daemon, too."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out what takes more than a few seconds")
    parser.add_argument("--ours", action="store_true", help="leave out the other methods")
    parser.add_argument("--adversarial", action="store_true", help="the families made to be hard as well")
    args = parser.parse_args()
    families = FAMILIES + (ADVERSARIAL if args.adversarial else ())
    good = table(families, SIZES[1:3] if args.quick else SIZES, args.quick, args.ours)
    pools(args.quick)
    plans(args.quick)
    print("\nevery answer optimal and equal to the exact peers" if good else "\nNOT ALL EQUAL: see above")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
