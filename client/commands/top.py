"""`selastic top`: the status table with totals, refreshed in place until Ctrl-C.

Promise: one request to the daemon per refresh (and one for each job named with -j that has ended), none to Slurm; a
daemon that does not answer is named and asked again; a job named that is not known ends it as it ends `status`.
Limit: plain text and two escape codes, no keys.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence

from slurm_elastic.protocol.answers.status import JobStatus
from slurm_elastic.protocol.errors import DaemonUnreachable
from slurm_elastic.protocol.text import tables
from slurm_elastic.protocol.text.times import format_time

from .. import options
from .status import DEFAULT, FIELDS, SPARE, current

CLEAR = "\x1b[H\x1b[2J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `selastic top`."""
    parser.add_argument(
        "-d", "--interval", type=options.interval, default=2.0, metavar="SECONDS", help="between refreshes (default: 2)"
    )
    parser.add_argument("--once", action="store_true", help="print one picture and end")
    options.add_job_filters(parser)


def run(args: argparse.Namespace) -> int:
    """Refresh until Ctrl-C, which is a clean end; with --once print and end."""
    if args.once:
        totals, *rest = picture(_rows(args), options.clock(), options.terminal_width())
        print("\n".join([options.bold(totals), *rest]))
        return 0
    try:
        while True:
            _refresh(args)
            time.sleep(args.interval)
    except KeyboardInterrupt:
        return 0


def _refresh(args: argparse.Namespace) -> None:
    size = shutil.get_terminal_size()
    try:
        shown = picture(_rows(args), options.clock(), options.terminal_width())
    except DaemonUnreachable as error:
        shown = [f"{format_time(options.clock(), options.clock())}  {error}"]
    if not sys.stdout.isatty():
        print("\n".join([*shown, ""]), flush=True)
        return
    totals, *rest = fitted(shown, size.columns, size.lines - 1)
    print(CLEAR + "\n".join([options.bold(totals), *rest]), flush=True)


def fitted(lines: Sequence[str], columns: int, rows: int) -> list[str]:
    """As much of the picture as the terminal shows, with `+` where a line is cut, as squeue has it, and the
    number of the lines that are left out."""
    kept = list(lines)
    if len(kept) > max(rows, 2):
        hidden = len(kept) - max(rows, 2) + 1
        kept = [*kept[:-hidden], f"... and {hidden} more"]
    return [tables.cut(line, columns) for line in kept]


def _rows(args: argparse.Namespace) -> list[JobStatus]:
    rows, unknown = current(args)
    options.refuse(unknown)
    return rows


def picture(rows: Sequence[JobStatus], now: float, terminal: int = 0) -> list[str]:
    """Totals, an empty line, the status table; plain text. terminal: its width, 0: it is none."""
    running = [row for row in rows if row.state == "RUNNING"]
    waiting = sum(row.state == "PENDING" for row in rows)
    gpus = sum(row.gpus or 0 for row in running)
    moving = sum(bool(row.resize) for row in rows)
    rates = [row.samples_per_s for row in running if row.samples_per_s is not None]
    rate = f"{tables.number(sum(rates))} samples/s from {len(rates)} jobs" if rates else "no throughput reported"
    stalled = sum(row.stalled_since is not None for row in running)
    rate += f", {stalled} of them do no step" if stalled else ""
    totals = (
        f"{format_time(now, now)}  {len(running)} running on {gpus} GPUs, {waiting} waiting, {moving} resizing, {rate}"
    )
    table = tables.lines(tables.choose(FIELDS, DEFAULT, None), rows, terminal=terminal, spare=SPARE)
    return [totals, "", *table]
