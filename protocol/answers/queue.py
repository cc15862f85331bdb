"""The rows of `selastic queue`: who waits, when each will probably start, and why in this order."""

from __future__ import annotations

from functools import partial

from ..text.tables import moment
from ..text.times import elapsed
from .record import Column, about, record, shown_id

_span = partial(elapsed, short=True)


@record
class QueuedJob:
    """One waiting job."""

    job_id: int = about("job id", Column("JobID", help="job id; 7_3: a task of array 7", cell=shown_id), public=True)
    task_name: str | None = about("7_3 for a task of array 7, as Slurm names it", public=True)
    own: bool = about("whether it is a job of who asks", public=True)
    partition: str | None = about("partition", Column("Partition"))
    name: str | None = about("job name", Column("Name"))
    user: str | None = about("user name", Column("User"))
    gpus: int = about("GPUs that it asks for", Column("GPUs"), public=True)
    time_limit_s: float | None = about("time limit; null: none", Column("TimeLimit", "Limit", form=_span))
    left_s: float | None = about("how long it will probably run", Column("Runs", form=_span))
    factor: int | None = about("its site factor in this order", Column("SiteFactor", "Factor"))
    start: float | None = about("when it will probably start; null: not foretold", Column("Start", form=moment))
    earliest: float | None = about("four of five jobs start from here", Column("Earliest", form=moment))
    latest: float | None = about("to here", Column("Latest", form=moment))
    end: float | None = about("when it will probably end", Column("End", form=moment))
    alone: float | None = about("when it would start in Slurm's own order", Column("Alone", "SLURM_ALONE", form=moment))
    why: str | None = about("what its place goes by", Column("Because"))


@record
class Queue:
    """All that wait for GPUs, who starts first first."""

    at: float = about("when it was foretold")
    mode: str = about("review or act: how far the service goes")
    lacks: str = about("what the site lacks for it to act; empty: nothing", default="")
    jobs: tuple[QueuedJob, ...]
