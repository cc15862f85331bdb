"""Fairness between users on public traces: how even, and what it costs in progress, beside the goals.

    python benchmarks/bench_fairness.py --data FOLDER [--quick]

FOLDER holds adaptdl's OSDI'21 artifact (profiles/, workloads/) and Philly's jobs (philly_jobs*.csv). The workloads have
no users: ten are made up, whose shares of the jobs fall as 1, 1/2, 1/3, ... Philly's virtual clusters are its accounts;
its jobs are taken to scale as `balanced` programs do.
"""

from __future__ import annotations

import argparse
import gc
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import _setup  # noqa: F401
from public_data import load_profiles

from slurm_elastic.daemon.simulator.jobs import SimulationSettings
from slurm_elastic.daemon.simulator.metrics import served, summary
from slurm_elastic.daemon.simulator.programs import Program, builtin
from slurm_elastic.daemon.simulator.replay import simulate
from slurm_elastic.daemon.simulator.traces.formats import TraceJob, read

USERS = 10
EVEN, PRICE = 0.95, 0.05
"""The goals: Jain's index at least, and the share of the progress that it may cost."""
STRETCHES = (("2017-10-22", "2017-10-24"), ("2017-11-07", "2017-11-10"))
"""Of Philly: days on which its virtual clusters ask for most of 512 GPUs."""
Case = tuple[str, list[TraceJob], SimulationSettings, str, str]
"""Name, jobs, settings, between whom, the program that is assumed."""


def cases(data: Path, quick: bool) -> Iterator[Case]:
    """The workloads, then the stretches of Philly."""
    for number, file in enumerate(sorted(data.rglob("workloads/workload-*.csv"))[: 1 if quick else None], 1):
        rng, names = random.Random(number), [f"u{i}" for i in range(USERS)]
        shares = [1 / (i + 1) for i in range(USERS)]
        jobs = [replace(job, user=rng.choices(names, shares)[0]) for job in read(file.read_text(), file.name)]
        yield file.stem, jobs, SimulationSettings(64, 4), "user", ""
    for file in sorted(data.rglob("philly_jobs*.csv")):
        jobs = read(file.read_text(), file.name)
        for start, end in STRETCHES[: 1 if quick else None]:
            days = [job for job in jobs if start <= job.job_id < end]  # a job's id is when it was submitted
            yield f"philly {start}", days, SimulationSettings(512, 8), "account", "balanced"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the traces")
    parser.add_argument("--quick", action="store_true", help="one of each")
    args = parser.parse_args()
    gc.disable()
    programs: dict[str, Program] = builtin()
    for folder in args.data.rglob("profiles"):
        programs |= load_profiles(folder)
    print(f"goals: Jain's index >= {EVEN} between users, at <= {PRICE:.0%} of the progress\n")
    print(f"{'':<18} {'fairness':<9} {'jain':>6} {'of GPUs':>8} {'progress':>9} {'rho':>6} {'worst':>6} {'mean s':>7}")
    for name, jobs, settings, between, declared in cases(args.data, args.quick):
        before = None
        for fairness in ("job", between):
            outcome, _ = simulate(jobs, programs, "auto", replace(settings, fairness=fairness), declared)
            found = served(outcome, between)
            change = "" if before is None else f"{found.progress / before - 1:+.1%}"
            goal = ""
            if before is not None:
                met = found.jain >= EVEN and found.progress >= (1 - PRICE) * before
                goal = "met" if met else "MISSED"
            before = found.progress
            figures = (
                f"{found.jain:>6.3f} {found.jain_gpus:>8.3f} {change or f'{before:.1f}':>9} {found.rho_mean:>6.2f}"
            )
            mean = summary(outcome).mean_s
            print(f"{name:<18} {fairness:<9} {figures} {found.rho_worst:>6.1f} {mean:>7.0f}  {goal}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
