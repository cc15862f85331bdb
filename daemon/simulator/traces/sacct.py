"""Jobs from sacct: `--parsable2` with its columns in any order, or `--json`. Promise: pure; nothing is left out unsaid,
and one row that users or the database have made odd never ends the reading.

A job could start from its Eligible time on: one that was held, or depended on another, was not in the queue before.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from slurm_elastic.protocol.errors import RequestError
from slurm_elastic.protocol.request import find, parse
from slurm_elastic.protocol.text.times import deadline_at, duration_s

from .job import TraceError, TraceJob, number

COMMAND = (
    "sacct -a -X -P -S now-30days -E now"
    " -o JobID,User,Account,JobName,State,Submit,Eligible,Start,ElapsedRaw,AllocTRES,Comment"
)
NO_GPU, NEVER_RAN, NO_SUBMIT = "jobs that held no GPU", "jobs that never ran", "jobs without a time of submission"
HINT = "; GPUs are in AllocTRES where slurm.conf has AccountingStorageTRES=gres/gpu"
FREE_TEXT = ("JobName", "Comment")
"""Columns whose text the users choose: sacct does not escape a `|` or a line break in them."""


class Reader:
    """A job of each line of sacct, or why it is left out: nothing to tell of a step."""

    def __init__(self) -> None:
        self.states = Counter[str]()
        self.days = list[str]()
        self.malformed = list[str]()
        """Ids of jobs whose elastic request cannot be read: rigid ones, as for the daemon."""

    def __call__(self, row: dict[str, str]) -> TraceJob | str:
        """Raises ValueError for what cannot be read."""
        if "." in row["JobID"]:
            return ""
        gpus = _gpus(row.get("AllocTRES") or row.get("ReqTRES") or "")
        elapsed = number(row, "ElapsedRaw") if row.get("ElapsedRaw") else duration_s(row.get("Elapsed", ""))
        if not gpus:
            return NO_GPU
        if not elapsed:
            return NEVER_RAN
        submit, eligible, started = (
            _or_none(row.get(column, ""), column) for column in ("Submit", "Eligible", "Start")
        )
        if submit is None:
            return NO_SUBMIT
        submit = max(submit, eligible or submit)
        wait = -1.0 if started is None else max(0.0, started - submit)
        name = row.get("JobName") or "rigid"
        job = TraceJob(
            row["JobID"].partition("+")[0], submit, name, gpus, duration_s=elapsed, wait_s=wait,
            user=row.get("User", ""), account=row.get("Account", ""),
        )  # fmt: skip
        request = None
        try:
            request = parse(marked) if (marked := find(row.get("Comment", ""))) else None
        except RequestError:
            self.malformed.append(job.job_id)
        self.states[row.get("State", "").split(" ")[0]] += 1
        self.days.append(datetime.fromtimestamp(submit, timezone.utc).strftime("%Y-%m-%d %H:%M"))
        if request is None:
            return job
        return replace(
            job, min_gpus=request.min_gpus, max_gpus=request.max_gpus, min_batch=request.min_batch,
            max_batch=request.max_batch, weight=request.weight, until=request.until,
            speedup=request.speedup,
            deadline_s=deadline_at(request.deadline, submit) - submit if request.deadline else 0.0,
        )  # fmt: skip

    def notes(self) -> list[str]:
        """What is taken of the jobs read that the file does not say."""
        found = [f"jobs that could start between {min(self.days)} and {max(self.days)}"]
        running = self.states["RUNNING"] + self.states["SUSPENDED"]
        if running:
            found.append(f"{running} still ran when this was recorded: taken to end then")
        if self.malformed:
            found.append(f"{some(self.malformed)} with an elastic request that is malformed: taken to be rigid")
        words = {"COMPLETED", "RUNNING", "SUSPENDED", ""}
        short = ", ".join(f"{n} {state}" for state, n in sorted(self.states.items()) if state not in words)
        if short:
            found.append(f"not COMPLETED: {short}; taken to have done all their work when they ended")
        return found


def some(names: Sequence[str]) -> str:
    """How many there are, and the first three: "4 (7, 9, 12, ...)"."""
    return f"{len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"


def complete(header: Iterable[str]) -> bool:
    """Whether lines with these columns say enough of a job."""
    have = set(header)
    return (
        {"JobID", "Submit"} <= have and bool(have & {"Elapsed", "ElapsedRaw"}) and bool(have & {"AllocTRES", "ReqTRES"})
    )


def cells(lines: Sequence[str], header: list[str]) -> Iterator[tuple[int, list[str], list[str]]]:
    """(line, header, cells) of the lines after the header, which may come again, with other columns, where months were
    put together; a break within a comment, where a line ends too early or holds no cell of its own, is a blank."""
    ends = header[-1] in FREE_TEXT
    row, first = list[str](), 0
    for at, line in enumerate(lines[1:], 2):
        more = line.split("|")
        if complete(more):
            if row:
                yield first, header, row
            header, row, ends = more, [], more[-1] in FREE_TEXT
            continue
        if row and (len(row) < len(header) or (ends and line and len(more) == 1)):
            row = [*row[:-1], f"{row[-1]} {more[0]}", *more[1:]]
            continue
        if row:
            yield first, header, row
        row, first = (more, at) if line else ([], at)
    if row:
        yield first, header, row


def fitted(header: Sequence[str], row: list[str]) -> Iterator[list[str]]:
    """The ways to read a row that is too long: as many cells as there are columns."""
    more = len(row) - len(header)
    if not more:
        yield row
        return
    for name in FREE_TEXT:
        if name in header:
            at = header.index(name)
            yield [*row[:at], "|".join(row[at : at + more + 1]), *row[at + more + 1 :]]


def from_json(text: str, name: str, unread: list[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """(where, columns, cells) of each job of `sacct --json`, as --parsable2 would print them; `unread` gets in
    words what is no job. Months may be put together. Raises TraceError for what is no list of jobs."""
    jobs, rest, decoder = list[Any](), text.strip(), json.JSONDecoder()
    try:
        while rest:
            document, end = decoder.raw_decode(rest)
            if not isinstance(document["jobs"], list):
                raise TypeError("jobs is no list")
            jobs, rest = jobs + document["jobs"], rest[end:].lstrip()
    except (ValueError, KeyError, TypeError) as error:
        reason = f" ({error})" if isinstance(error, ValueError) else ""
        raise TraceError(f"{name}: not what sacct --json prints{reason}; expected an object with `jobs`") from None
    for index, job in enumerate(jobs):
        where = f"{name}: jobs[{index}]"
        try:
            row = _row(job)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            unread.append(f"{where}: not as sacct --json prints a job ({type(error).__name__}: {error})")
            continue
        yield where, list(row), list(row.values())


def _row(job: dict[str, Any]) -> dict[str, str]:
    array, het, times = job.get("array") or {}, job.get("het") or {}, job["time"]
    shown_id = str(job["job_id"])
    if _plain(array.get("job_id")):
        shown_id = f"{_plain(array['job_id'])}_{_plain(array['task_id'])}"
    elif _plain(het.get("job_id")):
        shown_id = f"{_plain(het['job_id'])}+{_plain(het['job_offset']) or 0}"
    state, comment = job["state"]["current"], job.get("comment")
    tres = [entry for entry in job["tres"]["allocated"] if entry["type"] == "gres" and entry.get("count")]
    return {
        "JobID": shown_id,
        "User": job.get("user") or "",
        "Account": job.get("account") or "",
        "JobName": job.get("name") or "",
        "State": state if isinstance(state, str) else state[0],
        "Submit": str(_plain(times["submission"])),
        "Eligible": str(_plain(times.get("eligible")) or ""),
        "Start": str(_plain(times.get("start")) or ""),
        "ElapsedRaw": str(_plain(times["elapsed"]) or 0),
        "AllocTRES": ",".join(f"gres/{entry['name']}={entry['count']}" for entry in tres),
        "Comment": (comment.get("job") if isinstance(comment, dict) else comment) or "",
    }


def _plain(value: Any) -> Any:
    """A number as 22.05 writes it, or as later releases do: {"set": true, "infinite": false, "number": 7}."""
    return (value["number"] if value.get("set") else None) if isinstance(value, dict) else value


def _gpus(tres: str) -> int:
    found = re.search(r"gres/gpu=(\d+)", tres)
    return int(found.group(1)) if found else sum(int(n) for n in re.findall(r"gres/gpu:[^=,]+=(\d+)", tres))


def _or_none(text: str, column: str) -> float | None:
    """None for what Slurm writes where there is no time, such as the first day of 1970."""
    at = 0.0 if text in ("", "None", "Unknown") else seconds(text, column)
    return at if at > 86400 else None


def seconds(text: str, column: str) -> float:
    """A time; local time without an offset is taken as it stands, so that a change of the clocks moves a few jobs by an
    hour."""
    if text.isdigit():  # SLURM_TIME_FORMAT=%s, and --json
        return float(text)
    try:  # with SLURM_TIME_FORMAT=%FT%T%z there is an offset, which Python 3.10 reads with a colon only
        at = datetime.fromisoformat(re.sub(r"(:\d\d[+-]\d\d)(\d\d)$", r"\1:\2", text.replace("Z", "+00:00")))
        return (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp()
    except ValueError:
        raise ValueError(f"{column} is '{text}'; expected a time like 2026-11-20T13:20:41") from None
