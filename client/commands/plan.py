"""`selastic plan`: what the last rounds decided for every job, or with --dry-run what a round would decide now.

Promise: a dry run stores nothing and changes nothing. Limit: it is computed by the daemon, from what it sees now.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace

from slurm_elastic.protocol.answers.history import PlanRow, PlanTable
from slurm_elastic.protocol.answers.record import columns
from slurm_elastic.protocol.api.routes import PlanQuery

from .. import options

DEFAULT = "JobID,Name,User,From,To,BatchFrom,BatchTo,Gain,Mechanism,Mode,Reason"
FIELDS = columns(PlanRow, capitals=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="compute a plan now; nothing is stored or changed")
    parser.add_argument("-j", "--jobs", type=options.job_ids, metavar="ID,...", help="these jobs only")
    parser.add_argument("-a", "--allusers", action="store_true", help="jobs of all users")
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    """Print a row per job of the plan. A job named with -j that is not known ends, after the rows of the others, with
    exit status 1."""
    chosen = options.check_format(args, FIELDS, DEFAULT)
    plan = options.ask(PlanTable, query=PlanQuery(int(args.dry_run)))
    _, unknown = options.named(args, plan.jobs)
    everybody = args.allusers or args.jobs or os.geteuid() == 0
    rows = [row for row in plan.jobs if everybody or row.own]
    rows = [row for row in rows if not args.jobs or row.job_id in args.jobs]
    notes = [f"{note.service}, {note.about}: {note.text}" for note in plan.notes]
    options.print_answer(replace(plan, jobs=tuple(rows)), chosen, rows, args, below=[_summary(rows), *notes])
    options.refuse(unknown)
    return 0


def _summary(rows: Sequence[PlanRow]) -> str:
    running = [row for row in rows if row.gpus_from]
    moves = sum((row.gpus_from, row.batch_from) != (row.gpus_to, row.batch_to) for row in running)
    said = f"{moves} of {len(running)} running job{'s' * (len(running) != 1)} to be resized"
    waiting = len(rows) - len(running)
    return said + (f", {waiting} waiting" if waiting else "")
