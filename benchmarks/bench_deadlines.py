"""Deadlines kept under a plan that counts them beside the same plan that does not (deadline_weight = 1), and what that
costs the others: a made-up day on 64 GPUs, drawn from a seed.

    python benchmarks/bench_deadlines.py [--jobs 330] [--seeds 3]

A job has a deadline of 0.5 to 2 times how long it takes alone at the size that it asks for, from its submission on;
waits are Slurm's. Of some no size keeps it.
"""

from __future__ import annotations

import argparse
import random
from statistics import fmean

import _setup  # noqa: F401

from slurm_elastic.daemon.simulator.jobs import SimulationSettings
from slurm_elastic.daemon.simulator.metrics import Summary, summary
from slurm_elastic.daemon.simulator.programs import builtin
from slurm_elastic.daemon.simulator.replay import simulate
from slurm_elastic.daemon.simulator.traces.formats import TraceJob

DAY_S = 86400.0


def day(seed: int, jobs: int, share: float) -> list[TraceJob]:
    """Trainings of some hours, `share` of them with a deadline."""
    rng, at, rows = random.Random(seed), 0.0, list[TraceJob]()
    for number in range(jobs):
        at += rng.expovariate(jobs / DAY_S)
        gpus, run_s, program = rng.choice((1, 2, 4, 8)), rng.lognormvariate(8.6, 0.8), rng.choice(sorted(builtin()))
        due_s = run_s * rng.uniform(0.5, 2.0) * (rng.random() < share)
        rows.append(
            TraceJob(
                *(str(number), at, program, gpus, 32 * gpus, 0.0, run_s, max(1, gpus // 2), 4 * gpus),
                *(32 * gpus, 128 * gpus),
                deadline_s=due_s,
            )
        )
    return rows


def outcome(rows: list[TraceJob], weight: float) -> Summary:
    settings = SimulationSettings(64, until="epochs", deadline_weight=weight)
    return summary(simulate(rows, builtin(), "auto", settings)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=330)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    print("with deadlines  deadline_weight  kept    mean time to the end  GPUs used")
    for share in (0.2, 0.5, 1.0):
        for weight in (1.0, 4.0):
            found = [outcome(day(seed, args.jobs, share), weight) for seed in range(args.seeds)]
            kept, mean_s, used = (fmean(getattr(s, name) for s in found) for name in ("in_time", "mean_s", "gpus_used"))
            print(f"{share:14.0%}  {weight:15g}  {kept:6.1%}  {mean_s:20.0f}  {used:9.0%}", flush=True)


if __name__ == "__main__":
    main()
