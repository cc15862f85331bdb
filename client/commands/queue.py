"""`selastic queue`: when each waiting job will probably start and end, why in this order, and when it would in Slurm's.

Limit: only where an admin has turned the service `queue` on; of others' jobs their ids, sizes and order alone.
"""

import argparse

from slurm_elastic.protocol.answers.record import columns
from slurm_elastic.protocol.answers.site import Queue, QueuedJob

from .. import options

DEFAULT = "JobID,Partition,Name,User,GPUs,Runs,Start,Earliest,Latest,Alone,Because"
FIELDS = columns(QueuedJob, capitals=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    chosen = options.check_format(args, FIELDS, DEFAULT)
    known = options.ask(Queue)
    below = [] if known.mode == "act" else ["Nothing of this order is done: the service queue only reviews."]
    below += [f"It could not act: {known.lacks}."] if known.lacks else []
    options.print_answer(known, chosen, known.jobs, args, spare=("Because", "Name"), below=below)
    return 0
