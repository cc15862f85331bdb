"""`selastic hosts`: pairs of hosts that did not reach each other when a job was to train on both, and until when no job
is put on both; once the network is mended, clear them.

Promise: what is cleared counts from the next round on, and is in the daemon's own events. Limit: a pair that still does
not reach each other comes back after three more failed resizes.
"""

import argparse

from slurm_elastic.protocol.answers.record import columns
from slurm_elastic.protocol.answers.site import Cleared, PairOfHosts, PairsOfHosts
from slurm_elastic.protocol.errors import ConfigError
from slurm_elastic.protocol.messages import Reachable

from .. import options

DEFAULT = "Host,Other,Address,User,Failures,Last,LeftOut"
FIELDS = columns(PairOfHosts, capitals=True)


def _one_or_two(text: str) -> tuple[str, str]:
    found = text.split(",")
    if len(found) > 2 or not all(name.strip() for name in found) or len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"'{text}' is no pair of hosts; accepted: HOST,OTHER, or HOST alone")
    return found[0].strip(), found[1].strip() if len(found) > 1 else ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--clear",
        type=_one_or_two,
        metavar="HOST[,OTHER]",
        help="these two reach each other again, or HOST and all others: jobs may be put on both "
        "(admins: everybody's jobs; users: their own)",
    )
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    chosen = options.check_format(args, FIELDS, DEFAULT)
    if args.clear is None:
        known = options.ask(PairsOfHosts)
        options.print_answer(known, chosen, known.pairs, args)
        return 0
    if args.format is not None:
        raise ConfigError("--format does not go with --clear; accepted: one of them")
    cleared = options.ask(Cleared, message=Reachable(*args.clear))
    if args.json:
        options.print_json(cleared)
        return 0
    for host, other in sorted({(pair.host, pair.other) for pair in cleared.pairs}):
        print(f"Hosts {host} and {other} may be put on one job again")
    return 0
