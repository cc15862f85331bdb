"""`selastic status`: what every job has now, where it is to go, and why. It feels like squeue and costs slurmctld
nothing: the daemon is asked, never Slurm.
"""

from __future__ import annotations

import argparse

from slurm_elastic.protocol.answers.record import columns
from slurm_elastic.protocol.answers.status import JobStatus, StatusTable

from .. import options

DEFAULT = "JobID,Partition,Name,User,ST,Time,Nodes,GPUs,Target,Min-Max,Batch,Samples/s,Speedup,Reason"
STALLED = "JobID,Name,User,GPUs,Stalled,Step,Resize,NodeList"
"""With --stalled."""
SPARE = ("Speedup", "Nodes", "Partition", "Batch", "Min-Max", "User")
"""Left out first, in this order, where a terminal is too narrow."""
FIELDS = columns(JobStatus, capitals=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `selastic status`."""
    options.add_job_filters(parser)
    parser.add_argument("--stalled", action="store_true", help="only jobs whose training does no step")
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    """Print a row per job that is pending or running, and for one named with -j that has ended. A job named that is not
    known ends, after the rows of the others, with exit status 1."""
    chosen = options.check_format(args, FIELDS, STALLED if args.stalled else DEFAULT)
    rows, unknown = current(args)
    if args.stalled:
        rows = [row for row in rows if row.stalled_since is not None]
    options.print_answer(StatusTable(jobs=tuple(rows)), chosen, rows, args, spare=SPARE)
    options.refuse(unknown)
    return 0


def current(args: argparse.Namespace) -> tuple[list[JobStatus], list[int]]:
    """The rows that the filters keep, with those of ended jobs that -j names, and the ids that are not known."""
    rows = options.ask(StatusTable).jobs
    ended, unknown = options.named(args, rows)
    return options.matching(sorted([*rows, *ended], key=lambda row: row.job_id), args), unknown
