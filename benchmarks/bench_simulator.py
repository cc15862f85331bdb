"""The simulator's tables: speed, policies on a public workload, what a restart costs, needless moves under noise.

    python benchmarks/bench_simulator.py [--quick] [--data FOLDER] [--price SEEDS]

FOLDER holds adaptdl's OSDI'21 artifact (profiles/, workloads/); without it the workload is made up from the built-in
classes and says so.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import math
import random
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import _setup  # noqa: F401
from evolution import EvolutionPlanner
from feedback import simulate_feedback
from made_up_month import month as made_up_month
from pollux_artifact import NCF_BATCH
from public_data import load_profiles

from slurm_elastic.daemon.models.priors import CLUSTER_COUNTS, PROGRAM_COUNTS, RUNS_OF_PROGRAM
from slurm_elastic.daemon.optimizer.job_view import JobView
from slurm_elastic.daemon.optimizer.models.learning import learn
from slurm_elastic.daemon.optimizer.models.observation import Observation
from slurm_elastic.daemon.optimizer.models.prior import DEFAULT, Prior
from slurm_elastic.daemon.optimizer.models.throughput import fit
from slurm_elastic.daemon.optimizer.plan import plan_pools
from slurm_elastic.daemon.optimizer.policies import DEFAULT_POLICY, POLICIES
from slurm_elastic.daemon.planner.settings import FIRST_SIZES
from slurm_elastic.daemon.simulator import replay
from slurm_elastic.daemon.simulator.engine import Outcome
from slurm_elastic.daemon.simulator.job_states import JobStates, TrueCurve
from slurm_elastic.daemon.simulator.jobs import SimulatedJob, SimulationSettings
from slurm_elastic.daemon.simulator.metrics import summary, table
from slurm_elastic.daemon.simulator.programs import Program, builtin, size_ladder
from slurm_elastic.daemon.simulator.replay import simulate
from slurm_elastic.daemon.simulator.traces.formats import TraceJob, read

ENDINGS = {"epochs": ("epochs",), "quality": ("quality",), "half": ("epochs", "quality")}
CONCAVE = (DEFAULT_POLICY, "log-throughput", "log-goodput")
MONTH_S = 60.0
LEARNING, NEEDLESS = 0.041, 0.01
"""The goals: what learning may cost of the mean (half of what it cost: 2,318 s against 2,142), and the share of running
jobs that noise alone may move in a decision."""
POLLUX_GOALS = "goals: 0.80 in the mean, 0.90 on every workload"
OWN_GOAL = 0.05
"""Most that a policy's mean may differ between our own simulator and the artifact's."""


def made_up(jobs: int, gpus: int, load: float, seed: int = 0) -> list[TraceJob]:
    """Jobs of the built-in classes whose GPU-time at the sizes asked for is `load` times the cluster's."""
    rng, at, rows, names = random.Random(seed), 0.0, list[TraceJob](), sorted(builtin())
    mean = 2.33 * 600.0 * 1.65  # GPUs asked for x median run time x mean over median
    for i in range(jobs):
        at += rng.expovariate(load * gpus / mean)
        asked = rng.choice((1, 2, 4))
        rows.append(TraceJob(str(i), at, rng.choice(names), asked, 64, duration_s=rng.lognormvariate(6.4, 1.0)))
    return rows


def digest(outcome: Outcome) -> str:
    """The same where every job had the same GPUs at the same times, and the same came of it."""
    jobs = [(j.trace.job_id, j.start_s, j.end_s, j.moves, j.gpu_seconds, j.paused_s) for j in outcome.jobs]
    return hashlib.sha256(repr((jobs, outcome.changes, outcome.end_s)).encode()).hexdigest()[:12]


def speed(quick: bool) -> None:
    jobs = made_up(2000 if quick else 10_000, 512, 0.7)
    goal = "" if quick else "; goal: auto at 60 s in 2 s"
    print(f"{len(jobs)} jobs on 512 GPUs, CPU seconds of one core{goal}; at the end of a line the outcome's digest")
    for interval in (60.0, 300.0) if quick else (60.0, 300.0, 0.0):
        for policy in (*CONCAVE, "throughput"):
            start = time.process_time()
            outcome, _ = simulate(jobs, builtin(), policy, SimulationSettings(512, 8, interval_s=interval))
            spent = time.process_time() - start
            row = summary(outcome)
            when = f"at most every {interval:.0f} s" if interval else "at every event"
            counts = f"{outcome.decisions:>6} decisions  {outcome.events:>6} events"
            came = f"mean completion {row.mean_s:.0f} s, {row.restarts:.2f} restarts a job"
            print(f"  {policy:<14} {when:<22} {spent:>7.2f} s  {counts}  {came}  {digest(outcome)}", flush=True)


def month() -> None:
    """A month of sacct as a director would try it: 2,000 jobs of 40 users on 128 GPUs."""
    jobs, settings = read(made_up_month()), SimulationSettings(128, 8, fairness="account")
    print(f"a month of sacct, {len(jobs)} jobs on 128 GPUs, CPU seconds of one core; goal: {MONTH_S:.0f} s")
    for policy in ("backfill", "fixed-batch", "throughput", DEFAULT_POLICY):
        start = time.process_time()
        outcome, _ = simulate(jobs, builtin(), policy, settings, "balanced")
        spent, row = time.process_time() - start, summary(outcome)
        print(f"  {policy:<14} {spent:>7.2f} s  {outcome.decisions:>6} decisions  mean completion {row.mean_s:.0f} s")


def workload(data: Path | None, quick: bool) -> None:
    """Policies on one workload, then the same with expensive restarts, priced and not, and with learned curves."""
    programs: dict[str, Program] = builtin()
    if data:
        file = next(iter(sorted(data.rglob("workloads/workload-1.csv"))), None)
        if file is None:
            raise SystemExit(f"{data}: no workloads/workload-1.csv below it")
        programs |= load_profiles(file.parents[1] / "profiles")
        jobs = read(file.read_text(), str(file))
        print(f"\n{file.name}: {len(jobs)} jobs on 64 GPUs, measured profiles")
    else:
        jobs = made_up(160, 64, 1.2)
        print("\nmade-up workload of the built-in classes: 160 jobs on 64 GPUs (assumed shapes, not measured)")
    settings = SimulationSettings(64, 4)
    POLICIES["evolution"] = replace(POLICIES["log-goodput"], planner=EvolutionPlanner())
    rows = [summary(simulate(jobs, programs, policy, settings)[0]) for policy in POLICIES]
    rows.append(summary(simulate_feedback(jobs, programs, settings)[0]))
    del POLICIES["evolution"]
    print(table(rows), flush=True)
    print("\nthe same, restarts of 300 s")
    expensive = replace(settings, pause_s=300.0)
    for policy in (*CONCAVE, "throughput"):
        for label, priced in (("priced", True), ("for free in the plan", False)):
            outcome = simulate(jobs, programs, policy, replace(expensive, price_moves=priced))[0]
            row = summary(outcome)
            print(f"  {policy:<14} {label:<22} mean {row.mean_s:>6.0f} s  {row.restarts:.2f} restarts a job")
    goal = f"goal: {DEFAULT_POLICY} at most {LEARNING:+.1%} on the public workload-1"
    print(f"\ncurves learned from each job's own reports (3 % noise), against known curves; {goal}")
    for policy in (DEFAULT_POLICY,) if quick else ("throughput", "goodput", *CONCAVE):
        known = summary(simulate(jobs, programs, policy, settings)[0]).mean_s
        learned = summary(simulate(jobs, programs, policy, replace(settings, learned=True))[0])
        moved = f"{learned.mean_s / known - 1:+.1%}, {learned.restarts:.2f} restarts a job"
        print(f"  {policy:<14} {known:>6.0f} s known, {learned.mean_s:>6.0f} s learned ({moved})", flush=True)


def endings(data: Path | None, quick: bool) -> None:
    """What each measure of progress is worth: jobs that train epochs, that stop at a quality, half of each."""
    programs: dict[str, Program] = builtin()
    sets = {"made up": made_up(160, 64, 1.2)}
    if data:
        files = sorted(data.rglob("workloads/workload-*.csv"))[: 1 if quick else None]
        programs |= load_profiles(files[0].parents[1] / "profiles")
        sets = {file.stem: read(file.read_text(), str(file)) for file in files}
    print("\nmean completion time, s, by what ends the training (64 GPUs)")
    print(f"  {'':<12} {'until':<8} " + " ".join(f"{policy:>15}" for policy in CONCAVE))
    for name, rows in sets.items():
        for how, said in ENDINGS.items():
            jobs = [replace(row, until=said[i % len(said)]) for i, row in enumerate(rows)]
            means = [
                summary(simulate(jobs, programs, policy, SimulationSettings(64, 4))[0]).mean_s for policy in CONCAVE
            ]
            print(f"  {name:<12} {how:<8} " + " ".join(f"{mean:>15.0f}" for mean in means), flush=True)


def price(data: Path, seeds: int) -> None:
    """What learning costs on each workload, mean over seeds: jobs ask for one GPU, 30 s a move and a start.

    With each seed but the first all jobs come up to 30 s earlier or later: single runs differ by chance.
    """
    files = sorted(data.rglob("workloads/workload-*.csv"))
    programs = load_profiles(files[0].parents[1] / "profiles")
    print(f"\nthe price of learning, of the mean with known curves; goal: {LEARNING:+.1%} at most")
    for file in files:
        found = list[float]()
        for seed in range(seeds):
            rng = random.Random(f"{file.stem[-1]} {seed}")
            jobs = [
                _one_gpu(row, rng.uniform(-30.0, 30.0) if seed else 0.0) for row in read(file.read_text(), file.name)
            ]
            jobs.sort(key=lambda row: row.submit_s)
            settings = SimulationSettings(64, 4, pause_s=30.0, start_s=30.0, seed=seed)
            known, learned = (
                summary(simulate(jobs, programs, DEFAULT_POLICY, replace(settings, learned=learned))[0]).mean_s
                for learned in (False, True)
            )
            found.append(learned / known - 1.0)
        each = " ".join(f"{share:+.1%}" for share in found)
        print(f"  {file.stem:<12} {math.fsum(found) / seeds:+.1%}  ({each})", flush=True)


class FromFirstReport(JobStates):
    """Whose curves are known as soon as they have reported: what waiting for that alone costs."""

    def learn(self, jobs: Iterable[tuple[int, SimulatedJob]], now: float) -> None:
        every = list(jobs)
        super().learn(every, now)
        for _, job in every:
            job.model = self._curve(job.program) if job.reports else job.model


class FromRuns(JobStates):
    """Who learns the priors of programs at each job's end, as selasticd does."""

    def __init__(self, settings: SimulationSettings) -> None:
        super().__init__(settings)
        self.runs, self.priors = dict[Program, list[list[Observation]]](), dict[Program, Prior]()

    def ended(self, job_id: int, job: SimulatedJob) -> None:
        super().ended(job_id, job)
        if job.reports:
            self.runs[job.program] = [*self.runs.get(job.program, ()), list(job.reports.values())][-RUNS_OF_PROGRAM:]
            self.priors.pop(job.program, None)

    def learn(self, jobs: Iterable[tuple[int, SimulatedJob]], now: float) -> None:
        every = [(job_id, job, len(job.reports)) for job_id, job in jobs]
        super().learn([(job_id, job) for job_id, job, _ in every], now)
        for _, job, before in every:
            if len(job.reports) > before:
                job.model = fit(list(job.reports.values()), self._prior(job.program))

    def _prior(self, program: Program) -> Prior:
        if program in self.runs and program not in self.priors:
            runs = [(run, 1.0 / len(group)) for group in self.runs.values() for run in group]
            cluster = learn([run for run, _ in runs], [part for _, part in runs], DEFAULT, CLUSTER_COUNTS)
            self.priors[program] = learn(self.runs[program], None, cluster, PROGRAM_COUNTS)
        return self.priors.get(program, DEFAULT)


def price_of_short_jobs(seeds: int) -> None:
    """What learning costs jobs of minutes: 120 of the built-in classes on 40 GPUs, as in `price`."""
    kinds = {
        "learned": JobStates,
        "with what ended jobs taught": FromRuns,
        "known from the first report": FromFirstReport,
    }
    for load in (0.5, 1.0, 2.0):
        means = {kind: list[float]() for kind in kinds}
        for seed in range(seeds):
            jobs = [replace(row, gpus=1, min_gpus=1) for row in made_up(120, 40, load, seed)]
            settings = SimulationSettings(40, 4, pause_s=30.0, start_s=30.0, seed=seed)
            known = summary(simulate(jobs, builtin(), DEFAULT_POLICY, settings)[0]).mean_s
            for kind, states in kinds.items():
                replay.JobStates = states  # type: ignore[misc]
                outcome, _ = simulate(jobs, builtin(), DEFAULT_POLICY, replace(settings, learned=True))
                replay.JobStates = JobStates  # type: ignore[misc]
                means[kind].append(summary(outcome).mean_s / known - 1.0)
        told = "; ".join(f"{kind} {math.fsum(found) / seeds:+.1%}" for kind, found in means.items())
        print(f"  made-up classes, load {load:g}: {told}", flush=True)


def first_sizes(data: Path) -> None:
    """What becomes of jobs for which there is no room as asked: means and waits on each workload, 5 s a move."""
    files = sorted(data.rglob("workloads/workload-*.csv"))[:4]
    programs = load_profiles(files[0].parents[1] / "profiles")
    for kind in FIRST_SIZES:
        settings = SimulationSettings(64, 4, pause_s=5.0, learned=True, first_size=kind)
        rows = [
            summary(simulate(read(file.read_text(), file.name), programs, DEFAULT_POLICY, settings)[0])
            for file in files
        ]
        print(f"  {kind:<10} " + " ".join(f"{row.mean_s:>6.0f} ({row.mean_wait_s:.0f})" for row in rows), flush=True)


def _one_gpu(row: TraceJob, later_s: float) -> TraceJob:
    row = replace(row, submit_s=max(0.0, row.submit_s + later_s), gpus=1, min_gpus=1, batch=0)
    if row.program == "ncf":
        row = replace(row, max_gpus=1, batch=NCF_BATCH, min_batch=NCF_BATCH, max_batch=NCF_BATCH)
    return row


class Shaken(TrueCurve):
    """A true curve as measured with relative noise: the same at a size for as long as it lives."""

    def __init__(self, program: Program, noise: float, seed: int) -> None:
        super().__init__(program)
        self.noise, self.seed, self.jitter = noise, seed, noise

    def throughput(self, gpus: int, nodes: int, batch: int) -> float:
        shake = random.Random(f"{self.seed} {gpus} {batch}").gauss(0, self.noise)
        return super().throughput(gpus, nodes, batch) * (1 + shake)


def needless(quick: bool) -> None:
    """Share of running jobs moved per decision when nothing changes but 1 % noise in every curve."""
    goal = f"goal: {NEEDLESS:.0%} with the restart term"
    print(f"\nneedless moves: 1 % noise, nothing else changes; share of running jobs moved per decision; {goal}")
    programs, count, rounds = list(builtin().values()), 100, 4 if quick else 10
    for policy in ("throughput", *CONCAVE):
        for label, sigma in (("with the restart term", None), ("without", 0.0)):
            held, moved = [0] * count, 0
            batch = [0] * count
            for round_ in range(rounds + 1):
                views = [
                    JobView(
                        str(i), Shaken(programs[i % 3], 0.01, 1000 * round_ + i), size_ladder(1, 64, 8), LADDER,
                        held[i], batch[i], 1, 64, pause_s=0.0, sigma=sigma,
                    )
                    for i in range(count)
                ]  # fmt: skip
                rows = plan_pools([views], [512], (), policy)[0].targets
                changed = sum((r.gpus, r.batch) != (h, b) for r, h, b in zip(rows, held, batch, strict=True))
                moved += changed if round_ else 0
                held, batch = [r.gpus for r in rows], [r.batch for r in rows]
            print(f"  {policy:<14} {label:<22} {100 * moved / count / rounds:.2f} %", flush=True)


def LADDER(gpus: int) -> tuple[int, ...]:
    return tuple(b for b in (64, 128, 256, 512, 1024, 2048) if b % gpus == 0 and b >= 4 * gpus)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller and fewer")
    parser.add_argument("--data", type=Path, help="folder with profiles/ and workloads/")
    parser.add_argument("--first-sizes", action="store_true", help="only what first_size does; needs --data")
    parser.add_argument("--month", action="store_true", help="only a month of sacct")
    parser.add_argument("--price", type=int, default=0, help="only the price of learning, with so many seeds")
    args = parser.parse_args()
    gc.disable()  # as selastic simulate does
    if args.first_sizes and args.data is None:
        parser.error("--first-sizes needs --data")
    if args.month:
        month()
        return 0
    if args.first_sizes:
        first_sizes(args.data)
        return 0
    if args.price:
        if args.data:
            price(args.data, args.price)
        price_of_short_jobs(args.price)
        return 0
    speed(args.quick)
    gc.enable()
    workload(args.data, args.quick)
    endings(args.data, args.quick)
    needless(args.quick)
    print(f"\nbeside Pollux, in the simulator of its artifact: make bench-pollux ARTIFACT=FOLDER; {POLLUX_GOALS}")
    print(
        f"our own simulator beside that one: the same with BENCH_ARGS=--own; goal: {OWN_GOAL:.0%} at most, either way"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
