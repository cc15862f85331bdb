"""`selastic events JOB`: the timeline of everything done to a job: who, what, and with what. Append-only, kept after
Slurm has forgotten the job. Of job 0 it is the daemon's own timeline, for admins.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from slurm_elastic.protocol import routes

from ...text.tables import Field, Row
from .. import options
from .status import moment, text

DEFAULT = "Time,Kind,Who,Detail"


def words(value: Any) -> str:
    """An event's detail in one line: key=value, objects inside it as compact JSON."""
    if not isinstance(value, dict):
        return "" if value is None else str(value)
    parts = []
    for key, item in value.items():
        if item is None or item == "":
            continue
        item = round(item, 3) if isinstance(item, float) else item
        shown = item if isinstance(item, str) else json.dumps(item, separators=(",", ":"), ensure_ascii=False)
        parts.append(f"{key}={shown}")
    return " ".join(parts)


def _detail(row: Row) -> str:
    return words(row.get("detail"))


FIELDS = (
    Field("ID", "ID", text("id"), "number of the event"),
    Field("JobID", "JOBID", text("job_id"), "job id"),
    Field("Time", "TIME", moment("at"), "when it happened"),
    Field("Kind", "EVENT", text("kind"), "what was done", left=True),
    Field("Who", "WHO", text("who"), "uid:NUMBER, supervisor or selasticd", left=True),
    Field("Detail", "DETAIL", _detail, "with what", left=True),
)


def _job_or_daemon(text: str) -> int:
    return 0 if text == "0" else options.job_id(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `selastic events`."""
    parser.add_argument("job", type=_job_or_daemon, metavar="JOB", help="job id; 0: selasticd itself (admins)")
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    """Print the events, oldest first."""
    columns = options.check_format(args, FIELDS, DEFAULT)
    rows = options.ask(routes.EVENTS, args.job).get("events", [])
    if args.json:
        options.print_json({"events": rows})
    else:
        options.print_table(columns, rows, args)
    return 0
