"""`selastic simulate`: a trace, a cluster, some policies; a table, JSON or a page of what would have come of it."""

from __future__ import annotations

import argparse
import gc
import json
import math
import re
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from slurm_elastic.protocol.errors import ConfigError
from slurm_elastic.protocol.request import ENDS

if TYPE_CHECKING:
    from ...simulator.engine import Outcome, Watch
    from ...simulator.jobs import SimulationSettings
    from ...simulator.metrics import Summary

DEFAULT_POLICIES = "backfill,fixed-batch,throughput,auto"
"""What Slurm does, the paper's baseline and objective, and what the daemon does by default."""
FAIRNESS = ("job", "user", "account")
EPILOG = """trace formats: our own CSV (job_id,submit_s,program,gpus[,batch,samples,duration_s,min_gpus,max_gpus,
min_batch,max_batch,weight,wait_s,until,speedup,user,account]), and sacct's (-P or --json).
policies: recorded (the trace's own start times, shown where it has them), static (first come, first served), backfill
(the same with backfill, run times known in advance: what Slurm does), and the daemon's (docs/explanation/optimizer.md).

What would have come of last month, were every job elastic, on 16 nodes of 4 GPUs:
  {COMMAND} > jobs.txt
  selastic simulate jobs.txt --cluster 16x4 --assume balanced --html would-have.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from ...planner.settings import FIRST_SIZES
    from ...planner.settings import PlannerSettings as Shipped
    from ...simulator.traces.sacct import COMMAND

    parser.epilog = EPILOG.replace("{COMMAND}", COMMAND)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    shown = "(default %(default)s)"
    add("trace", type=Path, help="file with the jobs; - for standard input")
    add("--cluster", default="16x4", metavar="NODESxGPUS", help=f"nodes and GPUs per node {shown}")
    add("--policy", default=DEFAULT_POLICIES, metavar="A,B", help=f"policies to compare {shown}")
    classes = "compute, balanced, communication"
    add("--assume", default="", metavar="CLASS", help=f"make jobs without a profile elastic, scaling as: {classes}")
    stretched = "such jobs accept 1/X to X times the GPUs that they had, up to X times the batch"
    add("--stretch", type=float, default=4.0, metavar="X", help=f"{stretched} {shown}")
    said = "what ends the training of jobs that do not say: epochs (any batch as good) or quality"
    add("--until", default="quality", choices=ENDS, help=f"{said} {shown}")
    add("--interval", type=float, default=60.0, metavar="S", help=f"shortest time between decisions {shown}")
    add("--pause", type=float, default=30.0, metavar="S", help=f"pause of a resize {shown}")
    add("--grow-wait", type=float, default=0.0, metavar="S", help=f"until added GPUs can be used {shown}")
    add("--cooldown", type=float, metavar="S", help="between resizes of a job (default: as selasticd, by the pause)")
    add("--horizon", type=float, default=Shipped.horizon_s, metavar="S", help=f"over which a move must pay {shown}")
    between = "between whom a plan is fair: every job counts alike, or every user or account of the trace"
    chosen = Shipped.fairness if Shipped.fairness in FAIRNESS else "account"
    add("--fairness", default=chosen, choices=FAIRNESS, help=f"{between} {shown}")
    start = "at which size a job starts that there is no room for as asked"
    add("--first-size", default=Shipped.first_size, choices=tuple(FIRST_SIZES), help=f"{start} {shown}")
    add("--drop", action="store_true", help="drop jobs that cannot start at once, instead of queueing them")
    add("--learned", action="store_true", help="the planner learns curves from 3 %% noisy reports, as the daemon does")
    add("--window", type=float, default=0.0, metavar="S", help="count the jobs completed by then (default: all)")
    add("--seed", type=int, default=0, help=f"of the noise {shown}")
    add("--jobs", action="store_true", help="a line per job and policy as well")
    add("--json", action="store_true", help="everything as JSON")
    add("--html", type=Path, metavar="FILE", help="write a self-contained page with the timelines")


def run(args: argparse.Namespace) -> int:
    """Simulate and print; 0 when every policy ran. Raises ElasticError for what cannot be read."""
    from ...simulator import metrics, programs, replay
    from ...simulator.traces import formats
    from ..side_by_side import Progress, side_by_side

    if args.html:
        from ...simulator.page import page  # now: where jinja2 is missing nobody waits for a simulation first

    name = "standard input" if str(args.trace) == "-" else str(args.trace)
    read = formats.load(_text(args.trace), name)
    jobs = read.jobs
    known = programs.builtin()
    if args.assume and args.assume not in known:
        raise ConfigError(f"--assume {args.assume}: accepted: {', '.join(sorted(known))}")
    settings = _settings(args)
    happened = replay.recorded(jobs, settings)
    policies = _policies(args.policy)

    def simulated(policy: str, watch: Watch) -> tuple[Outcome, Summary, list[str]]:
        outcome, assumed = replay.simulate(jobs, known, policy, settings, args.assume, watch)
        return outcome, metrics.summary(outcome, args.window), assumed

    gc.disable()  # it would traverse all jobs again and again, and a simulation leaves no cycle behind but itself
    try:
        with Progress("simulating", "jobs have ended", sys.stderr) as progress:
            made = side_by_side(policies, simulated, progress.show)
    finally:
        gc.enable()
    outcomes = [*([happened] if happened else []), *(outcome for outcome, _, _ in made)]
    rows = [*([metrics.summary(happened, args.window)] if happened else []), *(row for _, row, _ in made)]
    unfit = replay.misfit(jobs, settings)
    notes = [*([unfit] if unfit else []), *_conditions(outcomes, settings), *read.notes, *made[-1][2]]
    if args.json:
        print(json.dumps(_document(outcomes, rows, notes, settings), indent=1))
    else:
        print(f"{fill(unfit, 118)}\n\n" if unfit else "", end="")
        print(metrics.table(rows, _needless(args, rows)))
        print(metrics.legend(rows))
        print("".join(f"\n{sentence}" for sentence in metrics.gains(rows)))
        print("\nEvery figure, and so every gain, rests on what is assumed of the jobs' speed at other sizes:")
        for note in notes:
            print(fill(note, 118, initial_indent="  ", subsequent_indent="    "))
        if args.jobs:
            _print_jobs(outcomes)
    if args.html:
        try:
            args.html.write_text(page(outcomes, rows, notes, _needless(args, rows), unfit), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--html {args.html} cannot be written ({error.strerror})") from None
    return 0


def _text(path: Path) -> str:
    try:
        content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise ConfigError(f"trace {path} cannot be read ({error.strerror})") from None
    # Names of jobs may be in any encoding; nothing else of a trace is more than ASCII.
    wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    return content.decode("utf-16" if wide else "utf-8-sig", errors="replace")


def _needless(args: argparse.Namespace, rows: list[Summary]) -> set[str]:
    """Columns that say nothing under these options, or of this trace."""
    from ...simulator.metrics import FAIR_COLUMNS, tells_of_fairness

    fair = () if tells_of_fairness(rows) else FAIR_COLUMNS
    return {*fair, *(() if args.drop else ("DROPPED",)), *(() if args.window else ("INWINDOW",))}


def _conditions(outcomes: list[Outcome], settings: SimulationSettings) -> list[str]:
    """What holds for every job."""
    from ...optimizer.policies import DEFAULT_POLICY
    from ...planner.running.eligibility import cooldown_s
    from ...planner.settings import PlannerSettings as Shipped

    nodes = -(-settings.gpus // settings.gpus_per_node)
    if settings.cooldown_s is None:
        shipped = Shipped()
        grow, shrink = (
            cooldown_s(longest_s, settings.pause_s, shipped)
            for longest_s in (shipped.cooldown_grow_s, shipped.cooldown_shrink_s)
        )
        cooldown = f"{grow:g} s before a grow, {shrink:g} s before a shrink"
    else:
        cooldown = f"{settings.cooldown_s:g} s between resizes of a job"
    known = "curves learned from reports (--learned)" if settings.learned else "curves known exactly (no --learned)"
    other = {
        "smallest": ", or at their smallest where that has no room",
        "plan": ", or at what a plan gives them where that has no room",
    }
    smaller = f"{other[settings.first_size]} (--first-size)" if settings.first_size in other else ""
    found = [
        f"cluster: {nodes} nodes of {settings.gpus_per_node} GPUs, one kind, one partition, always up (--cluster)",
        f"jobs start in the order in which they came, at the size that they were submitted with{smaller}; an elastic "
        "job never gives up GPUs of the node that its batch script runs on",
        "elastic policies: selasticd's own planner with its shipped settings, a decision at most every "
        f"{settings.interval_s:g} s (--interval), {settings.pause_s:g} s of pause at every change of size (--pause), "
        f"{cooldown} (--cooldown), {known}",
        "cores, memory, priorities, fair-share, time limits, reservations and nodes that failed are left out",
        *_owners(outcomes, settings.fairness),
        *_resembles(outcomes, settings.gpus),
    ]
    if not any(job.elastic for outcome in outcomes for job in outcome.jobs):
        found.insert(0, "NO JOB IS ELASTIC under these assumptions: policies differ in the queue's order alone")
    fallen = [outcome for outcome in outcomes if outcome.fell_back]
    found[:0] = [f"{one.policy} {one.fell_back}: {DEFAULT_POLICY} planned in its place" for one in fallen]
    return found


_LOADS = ((1.3, "half"), (2.9, "full"), (3.8, "more"), (math.inf, "double"))
"""Up to what GPU time of all that there was while jobs came; the names are those of benchmarks/bench_policy.py."""


def _resembles(outcomes: list[Outcome], gpus: int) -> list[str]:
    """The cell of the benchmark beside Pollux that this trace is most like, if the jobs say how long they ran."""
    rows = [job.trace for job in outcomes[0].jobs if job.trace.duration_s] if outcomes else []
    came = [row.submit_s for row in rows]
    if not rows or max(came) == min(came):
        return []
    load = math.fsum(row.gpus * row.duration_s for row in rows) / gpus / (max(came) - min(came))
    asked = statistics.median(row.gpus for row in rows)
    cell = f"{next(name for most, name in _LOADS if load <= most)}-{'one' if asked <= 1 else 'tuned'}"
    return [
        f"beside Pollux (benchmarks/RESULTS.md) this trace is most like the cell {cell}: the jobs ran for {load:.2f} "
        f"times the GPU time that the cluster had while they came, the middle one asked for {asked:g} GPUs"
    ]


def _owners(outcomes: list[Outcome], fairness: str) -> list[str]:
    """Between whom it was fair."""
    jobs = outcomes[0].jobs if outcomes else []
    users, accounts = {job.trace.user for job in jobs}, {job.trace.account for job in jobs}
    if max(len(users), len(accounts)) < 2:
        return []
    whose = (
        f"{len(users)} users in {len(accounts)} accounts"
        if min(len(users), len(accounts)) > 1
        else (f"{len(users)} users" if len(users) > 1 else f"{len(accounts)} accounts")
    )
    return [f"elastic policies are fair between {fairness}s (--fairness); the jobs are those of {whose}"]


def _settings(args: argparse.Namespace) -> SimulationSettings:
    from ...simulator.jobs import SimulationSettings

    shape = re.fullmatch(r"(\d+)x(\d+)", args.cluster)
    if not shape or not int(shape[1]) * int(shape[2]):
        raise ConfigError(f"--cluster {args.cluster}: expected NODESxGPUS, for instance 16x4")
    if not 1 <= args.stretch <= 1024:
        raise ConfigError(f"--stretch {args.stretch:g}: expected a number from 1 to 1024")
    for option in ("interval", "pause", "grow_wait", "cooldown", "window"):
        if not 0 <= (getattr(args, option) or 0.0) < float("inf"):
            raise ConfigError(f"--{option.replace('_', '-')} {getattr(args, option)}: expected 0 or more seconds")
    if not 0 < args.horizon < float("inf"):
        raise ConfigError(f"--horizon {args.horizon}: expected more than 0 seconds")
    nodes, per_node = int(shape[1]), int(shape[2])
    return SimulationSettings(
        gpus=nodes * per_node,
        gpus_per_node=per_node,
        **{f"{name}_s": getattr(args, name) for name in ("interval", "pause", "grow_wait", "cooldown", "horizon")},
        **{
            name: getattr(args, name)
            for name in ("fairness", "first_size", "drop", "learned", "seed", "stretch", "until")
        },
    )


def _policies(text: str) -> list[str]:
    from ...planner.settings import PlannerSettings as Shipped
    from ...policies import installed
    from ...simulator.metrics import BACKFILL

    wanted = [word.strip() for word in text.split(",") if word.strip()]
    for word in wanted:
        if word == BACKFILL:
            continue
        if not installed.known(word):
            raise ConfigError(f"--policy {word}: accepted: {', '.join((*installed.names(), BACKFILL))}")
        installed.use(word, Shipped.policy_limit_s)
    if not wanted:
        raise ConfigError("--policy: expected at least one policy")
    return wanted


def _document(
    outcomes: list[Outcome], rows: list[Summary], notes: list[str], settings: SimulationSettings
) -> dict[str, Any]:
    from ...simulator.metrics import per_job

    policies = []
    for outcome, row in zip(outcomes, rows, strict=True):
        figures = {key: None if value != value else value for key, value in asdict(row).items()}
        policies.append({**figures, "per_job": [asdict(job) for job in per_job(outcome)]})
    return {"settings": asdict(settings), "assumed": notes, "policies": policies}


def _print_jobs(outcomes: list[Outcome]) -> None:
    """A line per job and policy, by job: how each policy treated it is shown in lines below each other."""
    from slurm_elastic.protocol.answers.record import columns
    from slurm_elastic.protocol.text.tables import lines

    from ...simulator.metrics import JobOutcome, per_job

    jobs = [job for outcome in outcomes for job in per_job(outcome)]
    order = {job.job_id: index for index, job in reversed(list(enumerate(jobs)))}
    print()
    print("\n".join(lines(columns(JobOutcome), sorted(jobs, key=lambda job: order[job.job_id]), rule=True)))
