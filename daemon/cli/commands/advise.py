"""`selastic advise`: what selasticd would have done while it only advised, and what that would have brought: a row
for each job, with --moves for each move, and the cluster's sums. What an admin reads before setting mode = "act".

Promise: it compares what was advised with what the job had, from stored decisions, pauses charged. Limit: it is no
simulation; a cluster that had followed the first advice would have been given other advice after it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from slurm_elastic.protocol import routes
from slurm_elastic.protocol.routes import WindowQuery

from ...text import tables
from ...text.tables import Field, Row
from ...text.times import ACCEPTED, check_window, elapsed, format_time, parse_time, span
from .. import options
from .status import moment, number, text

DEFAULT = "JobID,Name,User,Time,Moves,GPUs,WouldGPUs,GPUHours,WouldGPUHours,Change"
MOVES = "JobID,Name,User,At,Time,GPUs,WouldGPUs,Batch,WouldBatch,Change,Reason"


def _change(row: Row) -> str:
    change = row.get("change")
    return "" if change is None else f"{100 * change:+.0f}%"


def _doubt(row: Row) -> str:
    return f"{100 * row['doubt']:.0f}%" if row.get("doubt") else ""


def _mean(key: str) -> tables.Cell:
    """Whole numbers as they are, means with a digit."""

    def cell(row: Row) -> str:
        value = row.get(key)
        return "" if value is None else f"{value:.1f}".removesuffix(".0")

    return cell


FIELDS = (
    Field("JobID", "JOBID", text("job_id"), "job id"),
    Field("Name", "NAME", text("name"), "job name", left=True),
    Field("User", "USER", text("user"), "user name", left=True),
    Field("Account", "ACCOUNT", text("account"), "account", left=True),
    Field("Partition", "PARTITION", text("partition"), "partition", left=True),
    Field("State", "STATE", text("state"), "the job's state", left=True),
    Field("At", "AT", moment("at"), "when the move was first advised (--moves)"),
    Field("Time", "TIME", lambda row: elapsed(row.get("seconds")), "how long the job was seen, or the advice stood"),
    Field("Moves", "MOVES", text("moves"), "resizes that the daemon would have begun"),
    Field("GPUs", "GPUS", _mean("gpus"), "GPUs that it had; the mean over the time"),
    Field("WouldGPUs", "WOULD", _mean("advised_gpus"), "GPUs that it was advised to have; the mean over the time"),
    Field("Batch", "BATCH", text("batch"), "global batch that it had (--moves)"),
    Field("WouldBatch", "WOULD_BATCH", text("advised_batch"), "global batch that it was advised to have (--moves)"),
    Field("GPUHours", "GPUHOURS", number("gpu_hours"), "GPU-hours that it had"),
    Field("WouldGPUHours", "WOULD_GPUHOURS", number("advised_gpu_hours"), "GPU-hours that it would have had"),
    Field("Change", "CHANGE", _change, "progress it would have made, against what it made; pauses charged"),
    Field("ProgressH", "PROGRESS_H", number("progress_h"), "the same difference in hours at its smallest size"),
    Field("Pause", "PAUSE", number("pause_s", 2), "pauses charged, in seconds"),
    Field("Unknown", "UNKNOWN", lambda row: elapsed(row.get("unknown_s")), "time under advice of unknown effect"),
    Field("Doubt", "DOUBT", _doubt, "uncertainty of the advised sizes' predicted speed; empty where all were measured"),
    Field("Gain", "GAIN", number("gain"), "gain of the move for all jobs, in jobs' worth of progress (--moves)"),
    Field("Mechanism", "VIA", text("mechanism"), "how it would have got there (--moves)", left=True),
    Field("Mode", "MODE", text("mode"), "the daemon's mode then (--moves)", left=True),
    Field("Reason", "REASON", text("reason"), "why, as a code (--moves)", left=True),
    Field("Because", "BECAUSE", text("reason_text"), "why, in words (--moves)", left=True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `selastic advise`."""
    options.add_job_filters(parser)
    parser.add_argument("-S", "--starttime", metavar="TIME", default="now-1day",
                        help=f"from when (default: a day ago; decisions are kept for 30 days); {ACCEPTED}")  # fmt: skip
    parser.add_argument("-E", "--endtime", metavar="TIME", help="until when (default: now)")
    parser.add_argument(
        "--moves", action="store_true", help=f"a row for each move; its columns: {MOVES.replace(',', ', ')}"
    )
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    """Print the rows, then what waiting jobs would have got and the sums over the cluster. A job named with -j that is
    not known ends, after the rows of the others, with exit status 1."""
    columns = options.check_format(args, FIELDS, MOVES if args.moves else DEFAULT)
    now = options.clock()
    start, end = parse_time(args.starttime, now), parse_time(args.endtime, now) if args.endtime else None
    check_window(start, end, now)
    query = WindowQuery(max(0.0, start), end, tuple(args.jobs or ()))
    answer = options.ask(routes.ADVICE, query=query, timeout=options.LONG_S)
    _, unknown = options.named(args, answer["jobs"])
    rows = options.matching(answer["moves" if args.moves else "jobs"], args)
    if args.json:
        options.print_json(answer | {"moves" if args.moves else "jobs": rows})
    else:
        options.print_table(columns, rows, args)
        if not (args.noheader or args.parsable or args.parsable2):
            for line in summary(answer, now):
                print(tables.clean(line))
    options.refuse(unknown)
    return 0


def summary(answer: Mapping[str, Any], now: float) -> list[str]:
    """The sums in sentences."""
    total = answer["cluster"]
    since = f"from {format_time(answer['start'], now)} to {format_time(answer['end'], now)}"
    if not total["jobs"]:
        return [f"no elastic job ran {since}"]
    if not total["moves"]:
        said = f"{_count(total['jobs'], 'job')} {since}: nothing would have been resized"
        return [said + (_acted(answer) if answer["acted"] else "")]
    more = total["advised_gpu_hours"] - total["gpu_hours"]
    lines = [
        f"{_count(total['jobs'], 'job')} {since}: {_count(total['moves'], 'resize')} advised, "
        f"{abs(more):.2f} GPU-hours {'more' if more >= 0 else 'fewer'} than the {total['gpu_hours']:.2f} they had, "
        f"{total['pause_s']:.1f} s of pauses",
        _progress(total),
    ]
    for entry in answer["waited"]:
        room = f" its {entry['gpus']} GPUs" if entry["gpus"] else " room"
        lines.append(
            f"job {entry['job_id']} would have had{room} at {format_time(entry['at'], now)}; "
            f"it was let wait {span(entry['waited_s'])} longer"
        )
    return lines + ([_acted(answer).lstrip("; ")] if answer["acted"] else [])


def _progress(total: Mapping[str, Any]) -> str:
    unknown = total["unknown_s"]
    rest = f" ({span(unknown)} of advice in which a job's speed was not known left out)" if unknown else ""
    if total["change"] is None:
        return f"what that would have brought is not known: no job had been measured{rest}"
    said = f"progress of all jobs together: {100 * total['change']:+.0f}% of what they made{rest}"
    if total["modelled_s"]:
        said += f"; {span(total['modelled_s'])} of it at sizes never measured, as the model predicts them"
        said += f", give or take {100 * total['doubt']:.0f}%" if total["doubt"] else ""
    return said


def _acted(answer: Mapping[str, Any]) -> str:
    return f"; {_count(answer['acted'], 'decision')} of this time were acted on (mode act): see selastic acct"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
