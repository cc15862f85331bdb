"""The policy `evolve` beside its goals: how fast it is without a seed, what it gains where placement costs (nodes,
then leaf switches), that it repeats itself.

    python benchmarks/bench_evolve.py [--quick]

Instances are those of bench_optimizer (made up, `instances.py`); values are speedups, so percentages are of speedup.
Seconds are CPU seconds of one core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import _setup  # noqa: F401
import numpy as np
from instances import FAMILIES, Instance, make
from peers import as_problem

from slurm_elastic.daemon.optimizer.evolution.arrays import ChoiceArrays
from slurm_elastic.daemon.optimizer.evolution.placing import Objective, Placing
from slurm_elastic.daemon.optimizer.evolution.refine import evolve, generations_for
from slurm_elastic.daemon.optimizer.evolution.search import Search
from slurm_elastic.daemon.optimizer.problem import Layout, Problem
from slurm_elastic.daemon.optimizer.solver.knapsack import solve

JOBS, GPUS, LARGEST = 50, 256, 64
LEAF = 32
"""GPUs under one leaf switch, where switches count."""
MOMENTS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
COST = 0.10


def problem(instance: Instance) -> Problem:
    """As a planner gets it: nobody runs, one pool."""
    given = as_problem(instance, ())
    return replace(given, exact=solve(given.choices, instance.capacity, given.labels).choice)


def value(rows: Problem, plan: list[int]) -> float:
    return sum(row[i].value for row, i in zip(rows.choices, plan, strict=True))


def anytime(quick: bool) -> None:
    """Without a seed: the share of the exact plan's value reached after so many seconds."""
    numbers = range(3 if quick else 10)
    print(f"without a seed, {JOBS} jobs x {GPUS} GPUs: % of the exact plan, worst of {len(numbers)} random sequences")
    print(
        f"  {'family':<12} " + " ".join(f"{at:>7g} s" for at in MOMENTS) + "   generations in 2 s   goal: 95 % in 2 s"
    )
    for family in FAMILIES:
        given = problem(make(family, JOBS, GPUS, LARGEST))
        best, runs = value(given, list(given.exact)), []
        counts = []
        for number in numbers:
            reached, count = curve(given, number)
            runs.append(reached)
            counts.append(count)
        worst = 100 * np.array(runs).min(axis=0) / best
        met = "met" if worst[-1] >= 95 else "MISSED"
        print(
            f"  {family:<12} " + " ".join(f"{at:>9.2f}" for at in worst) + f"   {min(counts):>18}   {met}", flush=True
        )


def curve(given: Problem, number: int) -> tuple[list[float], int]:
    """(value of the best plan at each moment, generations)."""
    start, reached, count = time.process_time(), list[float](), 0
    arrays = ChoiceArrays(given)
    search = Search(arrays, Objective(arrays, Placing(given, arrays), False), [], number)
    for moment in MOMENTS:
        while time.process_time() - start < moment:
            search.generation()
            count += 1
        reached.append(float(search.worth[0]))
    return reached, count


def placed(given: Problem, node_gpus: int) -> Problem:
    """The same on empty nodes, where each node beyond those needed costs a tenth of a job's progress."""
    free = {f"n{node:03d}": node_gpus for node in range(GPUS // node_gpus)}
    layout = Layout((free,), (node_gpus,), [{0: {}}] * len(given.choices))
    return replace(given, layout=layout, spread=[COST] * len(given.choices))


def fragmented(given: Problem, node_gpus: int, seed: int) -> Problem:
    """The same on a cluster that is half full of jobs that may grow, with what others left free between them."""
    rng = np.random.default_rng(seed)
    free = {f"n{node:03d}": node_gpus for node in range(GPUS // node_gpus)}
    held, present = list[dict[int, dict[str, int]]](), list[int]()
    names = sorted(free)
    for row in given.choices:
        sizes = [choice.gpus for choice in row if 0 < choice.gpus <= 4]
        size = int(rng.choice(sizes)) if sizes and rng.random() < 0.8 else 0
        where = dict[str, int]()
        for name in rng.permutation(names).tolist():
            if sum(where.values()) < size and free[name]:
                where[name] = min(free[name], size - sum(where.values()))
                free[name] -= where[name]
        held.append({size: where} | ({0: {}} if size == 0 else {}))
        present.append(size)
    choices = [
        [choice for choice in row if choice.gpus >= now] or list(row)
        for row, now in zip(given.choices, present, strict=True)
    ]
    exact = solve(choices, given.capacities[0], given.labels).choice
    layout = Layout((free,), (node_gpus,), held)
    return replace(given, choices=choices, present=present, exact=exact, layout=layout, spread=[COST] * len(choices))


def switched(given: Problem, node_gpus: int) -> Problem:
    """The same where nodes cost nothing, and each switch beyond a job's first a tenth of its progress."""
    names = sorted(given.layout.free[0])
    over = {name: f"leaf{number * node_gpus // LEAF}" for number, name in enumerate(names)}
    return replace(
        given, layout=replace(given.layout, switches=over, switch_cost=COST), spread=[0.0] * len(given.choices)
    )


def gains(quick: bool, under: Callable[[Problem, int], Problem] | None = None) -> None:
    """What the search adds to the exact plan where placement costs, and in what time. `under`: what counts in place of
    nodes."""
    counted = "node beyond those needed" if under is None else f"switch beyond the first ({LEAF} GPUs under each)"
    print(f"\nseeded by the exact plan, {COST:.0%} of a job's progress lost for each {counted}")
    heads = f"  {'family':<12} {'nodes':<20} {'exact plan loses':>17} {'evolve gains':>13} {'CPU s':>8}"
    print(f"{heads}   goal: +1 % (the most that there is: what the exact plan loses)")
    found = list[float]()
    for family in FAMILIES:
        for seed in range(1 if quick else 3):
            base = problem(make(family, JOBS, GPUS, LARGEST, seed))
            for node_gpus in (4, 8):
                for nodes, given in (
                    ("empty", placed(base, node_gpus)),
                    ("fragmented", fragmented(base, node_gpus, seed)),
                ):
                    given = under(given, node_gpus) if under else given
                    found.append(row(family, f"{node_gpus} GPUs, {nodes}", given))
    met = sum(gain >= 0.01 for gain in found)
    print(f"  mean {np.mean(found):+.2%}, at least +1 % in {met} of {len(found)}, least {min(found):+.2%}")


def row(family: str, nodes: str, given: Problem) -> float:
    """Prints one line; the relative gain."""
    arrays = ChoiceArrays(given)
    objective = Objective(arrays, Placing(given, arrays), False)
    exact = arrays.at(given.exact)
    before, ideal = float(objective(exact[None, :])[0]), float(arrays.value[exact].sum())
    start = time.process_time()
    plan = evolve(given, relative=False)
    spent = time.process_time() - start
    same = "" if evolve(given, relative=False) == plan else "   NOT THE SAME AGAIN"
    gain = float(objective(arrays.at(plan)[None, :])[0]) / before - 1
    met = "met" if gain >= 0.01 else "missed"
    lost = before / ideal - 1
    print(f"  {family:<12} {nodes:<20} {lost:>17.2%} {gain:>+13.2%} {spent:>8.2f}   {met}{same}", flush=True)
    return gain


def large(quick: bool) -> None:
    """What a round would wait for with many jobs, all of which begin: without switches, and with them."""
    print(f"\n{'jobs':>8} {'switches':>9} {'generations':>12} {'CPU s':>8}")
    for jobs, capacity in ((200, 1024), (1000, 4096), (5000, 20480))[: 2 if quick else 3]:
        base = problem(make("smooth", jobs, capacity, LARGEST))
        free = {f"n{node:04d}": 8 for node in range(capacity // 8)}
        given = replace(base, layout=Layout([free], [8], [{0: {}}] * jobs), spread=[COST] * jobs)
        for counted, one in ((0, given), (capacity // LEAF, switched(given, 8))):
            start = time.process_time()
            evolve(one, relative=False)
            spent = time.process_time() - start
            print(f"{jobs:>8} {counted:>9} {generations_for(jobs, counted):>12} {spent:>8.2f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer random sequences")
    args = parser.parse_args()
    anytime(args.quick)
    gains(args.quick)
    gains(args.quick, switched)
    large(args.quick)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
