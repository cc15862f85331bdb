"""`selastic simulate`: a trace, a cluster, some policies; a table, JSON or a page of what would have come of it."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_elastic.trainer_shim.errors import ConfigError
from slurm_elastic.trainer_shim.request import ENDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..tables import Field, Row
    from .engine import Outcome
    from .jobs import Settings
    from .metrics import Summary
    from .programs import Program

DEFAULT_POLICIES = "static,fixed-batch,throughput,auto"
"""What Slurm does, the paper's baseline and objective, and what the daemon does by default."""
COMPARISONS = ("feedback", "evolution")
"""What others do: fixed sizes with multilevel feedback (Tiresias), an online evolutionary search (ONES)."""
EPILOG = """trace formats: our own CSV (job_id,submit_s,program,gpus[,batch,samples,duration_s,min_gpus,max_gpus,
min_batch,max_batch,weight,until]), `sacct -X --parsable2 -o JobID,JobName,Submit,ElapsedRaw,AllocTRES,Comment`, and the
workloads of adaptdl, ElasticFlow and Tiresias. Of sacct's lines, steps and jobs that had no GPU or never ran are left
out.

  selastic simulate jobs.txt --cluster 16x4 --assume balanced --policy static,auto --html would-have.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `selastic simulate`."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    shown = "(default %(default)s)"
    add("trace", type=Path, help="file with the jobs; - for standard input")
    add("--cluster", default="16x4", metavar="NODESxGPUS", help=f"nodes and GPUs per node {shown}")
    add("--policy", default=DEFAULT_POLICIES, metavar="A,B", help=f"policies to compare {shown}")
    add("--profiles", type=Path, metavar="DIR", help="measured programs, one folder each")
    classes = "compute, balanced, communication"
    add("--assume", default="", metavar="CLASS", help=f"program of jobs without a profile: {classes}")
    said = "what ends the training of jobs that do not say: epochs (any batch as good) or quality"
    add("--until", default="quality", choices=ENDS, help=f"{said} {shown}")
    add("--interval", type=float, default=60.0, metavar="S", help=f"shortest time between decisions {shown}")
    add("--pause", type=float, default=30.0, metavar="S", help=f"pause of a resize {shown}")
    add("--grow-wait", type=float, default=0.0, metavar="S", help=f"until added GPUs can be used {shown}")
    add("--cooldown", type=float, default=0.0, metavar="S", help=f"between resizes of a job {shown}")
    add("--horizon", type=float, default=600.0, metavar="S", help=f"over which a move must pay {shown}")
    add("--drop", action="store_true", help="drop jobs that cannot start at once, instead of queueing them")
    add("--learned", action="store_true", help="the planner learns curves from 3 %% noisy reports, as the daemon does")
    add("--window", type=float, default=0.0, metavar="S", help="count the jobs completed by then (default: all)")
    add("--seed", type=int, default=0, help=f"of the noise and of the evolutionary search {shown}")
    add("--jobs", action="store_true", help="a line per job and policy as well")
    add("--json", action="store_true", help="everything as JSON")
    add("--html", type=Path, metavar="FILE", help="write a self-contained page with the timelines")


def run(args: argparse.Namespace) -> int:
    """Simulate and print; 0 when every policy ran. Raises ElasticError for what cannot be read."""
    from . import metrics, programs, replay, trace

    name = "standard input" if str(args.trace) == "-" else str(args.trace)
    jobs = trace.read(_text(args.trace), name)
    known = programs.builtin()
    if args.profiles:
        known.update(load_profiles(args.profiles))
    if args.assume and args.assume not in known:
        raise ConfigError(f"--assume {args.assume}: accepted: {', '.join(sorted(known))}")
    settings = _settings(args)
    outcomes: list[Outcome] = []
    notes: list[str] = []
    for policy in _policies(args.policy):
        outcome, notes = replay.simulate(jobs, known, policy, settings, args.assume)
        outcomes.append(outcome)
    rows = [metrics.summary(outcome, args.window) for outcome in outcomes]
    if args.json:
        print(json.dumps(_document(outcomes, rows, notes, settings), indent=1))
    else:
        print(metrics.table(rows))
        print("\nEvery figure, and so every gain, rests on what is assumed of the jobs' speed at other sizes:")
        print("\n".join(f"  {note}" for note in notes))
        if args.jobs:
            _print_jobs(outcomes)
    if args.html:
        from .page import page

        args.html.write_text(page(outcomes, rows, notes), encoding="utf-8")
    return 0


def _text(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"trace {path} cannot be read ({reason})") from None


def _settings(args: argparse.Namespace) -> Settings:
    from .jobs import Settings

    shape = re.fullmatch(r"(\d+)x(\d+)", args.cluster)
    if not shape or not int(shape[1]) * int(shape[2]):
        raise ConfigError(f"--cluster {args.cluster}: expected NODESxGPUS, for instance 16x4")
    for option in ("interval", "pause", "grow_wait", "cooldown", "window"):
        if not 0 <= getattr(args, option) < float("inf"):
            raise ConfigError(f"--{option.replace('_', '-')} {getattr(args, option)}: expected 0 or more seconds")
    if not 0 < args.horizon < float("inf"):
        raise ConfigError(f"--horizon {args.horizon}: expected more than 0 seconds")
    nodes, per_node = int(shape[1]), int(shape[2])
    return Settings(
        gpus=nodes * per_node,
        gpus_per_node=per_node,
        interval_s=args.interval,
        pause_s=args.pause,
        grow_wait_s=args.grow_wait,
        cooldown_s=args.cooldown,
        horizon_s=args.horizon,
        drop=args.drop,
        learned=args.learned,
        seed=args.seed,
        until=args.until,
    )


def _policies(text: str) -> list[str]:
    from ..optimizer.policies import POLICIES

    wanted = [word.strip() for word in text.split(",") if word.strip()]
    for word in wanted:
        if word not in (*POLICIES, *COMPARISONS):
            raise ConfigError(f"--policy {word}: accepted: {', '.join((*POLICIES, *COMPARISONS))}")
    if not wanted:
        raise ConfigError("--policy: expected at least one policy")
    return wanted


def load_profiles(folder: Path) -> dict[str, Program]:
    """Programs below a folder, one sub-folder each."""
    from .measured import program

    found = {}
    for inner in sorted(p for p in folder.glob("*") if (p / "placements.csv").exists()):
        found[inner.name] = program(inner.name, {f.name: _text(f) for f in sorted(inner.glob("*.csv"))})
    if not found:
        raise ConfigError(f"--profiles {folder}: no sub-folder with a placements.csv in it")
    return found


def _document(outcomes: list[Outcome], rows: list[Summary], notes: list[str], settings: Settings) -> dict[str, Any]:
    from .metrics import per_job

    policies = []
    for outcome, row in zip(outcomes, rows, strict=True):
        figures = {key: None if value != value else value for key, value in asdict(row).items()}
        policies.append({**figures, "per_job": per_job(outcome)})
    return {"settings": asdict(settings), "assumed": notes, "policies": policies}


def _print_jobs(outcomes: list[Outcome]) -> None:
    """A line per job and policy, by job: how each policy treated it stands one below the other."""
    from ..tables import lines
    from .metrics import per_job

    told = [{"policy": outcome.policy, **record} for outcome in outcomes for record in per_job(outcome)]
    order = {str(record["job_id"]): index for index, record in reversed(list(enumerate(told)))}
    print()
    print("\n".join(lines(_columns(), sorted(told, key=lambda row: order[str(row["job_id"])]), rule=True)))


def _columns() -> list[Field]:
    from ..tables import Field, number

    def seconds(name: str) -> Callable[[Row], str]:
        return lambda row: "" if row[name] is None else f"{row[name]:.0f}"

    return [
        Field("JobID", "JobID", lambda row: str(row["job_id"]), "of the trace"),
        Field("Program", "Program", lambda row: str(row["program"]), "whose speed is assumed", left=True),
        Field("Policy", "Policy", lambda row: str(row["policy"]), "", left=True),
        Field("Submit", "Submit s", seconds("submit_s"), "since the first submission"),
        Field("Start", "Start s", seconds("start_s"), "since the first submission"),
        Field("End", "End s", seconds("end_s"), "since the first submission"),
        Field("Completion", "Completion s", seconds("completion_s"), "from submission to end"),
        Field("Restarts", "Restarts", lambda row: str(row["restarts"]), "resizes and restarts"),
        Field("GPUHours", "GPUHours", lambda row: number(row["gpu_seconds"] / 3600), "held"),
    ]
