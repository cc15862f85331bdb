"""`selastic events JOB`: the timeline of everything done to a job: who, what, and with what. Append-only, kept after
Slurm has forgotten the job. Of job 0 it is the daemon's own timeline, for admins.
"""

import argparse

from slurm_elastic.protocol.answers.history import Events, JobEvent
from slurm_elastic.protocol.answers.record import columns

from .. import options

DEFAULT = "Time,Kind,Who,Detail"
FIELDS = columns(JobEvent, capitals=True)


def _job_or_daemon(text: str) -> int | str:
    return 0 if text == "0" else options.job_id(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", type=_job_or_daemon, metavar="JOB", help="job id; 0: selasticd itself (admins)")
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    chosen = options.check_format(args, FIELDS, DEFAULT)
    found = options.ask(Events, args.job)
    options.print_answer(found, chosen, found.events, args)
    return 0
