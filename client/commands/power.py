"""`selastic power`: which nodes sleep, which stay awake and why, what that has brought, and who waited for a boot.

Limit: only where an admin has turned the service `power` on.
"""

from __future__ import annotations

import argparse

from slurm_elastic.protocol.answers.power import NodePower, Power
from slurm_elastic.protocol.answers.record import columns
from slurm_elastic.protocol.text.times import format_time, span

from .. import options

DEFAULT = "Node,Pool,State,Since,Failures,Because"
FIELDS = columns(NodePower, capitals=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `selastic power`."""
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    """Print the nodes, and below them what their sleep has brought."""
    chosen = options.check_format(args, FIELDS, DEFAULT)
    known = options.ask(Power)
    below = [] if known.mode == "act" else ["Nothing of this is done: the service power only reviews."]
    below += [f"It could not act: {known.lacks}."] if known.lacks else []
    if known.since is not None:
        energy = "" if known.kwh is None else f", {known.kwh:.1f} kWh"
        below.append(
            f"Since {format_time(known.since, known.at)}: {known.asleep_h:.1f} node-hours asleep{energy};"
            f" {known.wake_ups} wake-ups of {known.woken} nodes."
        )
    if known.mean_wait_s is not None and known.longest_wait_s is not None:
        mean, most = span(known.mean_wait_s), span(known.longest_wait_s)
        below.append(f"{known.waited} jobs waited for a node to boot: {mean} in the mean, {most} at most.")
    below += [f"These settings on {would}." for would in known.would]
    options.print_answer(known, chosen, known.nodes, args, spare=("Because", "Pool"), below=below)
    return 0
