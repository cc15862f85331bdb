"""`selastic report`: one self-contained HTML page of how jobs have gone: what each had and when, GPUs in training,
throughput against GPUs with the fitted curve and its measurements, pauses, GPU-hours, fairness.

Promise: one file, nothing fetched; written whole or not at all. Limit: jobs that you may see in full.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from slurm_elastic.protocol.answers.usage import Usage
from slurm_elastic.protocol.api.routes import WindowQuery
from slurm_elastic.protocol.errors import ConfigError, ElasticError

from .. import options
from . import figures

PAGE = "slurm_elastic.daemon.html.report_page"
"""What makes the page, where the daemon is installed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `selastic report`."""
    options.add_job_filters(parser)
    options.add_window_options(parser, "from when (default: a day ago, with -j: ever)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--html", metavar="FILE", nargs="?", const="-", default="-",
                      help="write the page here; - or nothing: to standard output (the default)")  # fmt: skip
    form.add_argument("--text", action="store_true", help="print the key figures only, as text")
    form.add_argument("--json", action="store_true", help="print what the page is made from as JSON")


def run(args: argparse.Namespace) -> int:
    """Write the page. A job named with -j that is not known ends, after that, with exit status 1."""
    now = options.clock()
    start, end = options.window(args, now, "now-1day")
    if args.html == "-" and not (args.json or args.text) and sys.stdout.isatty():
        raise ConfigError(
            "a page of HTML is not for a terminal; accepted: --html FILE, --text, or standard output into a file"
        )
    query = WindowQuery(start, end, tuple(args.jobs or ()))
    usage = options.ask(Usage, query=query, timeout=options.LONG_S)
    _, unknown = options.named(args, usage.jobs)
    jobs = options.matching(usage.jobs, args)
    kept = {job.job_id for job in jobs}
    rows = tuple(row for row in usage.allocations if row.job_id in kept)
    usage = replace(usage, jobs=tuple(jobs), allocations=rows)
    if args.json:
        options.print_json(usage)
    elif args.text:
        print(figures.text(usage), end="")
    else:
        _write(_page(usage), args.html)
    options.refuse(unknown)
    return 0


def _page(usage: Usage) -> str:
    try:
        return str(import_module(PAGE).page(usage))
    except ModuleNotFoundError as error:
        if not PAGE.startswith(error.name or "?"):
            raise
        raise ElasticError(
            "the page is made by slurm-elastic-daemon, which is not installed; accepted: --text, --json"
        ) from None


def _write(text: str, where: str) -> None:
    if where == "-":
        sys.stdout.write(text)
        return
    path = Path(where)
    if not path.name or path.is_dir():
        raise ConfigError(f"--html '{where}' is no file; accepted: a file's path, or - for standard output")
    # In a directory like /tmp nobody else may have put a link to another file of ours under the name.
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with fresh.open("x", encoding="utf-8", errors="replace") as file:
            file.write(text)
        fresh.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise ElasticError(f"{path} cannot be written ({error.strerror}); name another file with --html") from None
