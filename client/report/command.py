"""`selastic report`: what jobs did with the GPU-hours that they held, and how much sooner they were done for being
elastic; or, as one self-contained HTML page, what each had and when, its curve, pauses, fairness.

Promise: a page is one file, nothing fetched; written whole or not at all. Limit: jobs that you may see in full.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from slurm_elastic.protocol.answers.history import Usage
from slurm_elastic.protocol.answers.record import columns, made_from
from slurm_elastic.protocol.api.routes import WindowQuery
from slurm_elastic.protocol.errors import ConfigError, ElasticError

from .. import options
from . import figures
from .hours import BY, Hours, UsageHours, hours, summary

PAGE = "slurm_elastic.daemon.html.report_page"
"""What makes the page, where the daemon is installed."""
DEFAULT = "Of,Name,Held,Trained,Input,Comm,Pauses,Idle,Sooner"
FIELDS = columns(Hours)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `selastic report`."""
    options.add_job_filters(parser)
    options.add_window_options(parser, "from when (default: a day ago, with -j: ever)")
    parser.add_argument("--by", choices=BY, default="job", help="a row for each of these (default: job)")
    form = parser.add_mutually_exclusive_group()
    page = "write a page here instead; - or nothing: to standard output"
    form.add_argument("--page", "--html", metavar="FILE", nargs="?", const="-", help=page)
    form.add_argument("--text", action="store_true", help="print the page's key figures only, as text")
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    """Print the hours, or write the page. A job named with -j that is not known ends that with exit status 1."""
    now, chosen = options.clock(), options.check_format(args, FIELDS, DEFAULT)
    start, end = options.window(args, now, "now-1day")
    if args.page == "-" and sys.stdout.isatty():
        raise ConfigError("a page of HTML is not for a terminal; accepted: --page FILE, or standard output into a file")
    query = WindowQuery(start, end, tuple(args.jobs or ()))
    usage = options.ask(Usage, query=query, timeout=options.LONG_S)
    _, unknown = options.named(args, usage.jobs)
    jobs = options.matching(usage.jobs, args)
    kept = {job.job_id for job in jobs}
    rows = tuple(row for row in usage.allocations if row.job_id in kept)
    usage = replace(usage, jobs=tuple(jobs), allocations=rows)
    if args.text:
        print(figures.text(usage), end="")
    elif args.page is not None:
        _write(_page(usage), args.page)
    else:
        made = hours(usage, args.by)
        answer = made_from(UsageHours, usage, hours=tuple(made))
        options.print_answer(answer, chosen, made, args, rule=True, spare=("Name",), below=["", *summary(made)])
    options.refuse(unknown)
    return 0


def _page(usage: Usage) -> str:
    try:
        return str(import_module(PAGE).page(usage))
    except ModuleNotFoundError as error:
        if not PAGE.startswith(error.name or "?"):
            raise
        raise ElasticError(
            "the page is made by slurm-elastic-daemon, which is not installed; accepted: report without --page"
        ) from None


def _write(text: str, where: str) -> None:
    if where == "-":
        sys.stdout.write(text)
        return
    path = Path(where)
    if not path.name or path.is_dir():
        raise ConfigError(f"--page '{where}' is no file; accepted: a file's path, or - for standard output")
    # In a directory like /tmp nobody else may have put a link to another file of ours under the name.
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with fresh.open("x", encoding="utf-8", errors="replace") as file:
            file.write(text)
        fresh.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise ElasticError(f"{path} cannot be written ({error.strerror}); name another file with --page") from None
