"""The models' tables: error on what was not measured, and what the plans made from the models are worth.

    python benchmarks/bench_models.py [--quick] [--profiles FOLDER] [--print-prior]

Without --profiles the programs are drawn from the prior itself (made up: says how the fit behaves, not how the world
does). With it: measured tables, the prior learned from the other programs only (leave one program out).
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import _setup  # noqa: F401
import model_peers as peers
import numpy as np
from profiles import Profile, load

from slurm_elastic.daemon.optimizer.models import Observation, coordinates, fit, fit_many
from slurm_elastic.daemon.optimizer.prior import ASSUMED, Prior, learn
from slurm_elastic.daemon.optimizer.solver import Option, solve
from slurm_elastic.daemon.optimizer.step_form import step_time

MICROS = (4, 8, 16, 32, 64, 128)
NOISE = 0.03
SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
WIDE = Prior(ASSUMED.mean, tuple(tuple(4.0 * (i == j) for j in range(7)) for i in range(7)), 0.1)
Truth = Callable[[int, int, float], float]


def records(profile: Profile) -> list[tuple[float, ...]]:
    """The whole profile's coordinates, relative to three of its micro batches: a prior must not hang on one."""
    out = []
    micros = sorted({o.micro_batch for o in profile.rows if o.gpus == 1}) or [profile.rows[0].micro_batch]
    for micro in {micros[0], micros[len(micros) // 2], micros[-1]}:
        first = [o for o in profile.rows if (o.gpus, o.micro_batch) == (1, micro)]
        rest = [o for o in profile.rows if not (o.gpus == 1 and o.micro_batch < micro)]
        out.append(coordinates(first + rest))
    return out


def learned(profile: Profile, all_: Sequence[Profile]) -> Prior:
    """From every other program; those on the same cluster count three times."""
    key = profile.cluster, profile.app
    if key in _priors:
        return _priors[key]
    rows, weights = [], []
    for other in all_:
        if other.app != profile.app:
            for row in records_of(other):
                rows.append(row)
                weights.append(3.0 if other.cluster == profile.cluster else 1.0)
    prior = learn(rows, weights)
    _priors[key] = prior
    return prior


_priors: dict[tuple[str, str], Prior] = {}
_records: dict[tuple[str, str], list[tuple[float, ...]]] = {}


def records_of(profile: Profile) -> list[tuple[float, ...]]:
    key = profile.cluster, profile.app
    if key not in _records:
        _records[key] = records(profile)
    return _records[key]


def order(profile: Profile, kind: str, rng: random.Random) -> list[Observation]:
    """Six configurations in the order a job would come by them."""
    at = {(o.gpus, o.nodes, o.micro_batch): o for o in profile.rows}
    micros = sorted({o.micro_batch for o in profile.rows})
    base, top = micros[len(micros) // 2], micros[-1]
    if kind == "random":
        return rng.sample(list(profile.rows), min(6, len(profile.rows)))
    dense = {k: min((n for g, n, _ in at if g == k), default=0) for k in SIZES}
    if kind == "growth":
        wanted = [(k, dense[k], base) for k in (1, 2, 4, 8, 16, 32)]
    else:
        wanted = [(1, 1, base), (2, 2, base), (4, 1, top), (8, 2, base), (1, 1, micros[0]), (16, dense[16], top)]
    out = [at[w] for w in wanted if w in at]
    for k in SIZES:  # tables with holes: the nearest micro batch measured at the next size
        near = [o for o in profile.rows if o.gpus == k and o not in out]
        if len(out) < 6 and near and not any(o.gpus == k for o in out):
            out.append(min(near, key=lambda o: abs(o.micro_batch - base)))
    return out if kind != "growth" else sorted(out, key=lambda o: o.gpus)


def error_table(profiles: list[Profile], repeats: int) -> None:
    """Median over programs of the mean relative error on all configurations not observed."""
    counts, rich = (1, 2, 3, 4, 6), [p for p in profiles if len(p.rows) >= 100]
    for kind in ("growth", "explore", "random"):
        print(f"\nerror of the step time, {kind} order, median of programs (%)   observations: {counts}")
        for label in ("perfect scaling", "Amdahl", "USL", "Optimus form", "Pollux fit", "ours, assumed prior",
                      "ours, learned prior"):  # fmt: skip
            cells = []
            for n in counts:
                errors = []
                for profile in rich:
                    fitter = fitter_of(label, profile, profiles)
                    errors.append(statistics.mean(one_error(profile, kind, n, fitter, r) for r in range(repeats)))
                cells.append(statistics.median(errors))
            print(f"  {label:<22}" + "".join(f"{100 * c:>8.1f}" for c in cells), flush=True)


def fitter_of(label: str, profile: Profile, profiles: Sequence[Profile]):  # type: ignore[no-untyped-def]
    table = {"perfect scaling": peers.perfect, "Amdahl": peers.amdahl, "USL": peers.usl,
             "Optimus form": peers.optimus, "Pollux fit": peers.pollux,
             "ours, assumed prior": peers.ours(ASSUMED)}  # fmt: skip
    if label in table:
        return table[label]
    return peers.ours(learned(profile, profiles))


def one_error(profile: Profile, kind: str, n: int, fitter, seed: int) -> float:  # type: ignore[no-untyped-def]
    rng = random.Random(f"{profile.cluster} {profile.app} {kind} {seed}")
    rows = [noisy(o, rng) for o in order(profile, kind, rng)][:n]
    compute = {m: t * (1 + rng.gauss(0, NOISE)) for m, t in profile.compute.items()}
    predict = fitter(rows, compute)
    seen = {(o.gpus, o.nodes, o.micro_batch) for o in rows}
    rest = [o for o in profile.rows if (o.gpus, o.nodes, o.micro_batch) not in seen]
    return statistics.mean(abs(predict(o.gpus, o.nodes, o.micro_batch) / o.step_time_s - 1) for o in rest)


def noisy(o: Observation, rng: random.Random) -> Observation:
    time_s = o.step_time_s * max(0.5, 1 + rng.gauss(0, NOISE))
    return Observation(o.gpus, o.nodes, o.batch, o.micro_batch, o.accumulation, time_s)


def truth_of(profile: Profile) -> tuple[Truth, tuple[int, int]]:
    """The form fitted to the whole profile, times what it misses at each placement; the range of micro batches."""
    model = fit(profile.rows, WIDE)
    micros = [o.micro_batch for o in profile.rows]
    beside: dict[tuple[int, int], list[float]] = {}

    def form(k: int, n: int, m: float) -> float:
        return model.scale_s * step_time(model.theta, k, n, m / model.micro, 1.0)

    for o in profile.rows:
        beside.setdefault((o.gpus, o.nodes), []).append(o.step_time_s / form(o.gpus, o.nodes, o.micro_batch))
    factor = {place: statistics.median(misses) for place, misses in beside.items()}
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


def plan_table(cluster: str, profiles: list[Profile], repeats: int) -> None:
    """Value of the plan made from each model, valued with the true curves, in per cent of the optimum."""
    local = [p for p in profiles if p.cluster == cluster and len(p.rows) >= 100]
    if len(local) < 4:
        return
    print(f"\n{cluster}: value of the plan of 40 jobs on 160 GPUs, % of the optimum   sizes seen: 1, 1-2, 1-4, 1-8")
    labels = ("perfect scaling", "Amdahl", "USL", "Optimus form", "Pollux fit",
              "ours, assumed prior", "ours, learned prior", "true curves, at most 2x largest seen")  # fmt: skip
    cells: dict[str, list[list[float]]] = {label: [[], [], [], []] for label in labels}
    even = []
    for repeat in range(repeats):
        rng = random.Random(repeat)
        jobs = [rng.choice(local) for _ in range(40)]
        truths = [truth_at(p) for p in jobs]
        even.append(value_of([4] * 40, [[4] * 0] * 40, truths, jobs, None))
        best = plan_value([curve(truth, jobs[i], truths[i][1]) for i, (truth, _) in enumerate(truths)], truths, jobs)
        even[-1] /= best
        for seen in range(1, 5):
            drawn = [observed(p, t, seen, rng) for p, t in zip(jobs, truths, strict=True)]
            for label in labels:
                curves = []
                for profile, (truth, limits), (rows, compute) in zip(jobs, truths, drawn, strict=True):
                    if label.startswith("true"):
                        curves.append([c for c in curve(truth, profile, limits) if c[0] <= 2 ** (seen - 1) * 2])
                    else:
                        curves.append(curve(fitter_of(label, profile, profiles)(rows, compute), profile, limits))
                cells[label][seen - 1].append(plan_value(curves, truths, jobs) / best)
    print(f"  {'equal share':<38}{100 * statistics.mean(even):>8.1f}")
    for label in labels:
        row = "".join(f"{100 * statistics.mean(c):>8.1f}" for c in cells[label])
        print(f"  {label:<38}{row}", flush=True)


_truths: dict[tuple[str, str], tuple[Truth, tuple[int, int]]] = {}


def truth_at(profile: Profile) -> tuple[Truth, tuple[int, int]]:
    key = profile.cluster, profile.app
    if key not in _truths:
        _truths[key] = truth_of(profile)
    return _truths[key]


def base_of(limits: tuple[int, int]) -> int:
    """The batch a user starts one GPU with: the middle of the range, as a power of two of its lower end."""
    return limits[0] * 2 ** max(0, int(np.log2(limits[1] / limits[0]) / 2))


def curve(predict: Truth, profile: Profile, limits: tuple[int, int]) -> list[tuple[int, float, int]]:
    return speedups(predict, limits, base_of(limits), profile.per_node)


def observed(
    profile: Profile, truth: tuple[Truth, tuple[int, int]], seen: int, rng: random.Random
) -> tuple[list[Observation], dict[int, float]]:
    """Reports at 1, 2, 4, 8 GPUs at the base micro batch, and what a compute-only timer would say."""
    law, limits = truth
    micro, rows = base_of(limits), []
    for k in (1, 2, 4, 8)[:seen]:
        nodes = -(-k // profile.per_node)
        rows.append(Observation(k, nodes, k * micro, micro, 1, law(k, nodes, micro) * (1 + rng.gauss(0, NOISE))))
    return rows, {micro: law(1, 1, micro) * (1 + rng.gauss(0, NOISE))}


def plan_value(curves: list[list[tuple[int, float, int]]], truths, jobs) -> float:  # type: ignore[no-untyped-def]
    """Solve on these curves (ties to an even spread), value with the true ones."""
    rows = [[Option(k, r / c[0][1] * (1 - 1e-4 * np.log2(k)), m) for k, r, m in c] for c in curves]
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
    return lambda k, n, m: 0.3 * step_time(theta, k, n, m / 32, 1.0)


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
    prior = learn([r for p in profiles for r in records_of(p)])
    print("mean", tuple(round(x, 3) for x in prior.mean))
    for row in prior.covariance:
        print("   ", tuple(round(x, 3) for x in row))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--profiles", type=Path, nargs="+", help="folders with measured tables (see profiles.py)")
    parser.add_argument("--print-prior", action="store_true", help="the prior learned from all of them")
    args = parser.parse_args()
    profiles = load(*args.profiles) if args.profiles else made_up(6 if args.quick else 12)
    if not profiles:
        raise SystemExit(f"no profiles below {args.profiles}: expected placements.csv or throughputs_*/*.csv")
    print(f"{len(profiles)} programs: " + ", ".join(f"{p.cluster}/{p.app}" for p in profiles))
    if args.print_prior:
        print_prior(profiles)
        return 0
    error_table(profiles, 2 if args.quick else 6)
    for cluster in sorted({p.cluster for p in profiles}):
        plan_table(cluster, profiles, 2 if args.quick else 6)
    fit_times(args.quick)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
