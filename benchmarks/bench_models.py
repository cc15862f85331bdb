"""The models' tables: error on what was not measured, and what the plans made from the models are worth.

    python benchmarks/bench_models.py [--quick | --goals] [--profiles FOLDER ...] [--data FOLDER] [--print-prior]

Without --profiles the programs are drawn from the prior itself (made up: says how the fit behaves, not how the world
does). With it: measured tables, the prior learned from the other programs only (leave one program out).
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import _setup  # noqa: F401
import bench_costs
import model_peers as peers
import numpy as np
from model_cases import NOISE, SIZES, by_size, learned, learned_from, noisy, order, ran_before, scored
from model_goals import goal_tables
from profiles import Profile, load

from slurm_elastic.daemon.optimizer.models.observation import Observation
from slurm_elastic.daemon.optimizer.models.prior import ASSUMED, Prior
from slurm_elastic.daemon.optimizer.models.step_time import parameters, step_time
from slurm_elastic.daemon.optimizer.models.throughput import fit, fit_many
from slurm_elastic.daemon.optimizer.solver.knapsack import solve
from slurm_elastic.daemon.optimizer.solver.table import Choice

MICROS = (4, 8, 16, 32, 64, 128)
RAN_BEFORE = "ours, it ran before"
WIDE = Prior(ASSUMED.mean, tuple(tuple(4.0 * (i == j) for j in range(7)) for i in range(7)), noise=0.1, noise_apart=0.1)
Truth = Callable[[int, int, float], float]


def error_table(profiles: list[Profile], repeats: int) -> None:
    """Median over programs of the mean relative error on all configurations not observed."""
    counts, rich = (1, 2, 3, 4, 6), scored(profiles)
    print(f"errors over {len(rich)} tables: {', '.join(sorted({p.cluster for p in rich}))}")
    for kind in ("growth", "explore", "random"):
        print(f"\nerror of the step time, {kind} order, median of programs (%)   observations: {counts}")
        for label in ("perfect scaling", "Amdahl", "USL", "Optimus form", "Pollux fit", "straight line",
                      "ours, assumed prior", WITHOUT, "ours, learned prior", RAN_BEFORE):  # fmt: skip
            cells = []
            for n in counts:
                errors = []
                for profile in rich:
                    fitter = fitter_of(label, profile, profiles)
                    errors.append(statistics.mean(one_error(profile, kind, n, fitter, r) for r in range(repeats)))
                cells.append(statistics.median(errors))
            print(f"  {label:<22}" + "".join(f"{100 * c:>8.1f}" for c in cells), flush=True)


PLACES = ((1, 1), (2, 1), (4, 1), (2, 2), (8, 2), (16, 4), (32, 8))
WITHOUT = "ours, without its share"


def one_report_table(profiles: list[Profile], repeats: int) -> None:
    """The same after one report of any size, with and without its share of communication; all micro batches there."""
    rich = [p for p in scored(profiles) if any(o.comm_share for o in p.rows)]
    if not rich:
        return
    print(f"\nerror of the step time after one report, median of {len(rich)} tables (mean)   GPUs on nodes")
    print(" " * 24 + "".join(f"{f'{k} on {n}':>15}" for k, n in PLACES))
    for label in (WITHOUT, "ours, learned prior"):
        cells = []
        for place in PLACES:
            errors = [
                statistics.mean(one_report_error(p, place, fitter_of(label, p, profiles), r) for r in range(repeats))
                for p in rich
                if any((o.gpus, o.nodes) == place for o in p.rows)
            ]
            cells.append(
                f"{100 * statistics.median(errors):.1f} ({100 * statistics.mean(errors):.1f})" if errors else "-"
            )
        print(f"  {label:<22}" + "".join(f"{cell:>15}" for cell in cells), flush=True)


def one_report_error(profile: Profile, place: tuple[int, int], fitter, seed: int) -> float:  # type: ignore[no-untyped-def]
    """Mean over the smallest, the middle and the largest micro batch that the one report may be of."""
    rng = random.Random(f"{profile.cluster} {profile.app} {place} {seed}")
    there = sorted((o for o in profile.rows if (o.gpus, o.nodes) == place), key=by_size)
    errors = []
    for first in (there[0], there[len(there) // 2], there[-1]):
        predict = fitter([noisy(first, rng)], {})
        errors += [abs(predict(o.gpus, o.nodes, o.micro_batch) / o.step_time_s - 1) for o in profile.rows if o != first]
    return statistics.mean(errors)


def fitter_of(label: str, profile: Profile, profiles: Sequence[Profile]):  # type: ignore[no-untyped-def]
    table = {"perfect scaling": peers.perfect, "Amdahl": peers.amdahl, "USL": peers.usl,
             "Optimus form": peers.optimus, "straight line": peers.straight, "Pollux fit": peers.pollux,
             "ours, assumed prior": peers.ours(ASSUMED)}  # fmt: skip
    if label in table:
        return table[label]
    return peers.ours((ran_before if label == RAN_BEFORE else learned)(profile, profiles), label != WITHOUT)


def one_error(profile: Profile, kind: str, n: int, fitter, seed: int) -> float:  # type: ignore[no-untyped-def]
    rng = random.Random(f"{profile.cluster} {profile.app} {kind} {seed}")
    rows = [noisy(o, rng) for o in order(profile, kind, rng)][:n]
    compute = {m: t * (1 + rng.gauss(0, NOISE)) for m, t in profile.compute.items()}
    predict = fitter(rows, compute)
    seen = {(o.gpus, o.nodes, o.micro_batch) for o in rows}
    rest = [o for o in profile.rows if (o.gpus, o.nodes, o.micro_batch) not in seen]
    return statistics.mean(abs(predict(o.gpus, o.nodes, o.micro_batch) / o.step_time_s - 1) for o in rest)


def truth_of(profile: Profile, smooth: bool) -> tuple[Truth, tuple[int, int]]:
    """The form fitted to the whole profile, times what it misses at each placement; the range of micro batches.

    `smooth`: the form alone.
    """
    model = fit(profile.rows, WIDE)
    micros = [o.micro_batch for o in profile.rows]
    beside: dict[tuple[int, int], list[float]] = {}

    def form(k: int, n: int, m: float) -> float:
        return model.scale_s * step_time(model.parameters, k, n, m / model.micro, 1.0)

    for o in profile.rows:
        beside.setdefault((o.gpus, o.nodes), []).append(o.step_time_s / form(o.gpus, o.nodes, o.micro_batch))
    factor = {} if smooth else {place: statistics.median(misses) for place, misses in beside.items()}
    return lambda k, n, m: form(k, n, m) * factor.get((k, n), 1.0), (min(micros), max(micros))


def speedups(predict: Truth, limits: tuple[int, int], base: int, per_node: int) -> list[tuple[int, float, int]]:
    """(GPUs, samples/s, micro batch): the best micro batch at each size, the global batch at most 32 x base."""
    out = []
    for k in SIZES:
        micros = [m for m in (limits[0] * 2**i for i in range(12)) if m <= limits[1] and base <= k * m <= 32 * base]
        micros = micros or [min(limits[1], max(limits[0], base // k))]
        nodes = -(-k // per_node)
        rate, micro = max((k * m / max(predict(k, nodes, m), 1e-9), m) for m in micros)
        out.append((k, rate, micro))
    return out


CAPPED = "true curves, at most 2x largest seen"
LABELS = ("perfect scaling", "Amdahl", "USL", "Optimus form", "Pollux fit", "ours, assumed prior",
          WITHOUT, "ours, learned prior", CAPPED)  # fmt: skip
Curve = list[tuple[int, float, int]]
Table = dict[str, list[float]]


def plan_tables(profiles: Sequence[Profile], repeats: int) -> None:
    """Value of the plan made from each model, valued with the true curves, in per cent of the optimum."""
    for smooth in (False, True):
        each: list[Table] = []
        for cluster in sorted({p.cluster for p in profiles}):
            local = [p for p in scored(profiles) if p.cluster == cluster]
            if len(local) < 4:
                continue
            each.append(plan_table(local, profiles, repeats, smooth))
            if not smooth:
                print_plans(cluster, each[-1])
        if each:
            mean = {label: np.mean([table[label] for table in each], 0).tolist() for label in each[0]}
            law = "the form alone" if smooth else "the form times what it misses"
            print_plans(f"mean of {len(each)} clusters, truth: {law}", mean)


def print_plans(title: str, table: Table) -> None:
    print(f"\n{title}: value of the plan of 40 jobs on 160 GPUs, % of the optimum   sizes seen: 1, 1-2, 1-4, 1-8")
    for label, values in table.items():
        print(f"  {label:<38}" + "".join(f"{100 * v:>8.1f}" for v in values), flush=True)


def plan_table(local: list[Profile], profiles: Sequence[Profile], repeats: int, smooth: bool) -> Table:
    """By model: the value after one to four sizes seen, mean of the repeats."""
    runs: list[Table] = []
    for repeat in range(repeats):
        rng = random.Random(repeat)
        jobs = [rng.choice(local) for _ in range(40)]
        truths = [truth_at(p, smooth) for p in jobs]
        exact = [curve(law, p, limits) for p, (law, limits) in zip(jobs, truths, strict=True)]
        best = plan_value(exact, truths, jobs)
        run = {"equal share": [value_of([4] * 40, [[4] * 0] * 40, truths, jobs, None) / best]}
        for label in LABELS:
            if label == CAPPED:
                grown = ([[c for c in row if c[0] <= 2 * k] for row in exact] for k in (1, 2, 4, 8))
            else:
                fitters = {p.app: fitter_of(label, p, profiles) for p in local}
                one = [
                    grow(fitters[p.app], p, t, f"{repeat} {i}")
                    for i, (p, t) in enumerate(zip(jobs, truths, strict=True))
                ]
                grown = (list(curves) for curves in zip(*one, strict=True))
            run[label] = [plan_value(curves, truths, jobs) / best for curves in grown]
        runs.append(run)
    return {label: np.mean([run[label] for run in runs], 0).tolist() for label in runs[0]}


def grow(fitter, profile: Profile, truth: tuple[Truth, tuple[int, int]], seed: str) -> list[Curve]:  # type: ignore[no-untyped-def]
    """A job's predicted curve after 1, 1-2, 1-4, 1-8 GPUs: first the user's micro batch, then the model's own choice.

    The noise of a report depends on the job and the size alone: the same for every model.
    """
    law, limits = truth
    micro, rows, compute, out = base_of(limits), list[Observation](), dict[int, float](), list[Curve]()
    for k in (1, 2, 4, 8):
        nodes, rng = -(-k // profile.per_node), random.Random(f"{seed} {k}")
        micro = {c[0]: c[2] for c in out[-1]}[k] if out else micro
        step = law(k, nodes, micro)
        report = Observation(k, nodes, k * micro, micro, 1, step, 1.0, max(0.0, 1.0 - law(1, 1, micro) / step))
        rows.append(noisy(report, rng))
        compute[micro] = law(1, 1, micro) * (1 + rng.gauss(0, NOISE))
        out.append(curve(fitter(rows, compute), profile, limits))
    return out


_truths: dict[tuple[str, str, bool], tuple[Truth, tuple[int, int]]] = {}


def truth_at(profile: Profile, smooth: bool) -> tuple[Truth, tuple[int, int]]:
    key = profile.cluster, profile.app, smooth
    if key not in _truths:
        _truths[key] = truth_of(profile, smooth)
    return _truths[key]


def base_of(limits: tuple[int, int]) -> int:
    """The batch a user starts one GPU with: the middle of the range, as a power of two of its lower end."""
    return limits[0] * 2 ** max(0, int(np.log2(limits[1] / limits[0]) / 2))


def curve(predict: Truth, profile: Profile, limits: tuple[int, int]) -> Curve:
    return speedups(predict, limits, base_of(limits), profile.per_node)


def plan_value(curves: list[list[tuple[int, float, int]]], truths, jobs) -> float:  # type: ignore[no-untyped-def]
    """Solve on these curves (ties to an even spread), value with the true ones."""
    rows = [[Choice(k, r / c[0][1] * (1 - 1e-4 * np.log2(k)), m) for k, r, m in c] for c in curves]
    answer = solve(rows, 160)
    picked = [row[i] for row, i in zip(rows, answer.choice, strict=True)]
    return value_of([o.gpus for o in picked], picked, truths, jobs, True)


def value_of(sizes, picked, truths, jobs, planned) -> float:  # type: ignore[no-untyped-def]
    total = 0.0
    for i, k in enumerate(sizes):
        law, limits = truths[i]
        true = {c[0]: c for c in curve(law, jobs[i], limits)}
        micro = picked[i].batch if planned else true[k][2]
        total += k * micro / law(k, -(-k // jobs[i].per_node), micro) / true[1][1]
    return total


def fit_times(quick: bool) -> None:
    """Milliseconds a model, one by one and vectorised."""
    rng = random.Random(1)
    jobs = [made_up_reports(rng) for _ in range(200 if quick else 2000)]
    start = time.process_time()
    for rows in jobs[:200]:
        fit(rows)
    alone = (time.process_time() - start) / 200
    start = time.process_time()
    fit_many(jobs)
    many = (time.process_time() - start) / len(jobs)
    start = time.process_time()
    for rows in jobs[:20]:
        peers.pollux(rows, {})
    other = (time.process_time() - start) / 20
    mine = f"ours alone {1e3 * alone:.2f}, ours vectorised {1e3 * many:.3f}"
    print(f"\nms a fit: {mine}, Pollux's fit by L-BFGS-B {1e3 * other:.0f}")


def made_up_reports(rng: random.Random) -> list[Observation]:
    law = made_up_law(rng)
    return [
        Observation(k, max(1, k // 4), k * 32, 32, 1, law(k, max(1, k // 4), 32) * (1 + rng.gauss(0, NOISE)))
        for k in (1, 2, 4, 8)[: rng.randint(1, 4)]
    ]


def made_up_law(rng: random.Random) -> Truth:
    theta = np.random.default_rng(rng.randrange(2**31)).multivariate_normal(ASSUMED.mean, ASSUMED.covariance).tolist()
    own = parameters(theta)
    return lambda k, n, m: 0.3 * step_time(own, k, n, m / 32, 1.0)


def made_up(count: int) -> list[Profile]:
    """Programs drawn from the assumed prior, 5 % off the form at every configuration."""
    out = []
    for i in range(count):
        rng = random.Random(i)
        law = made_up_law(rng)
        rows = []
        for k in SIZES:
            for n in {max(1, -(-k // 4)), min(k, 16)}:
                for m in MICROS:
                    rows.append(Observation(k, n, k * m, m, 1, law(k, n, m) * (1 + rng.gauss(0, 0.05))))
        out.append(Profile("made-up", f"program-{i}", tuple(rows), {m: law(1, 1, m) for m in MICROS}))
    return out


def print_prior(profiles: list[Profile]) -> None:
    """The prior over all programs, ready to be written into prior.py."""
    known = [p for p in profiles if p.micro_known]
    prior = learned_from(known)
    print(f"{len(known)} profiles of {len({p.app for p in known})} programs")
    for name, value in asdict(prior).items():
        print(f"    {name}={_rounded(value)!r},")


def _rounded(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_rounded, value))
    return round(value, 3) if isinstance(value, float) else value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--profiles", type=Path, nargs="+", help="folders with measured tables (see profiles.py)")
    parser.add_argument("--data", type=Path, help="folder with CM-DARE's tables (see bench_costs.py)")
    parser.add_argument("--goals", action="store_true", help="the goals beside what is reached, and no other tables")
    parser.add_argument("--print-prior", action="store_true", help="the prior learned from all of them")
    args = parser.parse_args()
    profiles = load(*args.profiles) if args.profiles else made_up(6 if args.quick else 12)
    if not profiles:
        raise SystemExit(f"no profiles below {args.profiles}: expected placements.csv or throughputs_*/*.csv")
    print(f"{len(profiles)} programs: " + ", ".join(f"{p.cluster}/{p.app}" for p in profiles))
    if args.print_prior:
        print_prior(profiles)
        return 0
    if args.goals:
        goal_tables(profiles)
        return 0
    error_table(profiles, 2 if args.quick else 6)
    one_report_table(profiles, 2 if args.quick else 6)
    plan_tables(profiles, 2 if args.quick else 4)
    fit_times(args.quick)
    goal_tables(profiles)
    if args.data:
        bench_costs.tables(args.data)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
