"""`selastic pin JOB [GPUS]` and `selastic unpin JOB`: hold a job at a size, and let it go again.

Promise: the daemon refuses what the job does not accept. Limit: a pin is a wish of its owner or of an admin; a job that
Slurm itself preempts or ends is gone all the same.
"""

import argparse

from slurm_elastic.protocol.answers.by_route import Pinned
from slurm_elastic.protocol.answers.status import JobStatus
from slurm_elastic.protocol.errors import ElasticError
from slurm_elastic.protocol.messages import Pin

from .. import options


def _gpus(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of GPUs; accepted: a whole number from 1")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_unpin_arguments(parser)
    parser.add_argument(
        "gpus", type=_gpus, nargs="?", metavar="GPUS", help="size to hold (default: the one it has now)"
    )


def add_unpin_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", type=options.job_id, metavar="JOB", help="job id")
    parser.add_argument("--json", action="store_true", help="print the daemon's answer as JSON")


def run(args: argparse.Namespace) -> int:
    gpus = args.gpus
    if gpus is None:
        row = options.ask(JobStatus, args.job)
        if row.end_time:
            raise ElasticError(f"job {args.job} has ended; accepted: a job that is pending or running")
        gpus = row.gpus
        if not gpus:
            raise ElasticError(
                f"the size of job {args.job} is not known yet (it has not registered); "
                f"name one: selastic pin {args.job} GPUS"
            )
    return _hold(args, gpus, f"pinned to {gpus} GPUs; to let it go: selastic unpin {args.job}")


def run_unpin(args: argparse.Namespace) -> int:
    return _hold(args, None, "not pinned; the next round may resize it")


def _hold(args: argparse.Namespace, gpus: int | None, outcome: str) -> int:
    answer = options.ask(Pinned, args.job, message=Pin(gpus))
    if args.json:
        options.print_json(answer)
    else:
        print(f"Job {args.job} is {outcome}")
        if answer.out_of_reach:
            print(f"It stays as it is for now: {answer.out_of_reach}")
    return 0
