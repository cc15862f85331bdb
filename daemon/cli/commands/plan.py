"""`selastic plan`: what the last rounds decided for every job, or with --dry-run what a round would decide now.

Promise: a dry run stores nothing and changes nothing. Limit: it is computed by the daemon, from what it sees now.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from slurm_elastic.protocol import routes
from slurm_elastic.protocol.routes import PlanQuery

from ...text import tables
from ...text.tables import Field, Row
from .. import options
from .status import moment, number, text

DEFAULT = "JobID,Name,User,From,To,BatchFrom,BatchTo,Gain,Mechanism,Mode,Reason"


def _gain(row: Row) -> str:
    gain = row.get("gain")
    return "" if gain is None else f"{gain:+.2f}"


FIELDS = (
    Field("JobID", "JOBID", text("job_id"), "job id"),
    Field("Name", "NAME", text("name"), "job name", left=True),
    Field("User", "USER", text("user"), "user name", left=True),
    Field("From", "FROM", text("gpus_from"), "GPUs that it has"),
    Field("To", "TO", text("gpus_to"), "GPUs that it is to have"),
    Field("BatchFrom", "BATCH", text("batch_from"), "global batch that it has"),
    Field("BatchTo", "TO_BATCH", text("batch_to"), "global batch that it is to have"),
    Field("Gain", "GAIN", _gain, "gain of the move against staying, in jobs' worth of progress"),
    Field("Value", "VALUE", number("value"), "value of the target, same unit"),
    Field("Mechanism", "VIA", text("mechanism"), "how it gets there", left=True),
    Field("Mode", "MODE", text("mode"), "off, observe, advise or act", left=True),
    Field("At", "AT", moment("at"), "when it was decided"),
    Field("Reason", "REASON", text("reason"), "why, as a code", left=True),
    Field("Because", "BECAUSE", text("reason_text"), "why, in words", left=True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `selastic plan`."""
    parser.add_argument("--dry-run", action="store_true", help="compute a plan now; nothing is stored or changed")
    parser.add_argument("-j", "--jobs", type=options.job_ids, metavar="ID,...", help="these jobs only")
    parser.add_argument("-a", "--allusers", action="store_true", help="jobs of all users")
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    """Print a row per job of the plan. A job named with -j that is not known ends, after the rows of the others, with
    exit status 1."""
    columns = options.check_format(args, FIELDS, DEFAULT)
    answer = options.ask(routes.PLAN, query=PlanQuery(int(args.dry_run)))
    _, unknown = options.named(args, answer.get("jobs", []))
    everybody = args.allusers or args.jobs or os.geteuid() == 0
    rows = [row for row in answer.get("jobs", []) if everybody or row.get("own", True)]
    rows = [row for row in rows if not args.jobs or row["job_id"] in args.jobs]
    if args.json:
        options.print_json(answer | {"jobs": rows})
    else:
        options.print_table(columns, rows, args)
        if not (args.noheader or args.parsable or args.parsable2):
            for line in _summary(rows):
                print(tables.clean(line))
    options.refuse(unknown)
    return 0


def _summary(rows: Sequence[Row]) -> list[str]:
    waiting = [row for row in rows if not row["gpus_from"]]
    running = [row for row in rows if row not in waiting]
    keys = (("gpus_from", "gpus_to"), ("batch_from", "batch_to"))
    moves = sum(any(row.get(before) != row.get(after) for before, after in keys) for row in running)
    said = f"{moves} of {len(running)} running job{'s' * (len(running) != 1)} to be resized"
    return [said + (f", {len(waiting)} waiting" if waiting else "")]
