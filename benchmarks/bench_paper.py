"""The paper's experiments in shape: what elastic batches bring against fixed ones, by load, cluster and kind of job.

    python benchmarks/bench_paper.py [--quick] [--profiles FOLDER]

After Saxena et al., "Effective elastic scaling of deep learning workloads", MASCOTS 2020. Its claims: up to about 2x
the jobs completed and 10x shorter completion times than elastic scaling with the batch held fixed. Jobs are made up
(three declared classes; progress counted in samples, so a large batch costs nothing, as in the paper's premise; the
last table drops that premise). All methods but FIFO are allocated by the same exact optimizer: the factor is the
batch's, not the solver's. FOLDER holds measured programs (adaptdl's OSDI'21 profiles): with it the published setting is
rebuilt on them, and the factor is taken apart.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from pathlib import Path

import _setup  # noqa: F401
from public_data import load_profiles

from slurm_elastic.daemon.simulator.jobs import SimulationSettings
from slurm_elastic.daemon.simulator.metrics import Summary, summary
from slurm_elastic.daemon.simulator.programs import Program, builtin
from slurm_elastic.daemon.simulator.replay import simulate
from slurm_elastic.daemon.simulator.traces.formats import TraceJob

RANGE = 16
"""Largest batch over smallest."""
BASELINES = ("fixed at min", "fixed at max", "fixed at max, no accumulation", "fixed at random", "rigid FIFO")
WINDOW_S = 4 * 3600.0


def programs(with_noise: bool) -> dict[str, Program]:
    """The three classes; without their noise scale every batch of the range is equally good."""
    return {n: replace(p, noise=p.noise if with_noise else None, _speeds={}) for n, p in builtin().items()}


def trace(kind: str, gpus: int, load: float, bursty: bool, seed: int) -> list[TraceJob]:
    """Four hours of arrivals: one-GPU demand is `load` times the cluster; bursts bring eight jobs at once."""
    rng, at, rows = random.Random(f"{kind} {gpus} {load} {bursty} {seed}"), 0.0, list[TraceJob]()
    kinds = sorted(builtin()) if kind == "mixed" else [kind]
    mean_s = 1800.0
    burst = 8 if bursty else 1
    while True:
        at += rng.expovariate(load * gpus / mean_s / burst)
        if at > WINDOW_S:
            return rows
        for _ in range(burst):
            work = rng.lognormvariate(0, 0.8) * mean_s / 1.377
            rows.append(TraceJob(str(len(rows)), at, rng.choice(kinds), 1, 32, duration_s=work, min_batch=32,
                                 max_batch=32 * RANGE))  # fmt: skip


def fixed(rows: list[TraceJob], how: str, known: dict[str, Program], seed: int) -> list[TraceJob]:
    """The same work with every job's batch held."""
    rng, out = random.Random(seed), []
    for row in rows:
        batch = {"fixed at min": 32, "fixed at random": 32 * 2 ** rng.randrange(5)}.get(how, 32 * RANGE)
        program = known[row.program]
        samples = row.duration_s * program.throughput(1, 1, 32)  # the same training, whatever the batch
        least = 1
        if how.endswith("no accumulation"):  # every GPU must hold its slice at once
            least = max(1, -(-batch // program.micro_range[1]))
        most = max(1, batch // program.micro_range[0])
        out.append(
            replace(row, batch=batch, min_batch=batch, max_batch=batch, samples=samples, gpus=least, min_gpus=least,
                    max_gpus=most)
        )  # fmt: skip
    return out


def one(rows: list[TraceJob], policy: str, known: dict[str, Program], settings: SimulationSettings) -> Summary:
    return summary(simulate(rows, known, policy, settings)[0], WINDOW_S)


def experiment(kind: str, gpus: int, load: float, bursty: bool, drop: bool, quick: bool, noise: bool = False) -> None:
    """One line per baseline: the factor of elastic batches over it."""
    known = programs(noise)
    settings = SimulationSettings(gpus, 4, interval_s=60.0, pause_s=30.0, drop=drop)
    rows = trace(kind, gpus, load, bursty, 1)
    same = [replace(r, samples=r.duration_s * known[r.program].throughput(1, 1, 32)) for r in rows]
    policy = "goodput" if noise else "throughput"
    elastic = one(same, policy, known, settings)
    head = f"{gpus:>4} {kind:<14} {load:>4} {'bursty' if bursty else 'steady':<7} {'drop' if drop else 'queue':<6}"
    for how in BASELINES[:2] if quick else BASELINES:
        if how == "rigid FIFO":
            base = one(fixed(rows, "fixed at min", known, 1), "static", known, settings)
        else:
            base = one(fixed(rows, how, known, 1), "fixed-batch", known, settings)
        jobs = elastic.completed_in_window / max(1, base.completed_in_window)
        time = base.mean_s / elastic.mean_s
        counts = f"{elastic.completed_in_window:>5} / {base.completed_in_window:<5}"
        print(f"{head} {how:<30} {counts} {jobs:>8.2f} {time:>9.2f}", flush=True)


SETTINGS = {
    "base batch of the profile": (False, 1),
    "smallest measured batch": (True, 1),
    "base batch, at least 4 GPUs": (False, 4),
}
"""(the fixed batch is the smallest that was measured on a GPU, GPUs that the baseline's jobs hold at least)"""


def one_gpu(program: Program, batch: int) -> float:
    """How many times the samples per second one GPU gives at RANGE times the batch."""
    return program.throughput(1, 1, min(RANGE * batch, program.max_batch)) / program.throughput(1, 1, batch)


def measured_trace(known: dict[str, Program], gpus: int, load: float, smallest: bool) -> list[TraceJob]:
    """Four hours of arrivals of measured programs in equal parts, as `trace` makes them."""
    rng, at, rows = random.Random(f"{gpus} {load}"), 0.0, list[TraceJob]()
    while True:
        at += rng.expovariate(load * gpus / 1800.0)
        if at > WINDOW_S:
            return rows
        name = rng.choice(sorted(known))
        program = known[name]
        batch = program.micro_range[0] if smallest else program.base_batch
        samples = rng.lognormvariate(0, 0.8) * 1800.0 / 1.377 * program.throughput(1, 1, batch)
        most = min(RANGE * batch, program.max_batch)
        rows.append(TraceJob(str(len(rows)), at, name, 1, batch, samples, min_batch=batch, max_batch=most))


def measured(folder: Path, quick: bool) -> None:
    """Elastic batches against the batch fixed at its base, on measured programs, and what one GPU explains of it."""
    known = {n: replace(p, noise=None, work=0.0, _speeds={}) for n, p in load_profiles(folder).items()}
    for title, (smallest, least) in SETTINGS.items():
        gains = [one_gpu(p, p.micro_range[0] if smallest else p.base_batch) for _, p in sorted(known.items())]
        mean = len(gains) / sum(1 / gain for gain in gains)
        shown = ", ".join(f"{name} {gain:.2f}" for name, gain in zip(sorted(known), gains, strict=True))
        print(f"\nmeasured programs, fixed: {title}; one GPU at {RANGE} x the batch: {shown}; harmonic mean {mean:.2f}")
        for gpus in (40,) if quick else (40, 128):
            for load in (0.5, 2.0) if quick else (0.5, 1.0, 2.0, 4.0):
                rows = measured_trace(known, gpus, load, smallest)
                settings = SimulationSettings(gpus, 4, interval_s=60.0, pause_s=30.0)
                elastic = one(rows, "throughput", known, settings)
                base = one([held(row, known[row.program], least) for row in rows], "fixed-batch", known, settings)
                jobs = elastic.completed_in_window / max(1, base.completed_in_window)
                counts = f"{elastic.completed_in_window:>5} / {base.completed_in_window:<5}"
                print(f"{gpus:>4} {load:>4} {counts} {jobs:>8.2f} {base.mean_s / elastic.mean_s:>9.2f}", flush=True)


def held(row: TraceJob, program: Program, least: int) -> TraceJob:
    """The same job with its batch held, on at least so many GPUs where the batch can be shared out to them."""
    most = max(1, row.batch // program.micro_range[0])
    return replace(row, max_batch=row.batch, max_gpus=most, min_gpus=min(least, most), gpus=min(least, most))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="40 GPUs and two baselines only")
    parser.add_argument("--profiles", type=Path, help="folder of measured programs, one sub-folder each")
    args = parser.parse_args()
    print(f"{'GPUs':>4} {'jobs':<14} {'load':>4} {'arrival':<7} {'mode':<6} {'baseline':<30} {'done in 4 h':<13}"
          f" {'jobs x':>8} {'time x':>9}")  # fmt: skip
    for gpus in (40,) if args.quick else (40, 400):
        for kind in ("mixed",) if args.quick or gpus > 40 else ("compute", "balanced", "communication", "mixed"):
            for load in (0.5, 2.0) if args.quick else (0.5, 1.0, 2.0, 4.0):
                experiment(kind, gpus, load, False, False, args.quick)
        experiment("mixed", gpus, 1.0, True, False, args.quick)
        for load in (1.0, 2.0, 4.0):
            experiment("mixed", gpus, load, False, True, args.quick)
    print("\nthe same with statistical efficiency counted (a large batch costs samples), objective: goodput")
    for load in (0.5, 2.0):
        experiment("mixed", 40, load, False, False, args.quick, noise=True)
    if args.profiles:
        measured(args.profiles, args.quick)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
