"""`selastic acct`: a row for each size that a job has had, with what it cost and what it brought. It feels like sacct,
and stays after Slurm has forgotten the job.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from slurm_elastic.protocol.answers.history import Accounting, Allocation
from slurm_elastic.protocol.answers.record import columns
from slurm_elastic.protocol.api.routes import AcctQuery

from .. import options

DEFAULT = "JobID,Name,User,State,Start,Elapsed,GPUs,Nodes,Batch,Steps,Samples,Samples/s,GPUHours,Pause,Reason"
SPARE = ("Samples", "Steps", "Nodes", "Pause", "Name", "Batch", "State", "User")
"""Left out first, in this order, where a terminal is too narrow."""
FIELDS = columns(Allocation)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "selastic report: what the GPU-hours went into, and how much sooner jobs were done."
    options.add_job_filters(parser)
    group = parser.add_argument_group("which time")
    after = "sizes held after this (default: midnight, with -j: ever, with -s: now)"
    options.add_window_options(group, after, "sizes held before this (default: now)")
    parser.add_argument(
        "-X", "--allocations", action="store_true", help="one row per job: its last size, and the sums over all shown"
    )
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    """Print a row per size, by job and time. A job named with -j that is not known ends, after the rows of the others,
    with exit status 1."""
    chosen = options.check_format(args, FIELDS, DEFAULT)
    now = options.clock()
    start, end = options.window(args, now, "now" if args.state else "midnight")
    one_user = args.user[0] if args.user and len(args.user) == 1 else None
    query = AcctQuery(start, end, one_user, tuple(args.jobs or ()))
    found = options.ask(Accounting, query=query, timeout=options.LONG_S).allocations
    _, unknown = options.named(args, found)
    rows = options.matching(found, args)
    if args.allocations:
        rows = per_job(rows)
    options.print_answer(Accounting(allocations=tuple(rows)), chosen, rows, args, rule=True, spare=SPARE)
    options.refuse(unknown)
    return 0


def per_job(rows: Sequence[Allocation]) -> list[Allocation]:
    """One row per job: the last of its rows, the start of the first, sums, and the rate over all of it."""
    whole: dict[int, Allocation] = {}
    for row in rows:
        before = whole.get(row.job_id)
        whole[row.job_id] = row if before is None or row.start is None else _added(before, row)
    return list(whole.values())


def _added(before: Allocation, row: Allocation) -> Allocation:
    elapsed_s, samples = (before.elapsed_s or 0.0) + (row.elapsed_s or 0.0), (before.samples or 0) + (row.samples or 0)
    return replace(
        row,
        start=before.start,
        elapsed_s=elapsed_s,
        steps=(before.steps or 0) + (row.steps or 0),
        samples=samples,
        samples_per_s=samples / elapsed_s if elapsed_s else None,
        gpu_hours=(before.gpu_hours or 0.0) + (row.gpu_hours or 0.0),
        pause_s=(before.pause_s or 0.0) + (row.pause_s or 0.0),
    )
