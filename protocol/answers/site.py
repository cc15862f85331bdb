"""What users found out of the site: the rows of `selastic hosts`, pairs of hosts that did not reach each other, and
those of `selastic probe`, filled by daemon/reports/site.py; those of the services queue (who waits, when each will
probably start, and why in this order) and power (which nodes sleep, and what that has brought).
"""

from __future__ import annotations

from functools import partial

from ..text.tables import digits, moment
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


@record
class NodePower:
    """One node with GPUs."""

    node: str = about("node", Column("Node"))
    pool: str = about("partitions and GPU type that it is counted with", Column("Pool"))
    state: str = about("busy, idle, asleep, waking, offered to elastic jobs, or away: not ours", Column("State"))
    since: float | None = about("since when it sleeps, or was asked to wake", Column("Since", form=moment))
    why: str = about("why it is never put to sleep; empty: it may be", Column("Because"))


@record
class Power:
    """What has been brought, and every node."""

    at: float = about("when the nodes were like this")
    mode: str = about("review or act: how far the service goes")
    asleep_h: float = about("node-hours asleep, as far back as events are kept")
    kwh: float | None = about("kWh that they drew less, by power_watts; null: that is not set")
    wake_ups: int = about("times that nodes were woken, however many at once")
    woken: int = about("nodes that were woken")
    waits_s: tuple[float, ...] = about("how long each job waited that waited for a node to boot, in seconds")
    said: tuple[str, ...] = about("the same in words, what the site lacks, and what the settings would have brought")
    nodes: tuple[NodePower, ...]


@record
class PairOfHosts:
    """Two hosts that did not reach each other when a job of this user's was to train on both."""

    host: str = about("one of the two", Column("Host"))
    other: str = about("the other one", Column("Other"))
    user: str = about("whose jobs found out", Column("User"))
    address: str = about("which of them did not answer, and where", Column("Address", "NO_ANSWER"))
    failures: int = about("resizes in a row that failed because of it", Column("Failures"))
    last_at: float = about("when the last one failed", Column("Last", form=moment))
    again_at: float | None = about(
        "until when no job of this user's is put on both; null: jobs still are",
        Column("LeftOut", "Left_Out_Until", form=moment),
    )


@record
class PairsOfHosts:
    """Every pair that is known."""

    pairs: tuple[PairOfHosts, ...]


@record
class Cleared:
    """The pairs of which nothing is known any more."""

    pairs: tuple[PairOfHosts, ...]


@record
class Finding:
    """One thing that was tried of a site's Slurm."""

    partition: str = about("where", Column("Partition"))
    user: str = about("for whose jobs it counts; empty: for everybody's", Column("User"))
    at: float = about("when", Column("Time", form=moment))
    name: str = about("its name", Column("Name", "TRIED"))
    outcome: str = about("works, refused or not tried", Column("Outcome"))
    seconds: float | None = about("how long it took", Column("Seconds", form=digits(2)))
    said: str = about("what was seen, or why not, in the words of Slurm or the site", Column("Said", "WHAT_WAS_SEEN"))


@record
class Findings:
    """All that is remembered and that the caller may see."""

    findings: tuple[Finding, ...]
    settings: tuple[str, ...] = about("lines for selasticd.toml and for requests that follow", default=())


@record
class Remembered:
    """For whose jobs selasticd uses a probe from now on; empty: for everybody's."""

    user: str
