"""Reports of one configuration become one observation; what is remembered of a job is built here, from either side.

A median is over the youngest reports of its configuration: a job's speed may change with its data.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Select, func, select

from .. import schema
from ..rows import ObservationRow

YOUNGEST = 101
"""Reports of one configuration that its medians are over."""
MOST = 256
"""Configurations of one job that are kept in memory and in the record of an hour: a day of resizes every five minutes.
A job that reports more is known by those that it reported last."""
ROWS = 1000
"""Reports read at once."""
_REPORTS = schema.reports
_KEY = ("gpus", "nodes", "batch", "micro_batch", "accumulation")
_MEASURED = ("at", "step_time_median_s", "samples_per_s", "noise_scale", "comm_share", "input_wait_share")
_of_job = itemgetter(*range(1 + len(_KEY)))
_FIGURES = slice(1 + len(_KEY), None)
Key = tuple[int, int, int, int, int]
Measured = tuple[float, float, float, float, float, float]


@dataclass(slots=True)
class Configuration:
    """The youngest reports of one configuration: time, step time, samples/s, noise scale, shares of communication and
    of waiting for input."""

    count: int = 0
    last_at: float = 0.0
    youngest: array[float] = field(default_factory=lambda: array("d"))
    """The figures of each report, one after the other, the oldest first: of thousands of jobs most of the daemon's
    memory, and a fifth of what tuples would take."""
    known: ObservationRow | None = None
    """What `row` gave, until something is added: it is asked for far more often."""

    def add(self, count: int, at: float, values: Iterable[float]) -> None:
        """So many reports, the youngest of this time; `values`: figures of the youngest ones, one after the other."""
        self.known = None
        self.count += count
        self.last_at = max(self.last_at, at)
        self.youngest.extend(values)
        del self.youngest[: -len(_MEASURED) * YOUNGEST]

    def older_than(self, at: float) -> bool:
        """Whether any of its youngest reports is; the record of an hour is none."""
        return min(self.youngest[:: len(_MEASURED)]) < at

    def row(self, key: Key) -> ObservationRow:
        """The medians; `key` is always the same."""
        if self.known is not None:
            return self.known
        times, rates, noises, shares, waits = (self.youngest[i :: len(_MEASURED)] for i in range(1, len(_MEASURED)))
        figures = _median(times), _median(rates), self.last_at, _median_measured(noises), _median_measured(shares)
        self.known = ObservationRow(*key, self.count, *figures, _median_known(waits))
        return self.known

    def rate(self) -> float:
        """The median of samples/s, of `row`."""
        return self.known.samples_per_s if self.known is not None else _median(self.youngest[2 :: len(_MEASURED)])


def _median_measured(values: array[float]) -> float:
    """Over those that were measured; 0: none was."""
    found = [value for value in values if value > 0] if any(values) else []
    return _median(found) if found else 0.0


def _median_known(values: array[float]) -> float:
    """Over those that are numbers; 0: none is."""
    known = [value for value in values if not math.isnan(value)] if any(values) else []
    return _median(known) if known else 0.0


def _median(values: Sequence[float]) -> float:
    """That of the statistics module, without its checks."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def key_of(row: Any) -> Key:
    return (row.gpus, row.nodes, row.batch, row.micro_batch, row.accumulation)


def measured(row: Any) -> Measured:
    figures = row.step_time_median_s, row.samples_per_s, row.noise_scale, row.comm_share, row.input_wait_share
    return (row.at, *figures)


def rows_of(seen: dict[Key, Configuration]) -> list[ObservationRow]:
    return [configuration.row(key) for key, configuration in sorted(seen.items())]


def fastest_of(seen: dict[Key, Configuration]) -> dict[int, float]:
    """Samples/s of each number of GPUs, at the best batch."""
    best: dict[int, float] = {}
    for (gpus, *_), configuration in seen.items():
        best[gpus] = max(best.get(gpus, 0.0), configuration.rate())
    return best


def summary(seen: dict[Key, Configuration]) -> dict[str, Any]:
    """What is known of a job as its row of `summaries`; it reads as it was up to `until`."""
    values = array("d")
    for key, one in seen.items():
        values.extend((*key, one.count, one.last_at, len(one.youngest)))
        values += one.youngest
    if sys.byteorder == "big":
        values.byteswap()
    # Of many configurations the oldest are forgotten, and not known to be.
    oldest = min([min(one.youngest[:: len(_MEASURED)]) for one in seen.values()]) if len(seen) < MOST else 0.0
    until = max([one.last_at for one in seen.values()])
    return {"until": until, "oldest": min(oldest, until), "seen": values.tobytes()}


def _of_summary(content: bytes) -> dict[Key, Configuration]:
    values = array("d", content)
    if sys.byteorder == "big":
        values.byteswap()
    found: dict[Key, Configuration] = {}
    place = 0
    while place < len(values):
        gpus, nodes, batch, micro, accumulation, count, last_at, long = values[place : place + 8]
        place += 8
        key = (int(gpus), int(nodes), int(batch), int(micro), int(accumulation))
        found[key] = Configuration(int(count), last_at, values[place : place + int(long)])
        place += int(long)
    return found


def forget_oldest(seen: dict[Key, Configuration]) -> None:
    """Keep the MOST configurations that were reported last."""
    if len(seen) > MOST:
        youngest = sorted(seen, key=lambda key: (seen[key].last_at, key), reverse=True)
        for key in youngest[MOST:]:
            del seen[key]


def load(
    connection: Connection, jobs: Select[Any] | int, read: defaultdict[int, int] | None = None
) -> dict[int, dict[Key, Configuration]]:
    """What is stored of these jobs (a query for their ids, or one id): of each its summary, if there is one, and its
    later reports; else hourly records and all reports. In time order. read: is added how many reports each has had
    read."""
    hours, summaries, job = schema.rollups, schema.summaries, schema.jobs.c.job_id
    within = job == jobs if isinstance(jobs, int) else job.in_(jobs)
    found: dict[int, dict[Key, Configuration]] = defaultdict(dict)
    for row in connection.execute(select(summaries).join(schema.jobs).where(within)).all():
        found[row.job_id] = _of_summary(row.seen)
    known = schema.jobs.outerjoin(summaries)
    query = select(hours).select_from(known.join(hours, hours.c.job_id == job))
    query = query.where(within, summaries.c.job_id.is_(None)).order_by(job, hours.c.hour)
    for row in connection.execute(query):
        wait = math.nan if row.input_wait_share is None else row.input_wait_share
        # It has no share of communication, and stays as it is when other hours are rolled up.
        values = (math.inf, row.step_time, row.samples_per_s, row.noise_scale, 0.0, wait)
        found[row.job_id].setdefault(key_of(row), Configuration()).add(row._mapping["count"], row.last_at, values)
    # In the order of the key, so that the database need not sort millions of rows.
    columns = [_REPORTS.c[name] for name in ("job_id", *_KEY, *_MEASURED)]
    later = (_REPORTS.c.job_id == job) & (_REPORTS.c.at > func.coalesce(summaries.c.until, -1e300))
    query = select(*columns).select_from(known.join(_REPORTS, later)).where(within).order_by(job, _REPORTS.c.at)
    rows = chain.from_iterable(connection.execute(query).partitions(ROWS))
    for (job_id, *of), same in groupby(rows, _of_job):  # jobs report one configuration thousands of times in a row
        run, key = list(same), (of[0], of[1], of[2], of[3], of[4])
        figures = chain.from_iterable([row[_FIGURES] for row in run[-YOUNGEST:]])
        found[job_id].setdefault(key, Configuration()).add(len(run), run[-1].at, figures)
        if read is not None:
            read[job_id] += len(run)
    for seen in found.values():
        forget_oldest(seen)
    return found
