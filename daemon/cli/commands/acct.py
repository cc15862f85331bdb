"""`selastic acct`: a row for each size that a job has had, with what it cost and what it brought. It feels like sacct,
and stays after Slurm has forgotten the job.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_elastic.protocol import routes
from slurm_elastic.protocol.routes import AcctQuery

from ...text.tables import Field, Row
from ...text.times import ACCEPTED, check_window, elapsed, parse_time
from .. import options
from .status import moment, number, text

DEFAULT = "JobID,Name,User,State,Start,Elapsed,GPUs,Nodes,Batch,Steps,Samples,Samples/s,GPUHours,Pause,Reason"


def _pause(row: Row) -> str:
    """The first size of a job has no pause, and an unmeasured one is no zero."""
    pause = row.get("pause_s")
    return f"{pause:.2f}" if pause else ""


def _end(row: Row) -> str:
    still = row.get("start") is not None and row.get("end") is None
    return "Unknown" if still else moment("end")(row)


def _hours(row: Row) -> str:
    hours = row.get("gpu_hours")
    return "" if hours is None else f"{hours:.2f}"


FIELDS = (
    Field("JobID", "JobID", text("job_id"), "job id"),
    Field("Name", "JobName", text("name"), "job name", left=True),
    Field("User", "User", text("user"), "user name", left=True),
    Field("UID", "UID", text("uid"), "user id"),
    Field("Account", "Account", text("account"), "account", left=True),
    Field("Partition", "Partition", text("partition"), "partition", left=True),
    Field(
        "State",
        "State",
        text("state"),
        "RESIZED or RESTARTED for what was left behind, else the job's state",
        left=True,
    ),
    Field("Start", "Start", moment("start"), "when this size began to train"),
    Field("End", "End", _end, "when it ended; Unknown: it has this size now"),
    Field("Elapsed", "Elapsed", lambda row: elapsed(row.get("elapsed_s")), "how long, [D-]HH:MM:SS"),
    Field("ElapsedRaw", "ElapsedRaw", number("elapsed_s", 1), "how long, in seconds"),
    Field("GPUs", "GPUs", text("gpus"), "GPUs"),
    Field("Nodes", "NNodes", text("nodes"), "nodes"),
    Field("NodeList", "NodeList", text("node_list"), "names of the nodes", left=True),
    Field("Batch", "Batch", text("batch"), "global batch, in samples"),
    Field("Steps", "Steps", text("steps"), "optimizer steps done at this size"),
    Field("Samples", "Samples", text("samples"), "samples trained on at this size"),
    Field("Samples/s", "Samples/s", number("samples_per_s"), "samples by elapsed time, the pause included"),
    Field("GPUHours", "GPUHours", _hours, "GPUs times elapsed time, in hours"),
    Field("Pause", "Pause", _pause, "what the resize that began this row cost the training, in seconds"),
    Field("Generation", "Gen", text("generation"), "number of the world of workers"),
    Field("Directive", "Directive", text("directive"), "number of the order that began this row; 0: none did"),
    Field("Reason", "Reason", text("reason"), "why it got this size, as a code", left=True),
    Field("Because", "Because", text("reason_text"), "why it got this size, in words", left=True),
)
_SUMMED = ("elapsed_s", "steps", "samples", "gpu_hours", "pause_s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `selastic acct`."""
    options.add_job_filters(parser)
    group = parser.add_argument_group("which time")
    group.add_argument(
        "-S",
        "--starttime",
        metavar="TIME",
        help=f"sizes held after this (default: midnight, with -j: ever, with -s: now); {ACCEPTED}",
    )
    group.add_argument("-E", "--endtime", metavar="TIME", help="sizes held before this (default: now)")
    parser.add_argument(
        "-X", "--allocations", action="store_true", help="one row per job: its last size, and the sums over all shown"
    )
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    """Print a row per size, by job and time. A job named with -j that is not known ends, after the rows of the others,
    with exit status 1."""
    columns = options.check_format(args, FIELDS, DEFAULT)
    now = options.clock()
    start = parse_time(args.starttime or ("now" if args.state and not args.jobs else "midnight"), now)
    if args.jobs and not args.starttime:
        start = 0.0
    end = parse_time(args.endtime, now) if args.endtime else None
    if args.starttime:
        check_window(start, end, now)
    one_user = args.user[0] if args.user and len(args.user) == 1 else None
    query = AcctQuery(start, end, one_user, tuple(args.jobs or ()))
    answer = options.ask(routes.ACCT, query=query, timeout=options.LONG_S)
    _, unknown = options.named(args, answer.get("allocations", []))
    rows = options.matching(answer.get("allocations", []), args)
    if args.allocations:
        rows = per_job(rows)
    if args.json:
        options.print_json({"allocations": rows})
    else:
        options.print_table(columns, rows, args, rule=True)
    options.refuse(unknown)
    return 0


def per_job(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """One row per job: the last of its rows, the start of the first, sums, and the rate over all of it."""
    whole: dict[int, dict[str, Any]] = {}
    for row in rows:
        before = whole.get(row["job_id"])
        total = dict(row)
        if before is not None and row.get("start") is not None:
            total["start"] = before["start"]
            total |= {key: before[key] + row[key] for key in _SUMMED}
            total["samples_per_s"] = total["samples"] / total["elapsed_s"] if total["elapsed_s"] else None
        whole[row["job_id"]] = total
    return list(whole.values())
