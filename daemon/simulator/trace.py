"""Traces of jobs: our own CSV, the formats of three public data sets, and `sacct --parsable2`.

Promise: a broken row is refused with its file, its line and what was expected. Limit: text only, no I/O here.

Our own CSV has a header and one job per line; only the first four columns are needed:
    job_id,submit_s,program,gpus,batch,samples,duration_s,min_gpus,max_gpus,min_batch,max_batch,weight,until
`samples` is the work counted at the base batch, or `duration_s` how long it takes at `gpus` and `batch`; program
"rigid" or an unknown one: runs at `gpus` for `duration_s`. `until` is "epochs" or "quality": what ends the training.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from slurm_elastic.trainer_shim.errors import ElasticError, RequestError
from slurm_elastic.trainer_shim.request import ENDS, find, parse


class TraceError(ElasticError):
    """A trace that cannot be read: file, line, what was expected."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace; 0 means "not given" in every number but submit_s."""

    job_id: str
    submit_s: float
    program: str
    gpus: int
    batch: int = 0
    samples: float = 0.0
    duration_s: float = 0.0
    min_gpus: int = 0
    max_gpus: int = 0
    min_batch: int = 0
    max_batch: int = 0
    weight: float = 1.0
    until: str = ""
    """"epochs": every sample counts the same; "quality": by its worth at the batch; "": not said."""


def read(text: str, name: str = "trace") -> list[TraceJob]:
    """The jobs of a trace in any known format, by submit time. Raises TraceError."""
    lines = text.splitlines()
    if not lines:
        raise TraceError(f"{name}:1: empty; expected a header line with the columns of a trace")
    separator = "|" if "|" in lines[0] else ","
    header = [column.strip() for column in lines[0].split(separator)]
    reader = _format(set(header))
    if reader is None:
        known = "; ".join(sorted(_KNOWN))
        raise TraceError(f"{name}:1: header '{lines[0][:80]}' is of no known trace; accepted: {known}")
    jobs = list[TraceJob]()
    for line, row in enumerate(csv.reader(lines[1:], delimiter=separator), 2):
        if not row:
            continue
        if len(row) != len(header):
            raise TraceError(f"{name}:{line}: {len(row)} columns; expected {len(header)} as in the header")
        try:
            job = reader(dict(zip(header, (cell.strip() for cell in row), strict=True)))
        except (ValueError, RequestError) as error:
            raise TraceError(f"{name}:{line}: {error}") from None
        if job is not None and jobs and jobs[-1].job_id == job.job_id and "+" in row[0]:
            jobs[-1] = replace(jobs[-1], gpus=jobs[-1].gpus + job.gpus)  # another component of a heterogeneous job
        elif job is not None:
            jobs.append(job)
    return _from_zero(jobs, name)


def _from_zero(jobs: list[TraceJob], name: str) -> list[TraceJob]:
    if not jobs:
        raise TraceError(f"{name}: no jobs in it")
    first = min(job.submit_s for job in jobs)
    return sorted((replace(job, submit_s=job.submit_s - first) for job in jobs), key=lambda j: j.submit_s)


def number(row: dict[str, str], column: str, least: float = 0.0, default: float | None = None) -> float:
    """A finite number >= least; ValueError naming the column, the value and what was expected."""
    text = row.get(column, "")
    if text == "" and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < least:
        raise ValueError(f"{column} is '{text}'; expected a number of {least:g} or more")
    return value


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
        until=row.get("until", ""),
    )
    if job.until not in ("", *ENDS):
        raise ValueError(f"until is '{job.until}'; expected {' or '.join(ENDS)}, or nothing")
    if job.max_gpus and job.max_gpus < max(job.min_gpus, 1):
        raise ValueError(f"max_gpus is {job.max_gpus}; expected min_gpus ({job.min_gpus}) or more")
    return job


def _adaptdl(row: dict[str, str]) -> TraceJob:
    gpus, batch = int(number(row, "num_replicas", 1)), int(number(row, "batch_size", 1))
    return TraceJob(row["name"], number(row, "time"), row["application"], gpus, batch)


def _elasticflow(row: dict[str, str]) -> TraceJob:
    batch = int(number(row, "batch_size", 1))
    return TraceJob(
        row["job_id"], number(row, "submit_time"), row["model_name"], int(number(row, "num_gpu", 1)), batch,
        samples=number(row, "iteration", 1) * batch, duration_s=number(row, "duration", 0),
    )  # fmt: skip


def _tiresias(row: dict[str, str]) -> TraceJob:
    gpus, duration = int(number(row, "num_gpu", 1)), number(row, "duration", 0)
    return TraceJob(row["job_id"], number(row, "submit_time"), row["model_name"], gpus, duration_s=duration)


def _sacct(row: dict[str, str]) -> TraceJob | None:
    """A job line of sacct; steps, jobs without GPUs and jobs that never ran are left out.

    Components of a heterogeneous job follow one another and are one job.
    """
    if "." in row["JobID"]:
        return None
    gpus = _gpus(row.get("AllocTRES") or row.get("ReqTRES") or "")
    elapsed = number(row, "ElapsedRaw") if row.get("ElapsedRaw") else _clock(row.get("Elapsed", ""))
    if not gpus or not elapsed:
        return None
    submit = _time(row.get("Submit", ""), "Submit")
    job = TraceJob(row["JobID"].partition("+")[0], submit, row.get("JobName") or "rigid", gpus, duration_s=elapsed)
    marked = find(row.get("Comment", ""))
    if not marked:
        return job
    request = parse(marked)
    return replace(
        job, min_gpus=request.min_gpus, max_gpus=request.max_gpus, min_batch=request.min_batch,
        max_batch=request.max_batch, weight=request.weight, until=request.until,
    )  # fmt: skip


def _gpus(tres: str) -> int:
    found = re.search(r"gres/gpu=(\d+)", tres)
    return int(found.group(1)) if found else sum(int(n) for n in re.findall(r"gres/gpu:[^=,]+=(\d+)", tres))


def _time(text: str, column: str) -> float:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        raise ValueError(f"{column} is '{text}'; expected a time like 2026-11-20T13:20:41") from None


def _clock(text: str) -> float:
    """Slurm's [days-]hours:minutes:seconds in seconds."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?", text)
    if not found:
        raise ValueError(f"Elapsed is '{text}'; expected [days-][hours:]minutes:seconds")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


_KNOWN: dict[str, tuple[frozenset[str], Callable[[dict[str, str]], TraceJob | None]]] = {
    "own (job_id,submit_s,program,gpus,...)": (frozenset({"job_id", "submit_s", "program", "gpus"}), _own),
    "adaptdl (name,time,application,num_replicas,batch_size)": (
        frozenset({"name", "time", "application", "num_replicas", "batch_size"}),
        _adaptdl,
    ),
    "ElasticFlow (job_id,submit_time,iteration,model_name,batch_size,num_gpu,duration)": (
        frozenset({"job_id", "submit_time", "iteration", "model_name", "batch_size", "num_gpu"}),
        _elasticflow,
    ),
    "Tiresias (job_id,num_gpu,submit_time,model_name,duration)": (
        frozenset({"job_id", "num_gpu", "submit_time", "model_name", "duration"}),
        _tiresias,
    ),
    "sacct --parsable2 (JobID|Submit|Elapsed or ElapsedRaw|AllocTRES|...)": (frozenset({"JobID", "Submit"}), _sacct),
}


def _format(header: set[str]) -> Callable[[dict[str, str]], TraceJob | None] | None:
    for columns, reader in _KNOWN.values():
        if columns <= header:
            return reader
    return None


def write(jobs: Iterable[TraceJob]) -> str:
    """Our own CSV; `read` gives equal jobs back."""
    columns = list(TraceJob.__dataclass_fields__)
    lines = [",".join(columns)]
    lines += [",".join(str(getattr(job, column)) for column in columns) for job in jobs]
    return "\n".join(lines) + "\n"
