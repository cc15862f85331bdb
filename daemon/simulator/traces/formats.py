"""Traces of jobs: our own CSV, and sacct's.

Promise: a broken row is refused with its file, its line and what was expected; of sacct's it is left out, and the notes
say so. Limit: text only, no I/O here.

Our own CSV has a header and one job per line; only the first four columns are needed:
    job_id,submit_s,program,gpus,batch,samples,duration_s,min_gpus,max_gpus,min_batch,max_batch,weight,wait_s,until,
    speedup,deadline_s,user,account (in one line)
`samples` is the work counted at the base batch, or `duration_s` how long it takes at `gpus` and `batch`; program
"rigid" or an unknown one: runs at `gpus` for `duration_s`. `wait_s` is how long it waited. `until` is "epochs" or
"quality": what ends the training. `speedup` is the curve of a job without a batch, as its request has it.
`deadline_s` is how long after its submission it is to be done.
"""

import csv
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from slurm_elastic.protocol.errors import RequestError
from slurm_elastic.protocol.request import ENDS

from . import sacct
from .job import TraceError, TraceJob, number

__all__ = ["Trace", "TraceError", "TraceJob", "load", "number", "read", "write"]
TOLD_AGAIN = "rows of jobs that were told before, as where months are put together"
Reader = Callable[[dict[str, str]], TraceJob | str]
"""A job of a row, or what it is instead, "" for nothing to tell of. Raises ValueError or RequestError."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The jobs of a trace by submit time, and in words what was left out or taken to be otherwise than it says."""

    jobs: list[TraceJob]
    notes: list[str]


def read(text: str, name: str = "trace") -> list[TraceJob]:
    """The jobs of a trace in any known format, by submit time. Raises TraceError."""
    return load(text, name).jobs


def load(text: str, name: str = "trace") -> Trace:
    """A trace in any known format. Raises TraceError."""
    if text.lstrip().startswith("{"):
        unread = list[str]()
        return _trace(sacct.from_json(text, name, unread), sacct.Reader(), name, unread)
    lines = [line.rstrip("\r") for line in text.split("\n")]  # splitlines() would part names at odd characters
    if not text.strip():
        raise TraceError(f"{name}:1: empty; expected a header line with the columns of a trace, then its jobs")
    separator = "|" if "|" in lines[0] else ","
    header = [column.strip() for column in lines[0].split(separator)]
    reader = _format(set(header))
    if reader is None:
        raise TraceError(f"{name}:1: {_unknown(lines[0], header)}")
    rows = (
        sacct.cells(lines, header)
        if separator == "|"
        else ((line, header, row) for line, row in enumerate(csv.reader(lines[1:]), 2))
    )
    return _trace(((f"{name}:{line}", columns, row) for line, columns, row in rows if row), reader, name, [])


def _trace(rows: Iterable[tuple[str, list[str], list[str]]], reader: Reader, name: str, unread: list[str]) -> Trace:
    """`rows`: (where, header, cells). Components of a heterogeneous job are one job, wherever they stand. `unread`: in
    words what cannot be read of sacct."""
    jobs, left_out = dict[str, TraceJob](), Counter[str]()
    runs = dict[tuple[str, float, float], str]()
    """Of each run, by JobID, submission and wait: its job."""
    for where, header, cells in rows:
        try:
            found = _job(where, header, cells, reader)
        except TraceError as error:
            if not isinstance(reader, sacct.Reader):
                raise
            unread.append(str(error))
            continue
        if isinstance(found, str):
            left_out.update([found] if found else [])
            continue
        shown_id = cells[header.index("JobID")] if isinstance(reader, sacct.Reader) else found.job_id
        run = shown_id, found.submit_s, found.wait_s
        told = isinstance(reader, sacct.Reader) and run in runs
        if told or (found.job_id in jobs and "+" in shown_id):
            left_out[TOLD_AGAIN] += told
            before = jobs[runs.setdefault(run, found.job_id)]
            gpus, longest = before.gpus + (0 if told else found.gpus), max(before.duration_s, found.duration_s)
            jobs[before.job_id] = replace(before, gpus=gpus, duration_s=longest)
        else:
            unique, times = found.job_id, 1
            while unique in jobs:  # sacct --duplicates tells each run of a requeued job
                times += 1
                unique = f"{found.job_id}#{times}"
            jobs[unique] = replace(found, job_id=unique)
            runs[run] = unique
    notes = [f"{count} {reason}, left out" for reason, count in sorted(left_out.items()) if count]
    notes += [f"{sacct.some(unread)} that cannot be read, left out"] if unread else []
    if not jobs:
        hint = sacct.HINT if sacct.NO_GPU in left_out else ""
        raise TraceError(f"{name}: no jobs in it{': ' if notes else ''}{'; '.join(notes)}{hint}")
    notes += reader.notes() if isinstance(reader, sacct.Reader) else []
    first = min(job.submit_s for job in jobs.values())
    moved = (replace(job, submit_s=job.submit_s - first) for job in jobs.values())
    return Trace(sorted(moved, key=lambda j: j.submit_s), notes)


def _job(where: str, header: list[str], cells: list[str], reader: Reader) -> TraceJob | str:
    """What a row says. A `|` within a name or a comment, which sacct does not escape, makes it too long."""
    error: Exception = ValueError(f"{len(cells)} columns; expected {len(header)} as in the header")
    for fitted in sacct.fitted(header, cells) if len(cells) >= len(header) else ():
        try:
            return reader(dict(zip(header, (cell.strip() for cell in fitted), strict=True)))
        except (ValueError, RequestError) as caught:
            error = caught
    raise TraceError(f"{where}: {error}") from None


def _unknown(line: str, header: list[str]) -> str:
    if "JobID" in header or header[0].split()[:1] == ["JobID"]:
        return f"not all columns of a trace from sacct are there; expected: {sacct.COMMAND}"
    if header[0].partition("_")[0].partition("+")[0].isdigit():
        return f"no header line; expected one, from sacct without --noheader: {sacct.COMMAND}"
    known = "; ".join([*sorted(KNOWN), f"sacct's ({sacct.COMMAND}, or --json in place of -P -o)"])
    return f"header {line[:80]!a} is of no known trace; accepted: {known}"


def _own(row: dict[str, str]) -> TraceJob:
    job = TraceJob(
        job_id=row["job_id"],
        submit_s=number(row, "submit_s"),
        program=row["program"],
        gpus=int(number(row, "gpus", 1)),
        batch=int(number(row, "batch", 0, 0)),
        samples=number(row, "samples", 0, 0),
        duration_s=number(row, "duration_s", 0, 0),
        min_gpus=int(number(row, "min_gpus", 0, 0)),
        max_gpus=int(number(row, "max_gpus", 0, 0)),
        min_batch=int(number(row, "min_batch", 0, 0)),
        max_batch=int(number(row, "max_batch", 0, 0)),
        weight=number(row, "weight", 1e-6, 1.0),
        wait_s=number(row, "wait_s", -1, -1.0),
        until=row.get("until", ""),
        speedup=float({"linear": "1"}.get(row.get("speedup", ""), row.get("speedup", "")) or 0),
        deadline_s=number(row, "deadline_s", 0, 0),
        user=row.get("user", ""),
        account=row.get("account", ""),
    )
    if job.speedup and not 0.5 < job.speedup <= 1:
        raise ValueError(f"speedup is {job.speedup:g}; expected linear, a number above 0.5, at most 1, or nothing")
    if job.until not in ("", *ENDS):
        raise ValueError(f"until is '{job.until}'; expected {' or '.join(ENDS)}, or nothing")
    if job.max_gpus and job.max_gpus < max(job.min_gpus, 1):
        raise ValueError(f"max_gpus is {job.max_gpus}; expected min_gpus ({job.min_gpus}) or more")
    return job


KNOWN: dict[str, tuple[frozenset[str], Reader]] = {
    "own (job_id,submit_s,program,gpus,...)": (frozenset({"job_id", "submit_s", "program", "gpus"}), _own)
}
"""Formats by what is said of them: the columns by which each is told, and its reader. The benchmarks have more."""


def _format(header: set[str]) -> Reader | None:
    if sacct.complete(header):
        return sacct.Reader()
    for columns, reader in KNOWN.values():
        if columns <= header:
            return reader
    return None


def write(jobs: Iterable[TraceJob]) -> str:
    """Our own CSV; `read` gives equal jobs back."""
    columns = list(TraceJob.__dataclass_fields__)
    lines = [",".join(columns)]
    lines += [",".join(str(getattr(job, column)) for column in columns) for job in jobs]
    return "\n".join(lines) + "\n"
