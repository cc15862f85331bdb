"""`selastic power`: which nodes sleep, which stay awake and why, what that has brought, and who waited for a boot.

Limit: only where an admin has turned the service `power` on.
"""

import argparse

from slurm_elastic.protocol.answers.record import columns
from slurm_elastic.protocol.answers.site import NodePower, Power

from .. import options

DEFAULT = "Node,Pool,State,Since,Because"
FIELDS = columns(NodePower, capitals=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `selastic power`."""
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    """Print the nodes, and below them what their sleep has brought."""
    chosen, known = options.check_format(args, FIELDS, DEFAULT), options.ask(Power)
    options.print_answer(known, chosen, known.nodes, args, spare=("Because", "Pool"), below=known.said)
    return 0
