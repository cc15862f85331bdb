"""`selastic report`: what jobs did with the GPU-hours that they held, and how much sooner they were done for being
elastic; or, as one self-contained HTML page, what each had and when, its curve, pauses, fairness.

Promise: a page is one file, nothing fetched; written whole or not at all. Limit: jobs that you may see in full.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import secrets
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from datetime import datetime
from importlib import import_module
from itertools import pairwise
from pathlib import Path

from slurm_elastic.protocol.answers.history import Allocation, Usage, UsageJob
from slurm_elastic.protocol.answers.record import Column, about, columns, made_from, record, shown_id
from slurm_elastic.protocol.api.routes import WindowQuery
from slurm_elastic.protocol.codes import Reason
from slurm_elastic.protocol.errors import ConfigError, ElasticError
from slurm_elastic.protocol.text.tables import digits
from slurm_elastic.protocol.text.times import span

from .. import options

BY = ("job", "user", "account", "month", "cluster")


def _sooner(row: Hours) -> str:
    if row.sooner_s is None:
        return ""
    doubt = f" +- {span(row.doubt_s)}" if row.doubt_s else ""
    return f"{'-' if row.sooner_s < 0 else ''}{span(abs(row.sooner_s))}{doubt}"


@record
class Hours:
    """GPU-hours of one job, or of all of one user, account or month."""

    of: str = about("the job, user, account or month", Column("Of"))
    name: str = about("the job's name; of several jobs their number", Column("Name"))
    held: float = about("GPU-hours held while they ran", Column("Held", form=digits()))
    trained: float = about("of that, in computing steps", Column("Trained", form=digits()))
    input: float = about("waiting for input", Column("Input", form=digits()))
    comm: float = about("in communication that nothing hides", Column("Comm", form=digits()))
    pauses: float = about("in pauses of resizes", Column("Pauses", form=digits()))
    idle: float = about("with no training process: before, between and after worlds", Column("Idle", form=digits()))
    spare: float = about(
        "of what was held, beyond the size that the jobs began with and in use by nobody when it was taken; it would"
        " probably have stood idle",
        Column("Spare", form=digits()),
    )
    back: float = about("below the size that the jobs began with: given back for others", Column("Back", form=digits()))
    sooner_s: float | None = about(
        "seconds less than at the size that the jobs began with; None: they kept it, or its speed is not known",
        Column("Sooner", help="how much sooner the jobs were done than at the size that they began with", cell=_sooner),
    )
    doubt_s: float | None = about("standard deviation of that, by the model of the speed at that size")


@record
class UsageHours(Usage):
    hours: tuple[Hours, ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """An allocation, cut to the window; times in unix seconds."""

    allocation: Allocation
    job_id: int
    gpus: int
    start: float
    end: float
    samples: float
    """Its share of the allocation's."""
    pause_s: float
    """Of the resize that began it; 0 where that was before the window."""

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def gpu_hours(self) -> float:
        return self.gpus * self.seconds / 3600


def clipped(rows: Iterable[Allocation], start: float, end: float) -> list[Stretch]:
    """The parts of the rows that lie within [start, end]."""
    found = []
    for row in rows:
        began = row.start or 0.0
        left, right = max(start, began), min(end, end if row.end is None else row.end)
        if right <= left:
            continue
        samples = (row.samples or 0) * (min(1.0, (right - left) / row.elapsed_s) if row.elapsed_s else 1.0)
        pause_s = (row.pause_s or 0.0) if left == began else 0.0
        found.append(Stretch(row, row.job_id, row.gpus, left, right, samples, pause_s))
    return found


def hours(usage: Usage, by: str) -> list[Hours]:
    """A row for each job, user, account or month, or one for all. All that was held is one of trained, input,
    communication, pauses and idle; a share of a step is the median of the reports at a size, none where that was never
    measured. A job is sooner than at its first size by its samples, whatever a large batch wastes."""
    of: dict[int, list[Stretch]] = {}
    for row in clipped(usage.allocations, usage.start, usage.end):
        of.setdefault(row.job_id, []).append(row)
    groups: dict[str, list[Hours]] = {}
    for job in usage.jobs:
        own = sorted(of.get(job.job_id, ()), key=lambda row: row.start)
        if own:
            month = datetime.fromtimestamp(own[0].start).strftime("%Y-%m")
            keys = (shown_id(job), job.user or "", job.account or "", month, "all")
            groups.setdefault(keys[BY.index(by)], []).append(_of_job(usage, job, own))
    return [_sum(key, rows) if by != "job" else rows[0] for key, rows in groups.items()]


def summary(rows: Iterable[Hours]) -> list[str]:
    """All of it in sentences, fit for a mail."""
    found = list(rows)
    if not found:
        return ["no job trained in this time"]
    whole = _sum("all", found)
    parts = {"in computing": whole.trained, "waiting for input": whole.input, "in communication": whole.comm,
             "in pauses": whole.pauses, "with no process": whole.idle}  # fmt: skip
    shares = ", ".join(f"{hours / whole.held:.1%} {what}" for what, hours in parts.items() if whole.held and hours)
    lines = [f"{digits()(whole.held)} GPU-hours were held: {shares}"]
    if whole.spare or whole.back:
        lines.append(
            f"beyond the sizes that jobs began with {digits()(whole.spare)} GPU-hours of these would have stood idle;"
            f" below them {digits()(whole.back)} were given back for others"
        )
    if whole.sooner_s is not None:
        word, each = ("sooner", "less") if whole.sooner_s >= 0 else ("later", "more")
        lines.append(
            f"jobs whose size changed were done {span(abs(whole.sooner_s))} {word} in all, give or take"
            f" {span(whole.doubt_s or 0.0)}: they took so much {each} than at the sizes that they began with"
        )
    return lines


def _of_job(usage: Usage, job: UsageJob, own: list[Stretch]) -> Hours:
    measured = {(seen.gpus, seen.batch): seen for seen in job.measured}
    pauses = waits = comm = 0.0
    for row in own:
        seen = measured.get((row.gpus, row.allocation.batch or 0))
        trains = row.gpus * max(0.0, row.seconds - row.pause_s) / 3600
        pauses += row.gpus * min(row.pause_s, row.seconds) / 3600
        waits += trains * (seen.input_wait_share if seen else 0.0)
        comm += trains * (seen.comm_share if seen else 0.0)
    began = own[0].start if job.start_time is None else min(own[0].start, max(usage.start, job.start_time))
    until = own[-1].end if job.end_time is None else max(own[-1].end, min(usage.end, job.end_time))
    gaps = [(own[0].gpus, own[0].start - began), (own[-1].gpus, until - own[-1].end)]
    gaps += [(before.gpus, max(0.0, after.start - before.end)) for before, after in pairwise(own)]
    idle = sum(gpus * seconds for gpus, seconds in gaps) / 3600
    trained = sum(row.gpu_hours for row in own)
    first = _first(usage, job)
    spare, back = _beside_first(own, first.gpus)
    sooner, doubt = _gain(job, own, first)
    return Hours(
        of=shown_id(job), name=job.name or "", held=trained + idle, trained=trained - pauses - waits - comm,
        input=waits, comm=comm, pauses=pauses, idle=idle, spare=spare, back=back, sooner_s=sooner, doubt_s=doubt,
    )  # fmt: skip


def _first(usage: Usage, job: UsageJob) -> Allocation:
    """With which the job began."""
    return min((row for row in usage.allocations if row.job_id == job.job_id), key=lambda row: row.start or 0.0)


def _beside_first(own: list[Stretch], first: int) -> tuple[float, float]:
    """GPU-hours (beyond the first size in GPUs that were idle when they were taken, below it)."""
    spare, before, beyond, below = 0, first, 0.0, 0.0
    for row in own:
        idle = row.allocation.reason == Reason.GROW_IDLE.value
        spare = max(0, min(spare + max(0, row.gpus - before) * idle, row.gpus - first))
        beyond += spare * row.seconds / 3600
        below += max(0, first - row.gpus) * row.seconds / 3600
        before = row.gpus
    return beyond, below


def _gain(job: UsageJob, own: list[Stretch], first: Allocation) -> tuple[float | None, float | None]:
    """(seconds sooner, their deviation), by the speed at the first size: as measured there, or as the model has it."""
    changed = any((row.gpus, row.allocation.batch) != (first.gpus, first.batch) for row in own)
    point = next((point for point in job.curve if point.gpus == first.gpus), None)
    seen = next((m.samples_per_s for m in job.measured if (m.gpus, m.batch) == (first.gpus, first.batch)), None)
    speed = seen or (point.samples_per_s if point else 0.0)
    if not changed or not speed:
        return None, None
    alone = sum(row.samples for row in own) / speed
    return alone - sum(row.seconds for row in own), alone * (point.uncertainty if point else 0.0)


def _sum(key: str, rows: list[Hours]) -> Hours:
    """Of several jobs, whose doubts are independent."""
    known = [row for row in rows if row.sooner_s is not None]
    amounts = {
        item.name: sum(getattr(row, item.name) for row in rows) for item in fields(Hours) if str(item.type) == "float"
    }
    return Hours(
        of=key, name=f"{len(rows)} job{'s' * (len(rows) != 1)}", **amounts,
        sooner_s=sum(row.sooner_s or 0.0 for row in known) if known else None,
        doubt_s=math.sqrt(sum((row.doubt_s or 0.0) ** 2 for row in known)) if known else None,
    )  # fmt: skip


PAGE = "slurm_elastic.daemon.html.report_page"
"""What makes the page, where the daemon is installed."""
DEFAULT = "Of,Name,Held,Trained,Input,Comm,Pauses,Idle,Sooner"
FIELDS = columns(Hours)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_job_filters(parser)
    options.add_window_options(parser, "from when (default: a day ago, with -j: ever)")
    parser.add_argument("--by", choices=BY, default="job", help="a row for each of these (default: job)")
    page = "write a page here instead; - or nothing: to standard output"
    parser.add_argument("--page", "--html", metavar="FILE", nargs="?", const="-", help=page)
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
    if args.page is not None:
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
