"""`selastic status`: what every job has now, where it is to go, and why. It feels like squeue and costs slurmctld
nothing: the daemon is asked, never Slurm.
"""

import argparse
import contextlib
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace

from slurm_elastic.protocol.answers.record import columns
from slurm_elastic.protocol.answers.status import JobStatus, StatusTable
from slurm_elastic.protocol.errors import ConfigError, ElasticError
from slurm_elastic.protocol.text import tables
from slurm_elastic.protocol.text.times import duration_s, parse_time

from .. import options

DEFAULT = "JobID,Partition,Name,User,ST,Time,Nodes,GPUs,Target,Min-Max,Batch,Samples/s,Speedup,Reason"
STALLED = "JobID,Name,User,GPUs,Stalled,Step,Resize,NodeList"
"""With --stalled."""
LONG = "JobID,Partition,Name,User,State,Time,Left,GPUs,Held,Target,Min-Max,Batch,Samples/s,Speedup,NodeList,Because"
"""With --long."""
STARTS = "JobID,Partition,Name,User,ST,Start,Min-Max,Reason"
"""With --start."""
SPARE = ("NodeList", "Held", "Speedup", "Nodes", "Partition", "Batch", "Min-Max", "User")
"""Left out first, in this order, where a terminal is too narrow."""
FIELDS = columns(JobStatus, capitals=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_job_filters(parser)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--stalled", action="store_true", help="only jobs whose training does no step")
    kind.add_argument("--no-step", action="store_true", help="only jobs that hold GPUs and do no step, or never did")
    kind.add_argument("--start", action="store_true", help="only waiting jobs, by when Slurm expects to start them")
    kind.add_argument("-l", "--long", action="store_true", help="more columns, the reason in words")
    by = "by these columns, - in front: the largest first (default: JobID; with --start: Start)"
    parser.add_argument("-S", "--sort", metavar="[-]FIELD,...", help=by)
    again = "print it again and again, with the time above it"
    parser.add_argument("-i", "--iterate", type=options.interval, metavar="SECONDS", help=again)
    options.add_output_options(parser, FIELDS, DEFAULT)


def add_top_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of status: `selastic top` is `selastic status -i 2`."""
    add_arguments(parser)
    parser.set_defaults(iterate=2.0)


def run(args: argparse.Namespace) -> int:
    """Print a row per job that is pending or running, and for one named with -j that has ended. A job named that is not
    known ends, after the rows of the others, with exit status 1."""
    shown = STALLED if args.stalled or args.no_step else STARTS if args.start else LONG if args.long else DEFAULT
    chosen, by = options.check_format(args, FIELDS, shown), args.sort or ("Start,JobID" if args.start else "JobID")
    order = [(word[0] == "-", _field(word.lstrip("+-"))) for word in options.words(by)]
    if args.iterate is None:
        _print(args, chosen, order)
        return 0
    return options.again(args.iterate, lambda: _print(args, chosen, order))


_Order = Sequence[tuple[bool, tables.Field]]
"""Columns to sort by, and whether the largest comes first."""


def _print(args: argparse.Namespace, chosen: Sequence[tables.Field], order: _Order) -> None:
    rows, unknown = current(args)
    if args.stalled:
        rows = [row for row in rows if row.stalled_since is not None]
    if args.no_step:
        running = [row for row in rows if row.managed and row.state == "RUNNING"]
        rows = [row for row in running if row.stalled_since is not None or not row.step]
    if args.start:
        expected = _expected_starts()
        rows = [replace(row, start_time=expected.get(row.job_id)) for row in rows if row.state == "PENDING"]
    for backwards, field in reversed(order):
        known = [row for row in rows if field.text(row)]
        known.sort(key=lambda row, field=field: _natural(field.text(row)), reverse=backwards)  # type: ignore[misc]
        rows = known + [row for row in rows if not field.text(row)]
    options.print_answer(StatusTable(jobs=tuple(rows)), chosen, rows, args, spare=SPARE)
    options.refuse(unknown)


def _field(name: str) -> tables.Field:
    try:
        (field,) = tables.choose(FIELDS, DEFAULT, name)
    except (ConfigError, ValueError):
        raise ConfigError(f"--sort {name!r} is no column; selastic status --helpformat lists them") from None
    return field


def _natural(text: str) -> tuple[float, str]:
    """Numbers and durations by their size, before words."""
    number = re.match(r"\(?(-?\d+(?:\.\d+)?)(?![\d:-])", text)
    with contextlib.suppress(ValueError):
        return float(duration_s(text)), ""
    return (float(number[1]) if number else float("inf")), text


def _expected_starts() -> dict[int, float]:
    """By job, when Slurm expects to start it; without those of which it does not say. Slurm is asked, by the user."""
    try:
        done = subprocess.run(
            ["squeue", "--start", "-h", "-a", "-o", "%A|%S"], capture_output=True, text=True, check=True,
            timeout=options.LONG_S, env={**os.environ, "SLURM_TIME_FORMAT": "standard"},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise ElasticError(f"squeue --start does not say when jobs start ({error})") from None
    lines = (line.partition("|") for line in done.stdout.splitlines())
    return {int(job): parse_time(at, options.clock()) for job, _, at in lines if at[:1].isdigit()}


def current(args: argparse.Namespace) -> tuple[list[JobStatus], list[int]]:
    """The rows that the filters keep, with those of ended jobs that -j names, and the ids that are not known."""
    rows = options.ask(StatusTable).jobs
    ended, unknown = options.named(args, rows)
    return options.matching(sorted([*rows, *ended], key=lambda row: row.job_id), args), unknown
