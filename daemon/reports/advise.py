"""What the daemon would have done while it only advised, and what that would have brought: `selastic advise`.

Promise: each figure follows from stored decisions, held against what the job had at that moment; progress is the
planner's own figure, and hours for which it had none are counted as unknown, not as nothing. Limit: a comparison, no
simulation: had the first advice been followed, later ones would have been others. A decision counts as standing until
the job's next one, also while the daemon was down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from ..text.cells import moment, number
from ..text.times import elapsed
from .common import JobRecord, Viewer, may_see, reason_text
from .evidence import Evidence
from .record import Column, about, made_from, read, record

if TYPE_CHECKING:
    from slurm_elastic.db.rows import DecisionRow, JobRow
    from slurm_elastic.db.store import Store


def _percent(change: float) -> str:
    return f"{100 * change:+.0f}%"


def _mean(value: float) -> str:
    """Whole numbers as they are, means with a digit."""
    return f"{value:.1f}".removesuffix(".0")


@record
class AdviceFigures:
    """What following advice would have brought."""

    seconds: float = about("how long the job was seen, or the advice stood", Column("Time", form=elapsed))
    moves: int = about("resizes that the daemon would have begun", Column("Moves"))
    gpu_hours: float = about("GPU-hours that it had", Column("GPUHours", form=number()))
    advised_gpu_hours: float = about(
        "GPU-hours that it would have had", Column("WouldGPUHours", "WOULD_GPUHOURS", form=number())
    )
    change: float | None = about(
        "progress it would have made, against what it made; pauses charged", Column("Change", form=_percent)
    )
    progress_h: float | None = about(
        "the same difference in hours at its smallest size", Column("ProgressH", "PROGRESS_H", form=number())
    )
    pause_s: float = about("pauses charged, in seconds", Column("Pause", form=number(2)))
    unknown_s: float = about("time under advice of unknown effect", Column("Unknown", form=elapsed))
    modelled_s: float = about("time under advice to have a size that was never measured")
    doubt: float | None = about(
        "uncertainty of the advised sizes' predicted speed; empty where all were measured",
        Column("Doubt", form=lambda doubt: f"{100 * doubt:.0f}%" if doubt else ""),
    )


@record
class JobAdvice(AdviceFigures, JobRecord):
    """The advice on one job, all of it together."""

    gpus: float = about("GPUs that it had; the mean over the time", Column("GPUs", form=_mean))
    advised_gpus: float = about(
        "GPUs that it was advised to have; the mean over the time", Column("WouldGPUs", "WOULD", form=_mean)
    )


@record
class MoveAdvice(AdviceFigures, JobRecord):
    """One move that was advised."""

    at: float = about("when the move was first advised (--moves)", Column("At", form=moment))
    gpus: int = about("GPUs that it had", Column("GPUs"))
    advised_gpus: int = about("GPUs that it was advised to have", Column("WouldGPUs", "WOULD"))
    batch: int = about("global batch that it had (--moves)", Column("Batch"))
    advised_batch: int = about(
        "global batch that it was advised to have (--moves)", Column("WouldBatch", "WOULD_BATCH")
    )
    gain: float | None = about(
        "gain of the move for all jobs, in jobs' worth of progress (--moves)", Column("Gain", form=number())
    )
    mechanism: str = about("how it would have got there (--moves)", Column("Mechanism", "VIA"))
    mode: str = about("the daemon's mode then (--moves)", Column("Mode"))
    reason: str = about("why, as a code (--moves)", Column("Reason"))
    reason_text: str = about("why, in words (--moves)", Column("Because"))


@record
class ClusterAdvice(AdviceFigures):
    """The sums over all jobs."""

    jobs: int


@record
class WaitingAdvice:
    """A waiting job that room would have been made for."""

    job_id: int
    gpus: int | None
    at: float = about("when it would have had room")
    waited_s: float = about("how long it waited after that")


@record
class Advice:
    """What the daemon would have done while it only advised."""

    start: float
    end: float
    acted: int = about("decisions of this time that were acted on")
    cluster: ClusterAdvice
    jobs: tuple[JobAdvice, ...]
    moves: tuple[MoveAdvice, ...]
    waited: tuple[WaitingAdvice, ...]


@dataclass(slots=True)
class StandingDecision:
    """Time over which one decision stood."""

    decision: DecisionRow
    start: float
    end: float
    evidence: Evidence
    again: bool = False
    """It follows one that advised the same, so it would have begun no resize."""

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def advises(self) -> bool:
        """Whether it is a move that was only advised."""
        row = self.decision
        moves = (row.gpus_from, row.batch_from) != (row.gpus_to, row.batch_to)
        return moves and row.mode != "act" and row.gpus_from > 0

    @property
    def pause_s(self) -> float:
        """What beginning it would have cost."""
        pause = self.evidence.pause_s or 0.0
        return 0.0 if self.again or not self.advises else min(self.seconds, pause)

    def progress(self) -> tuple[float, float] | None:
        """(as it was, as advised) in seconds of progress at the job's smallest size; None: not known."""
        before = self.evidence.speedup_from
        after = self.evidence.speedup_to if self.advises else before
        if before is None or after is None:
            return None
        return before * self.seconds, after * (self.seconds - self.pause_s)


@dataclass(slots=True)
class FigureSums:
    """Figures of a job, or of all of them."""

    seconds: float = 0.0
    moves: int = 0
    gpu_hours: float = 0.0
    advised_gpu_hours: float = 0.0
    pause_s: float = 0.0
    unknown_s: float = 0.0
    """Time under advice whose progress is not known."""
    modelled_s: float = 0.0
    """Time under advice to have a size that was never measured."""
    doubt_s: float = 0.0
    """The same, each second times the model's relative uncertainty there."""
    was: float = 0.0
    would: float = 0.0

    def add(self, stretch: StandingDecision) -> None:
        """Count one stretch."""
        row = stretch.decision
        self.seconds += stretch.seconds
        self.moves += stretch.advises and not stretch.again
        self.gpu_hours += row.gpus_from * stretch.seconds / 3600
        self.advised_gpu_hours += (row.gpus_to if stretch.advises else row.gpus_from) * stretch.seconds / 3600
        self.pause_s += stretch.pause_s
        known = stretch.progress()
        if known is not None:
            self.was, self.would = self.was + known[0], self.would + known[1]
        elif stretch.advises:
            self.unknown_s += stretch.seconds
        if known is not None and stretch.advises and stretch.evidence.modelled:
            self.modelled_s += stretch.seconds
            self.doubt_s += stretch.seconds * (stretch.evidence.doubt or 0.0)

    def merge(self, other: FigureSums) -> None:
        """Count another's."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def doubt(self) -> float | None:
        return self.doubt_s / self.modelled_s if self.modelled_s else None

    @property
    def progress_h(self) -> float | None:
        return (self.would - self.was) / 3600 if self.was > 0 else None

    @property
    def change(self) -> float | None:
        return self.would / self.was - 1 if self.was > 0 else None


@dataclass(slots=True)
class Wait:
    """How long a waiting job would not have had to wait."""

    job_id: int
    gpus: int | None
    since: float
    seconds: dict[int, float] = field(default_factory=dict)
    """How long each of the jobs that would have given GPUs was advised to."""

    def record(self) -> WaitingAdvice:
        waited_s = max(self.seconds.values())
        return WaitingAdvice(job_id=self.job_id, gpus=self.gpus, at=self.since, waited_s=waited_s)


def advise(
    store: Store, viewer: Viewer, now: float, *, start: float, end: float | None = None, job: Iterable[int] = ()
) -> Advice:
    """`moves`, `jobs` and `waited` of the jobs that the viewer may see, `cluster`: the sums over all jobs.

    start, end: the window in unix seconds; job: only these ids (empty: all), also in the sums. The sums leave out
    jobs that the viewer may not see where ids are named, since a sum over one job is that job's own figure, and where
    Slurm hides others' jobs.
    """
    end = now if end is None else min(end, now)
    wanted = set(job)
    jobs = {row.job_id: row for row in store.jobs(active_only=False)}
    stretches = [
        stretch
        for stretch in stretched(store.decisions_within(start, end), start, end, jobs)
        if not wanted or stretch.decision.job_id in wanted
    ]
    total, rows, moves, counted, acted = FigureSums(), list[JobAdvice](), list[MoveAdvice](), 0, 0
    for job_id, some in groupby(stretches, key=lambda stretch: stretch.decision.job_id):
        mine, whole = list(some), FigureSums()
        for stretch in mine:
            whole.add(stretch)
        owner = jobs[job_id]
        seen = may_see(viewer, owner)
        if seen or not (viewer.private or wanted):
            total.merge(whole)
            counted += 1
            acted += sum(stretch.decision.mode == "act" for stretch in mine)
        if seen:
            rows.append(_job(owner, viewer, whole))
            moves += [_move(owner, viewer, run) for run in runs(mine)]
    return Advice(
        start=start,
        end=end,
        acted=acted,
        cluster=made_from(ClusterAdvice, total, jobs=counted),
        jobs=tuple(rows),
        moves=tuple(moves),
        waited=tuple(wait.record() for wait in waited(stretches) if _visible(viewer, jobs.get(wait.job_id))),
    )


def stretched(
    decisions: Sequence[DecisionRow], start: float, end: float, jobs: Mapping[int, JobRow]
) -> list[StandingDecision]:
    """Running jobs' decisions with the time that each stood within [start, end]; `decisions` by job, oldest first."""
    found: list[StandingDecision] = []
    for job_id, some in groupby(decisions, key=lambda row: row.job_id):
        rows = list(some)
        owner = jobs.get(job_id)
        if owner is None:
            continue
        over = min(end, owner.end_time) if owner.end_time is not None else end
        before: StandingDecision | None = None
        for row, until in zip(rows, [row.at for row in rows[1:]] + [over], strict=True):
            stretch = StandingDecision(row, max(row.at, start), min(until, over), read(Evidence, row.evidence))
            if stretch.seconds <= 0 or row.gpus_from < 1:
                continue
            stretch.again = before is not None and before.advises and _same(before.decision, row)
            found.append(stretch)
            before = stretch
    return found


def _same(one: DecisionRow, other: DecisionRow) -> bool:
    return (one.gpus_from, one.gpus_to, one.batch_from, one.batch_to) == (
        *(other.gpus_from, other.gpus_to, other.batch_from, other.batch_to),
    )


def runs(stretches: Iterable[StandingDecision]) -> list[list[StandingDecision]]:
    """One job's advised moves: stretches that advise the same, one after another, belong together."""
    found: list[list[StandingDecision]] = []
    for stretch in stretches:
        if stretch.advises:
            if stretch.again and found:
                found[-1].append(stretch)
            else:
                found.append([stretch])
    return found


def waited(stretches: Iterable[StandingDecision]) -> list[Wait]:
    """Waiting jobs that some job was advised to shrink for, by id."""
    found: dict[int, Wait] = {}
    for stretch in stretches:
        row = stretch.decision
        if not stretch.advises:
            continue
        for need in stretch.evidence.for_jobs or ():
            wait = found.setdefault(need.job_id, Wait(need.job_id, need.gpus, stretch.start))
            wait.since = min(wait.since, stretch.start)
            wait.seconds[row.job_id] = wait.seconds.get(row.job_id, 0.0) + stretch.seconds
    return [found[job_id] for job_id in sorted(found)]


def _visible(viewer: Viewer, owner: JobRow | None) -> bool:
    """A job without a record is an ordinary one, of which the store knows no owner."""
    return viewer.admin if owner is None else may_see(viewer, owner)


def _job(job: JobRow, viewer: Viewer, whole: FigureSums) -> JobAdvice:
    hours = whole.seconds / 3600
    return made_from(
        JobAdvice,
        job,
        whole,
        own=viewer.uid == job.uid,
        gpus=whole.gpu_hours / hours,
        advised_gpus=whole.advised_gpu_hours / hours,
    )


def _move(job: JobRow, viewer: Viewer, run: Sequence[StandingDecision]) -> MoveAdvice:
    whole, first, last = FigureSums(), run[0].decision, run[-1].decision
    for stretch in run:
        whole.add(stretch)
    return made_from(
        MoveAdvice,
        job,
        last,
        whole,
        own=viewer.uid == job.uid,
        at=run[0].start,
        gpus=first.gpus_from,
        advised_gpus=first.gpus_to,
        batch=first.batch_from,
        advised_batch=first.batch_to,
        reason_text=reason_text(last.reason),
    )
