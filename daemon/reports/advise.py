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
from typing import TYPE_CHECKING, Any

from . import evidence
from .common import Viewer, may_see, reason_text

if TYPE_CHECKING:
    from slurm_elastic.db.rows import DecisionRow, JobRow
    from slurm_elastic.db.store import Store


@dataclass(slots=True)
class Stretch:
    """Time over which one decision stood."""

    decision: DecisionRow
    start: float
    end: float
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
        pause = evidence.number(self.decision.evidence, "pause_s") or 0.0
        return 0.0 if self.again or not self.advises else min(self.seconds, pause)

    def progress(self) -> tuple[float, float] | None:
        """(as it was, as advised) in seconds of progress at the job's smallest size; None: not known."""
        before = evidence.number(self.decision.evidence, "speedup_from")
        after = evidence.number(self.decision.evidence, "speedup_to") if self.advises else before
        if before is None or after is None:
            return None
        return before * self.seconds, after * (self.seconds - self.pause_s)


@dataclass(slots=True)
class Sum:
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

    def add(self, stretch: Stretch) -> None:
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
        if known is not None and stretch.advises and row.evidence.get("modelled"):
            self.modelled_s += stretch.seconds
            self.doubt_s += stretch.seconds * (evidence.number(row.evidence, "doubt") or 0.0)

    def merge(self, other: Sum) -> None:
        """Count another's."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def told(self) -> dict[str, Any]:
        """As an object; `change` is relative, `progress_h` in hours at the smallest size."""
        known = self.was > 0
        return {
            "seconds": self.seconds,
            "moves": self.moves,
            "gpu_hours": self.gpu_hours,
            "advised_gpu_hours": self.advised_gpu_hours,
            "pause_s": self.pause_s,
            "unknown_s": self.unknown_s,
            "modelled_s": self.modelled_s,
            "doubt": self.doubt_s / self.modelled_s if self.modelled_s else None,
            "progress_h": (self.would - self.was) / 3600 if known else None,
            "change": self.would / self.was - 1 if known else None,
        }


@dataclass(slots=True)
class Waited:
    """A waiting job that room would have been made for."""

    job_id: int
    gpus: int | None
    since: float
    seconds: dict[int, float] = field(default_factory=dict)
    """How long each of the jobs that would have given GPUs was advised to."""

    def told(self) -> dict[str, Any]:
        return {"job_id": self.job_id, "gpus": self.gpus, "at": self.since, "waited_s": max(self.seconds.values())}


def advice(
    store: Store, viewer: Viewer, now: float, *, start: float, end: float | None = None, job: Iterable[int] = ()
) -> dict[str, Any]:
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
    total, rows, moves, counted, acted = Sum(), list[dict[str, Any]](), list[dict[str, Any]](), 0, 0
    for job_id, some in groupby(stretches, key=lambda stretch: stretch.decision.job_id):
        mine, whole = list(some), Sum()
        for stretch in mine:
            whole.add(stretch)
        owner = jobs[job_id]
        seen = may_see(viewer, owner)
        if seen or not (viewer.private or wanted):
            total.merge(whole)
            counted += 1
            acted += sum(stretch.decision.mode == "act" for stretch in mine)
        if seen:
            who = _who(owner, viewer)
            rows.append(who | whole.told() | _means(whole))
            moves += [who | _move(run) for run in runs(mine)]
    known = [entry.told() for entry in waited(stretches) if _visible(viewer, jobs.get(entry.job_id))]
    cluster = total.told() | {"jobs": counted}
    return {"start": start, "end": end, "acted": acted, "cluster": cluster, "jobs": rows, "moves": moves,
            "waited": known}  # fmt: skip


def stretched(decisions: Sequence[DecisionRow], start: float, end: float, jobs: Mapping[int, JobRow]) -> list[Stretch]:
    """Running jobs' decisions with the time that each stood within [start, end]; `decisions` by job, oldest first."""
    found: list[Stretch] = []
    for job_id, some in groupby(decisions, key=lambda row: row.job_id):
        rows = list(some)
        owner = jobs.get(job_id)
        if owner is None:
            continue
        over = min(end, owner.end_time) if owner.end_time is not None else end
        before: Stretch | None = None
        for row, until in zip(rows, [row.at for row in rows[1:]] + [over], strict=True):
            stretch = Stretch(row, max(row.at, start), min(until, over))
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


def runs(stretches: Iterable[Stretch]) -> list[list[Stretch]]:
    """One job's advised moves: stretches that advise the same, one after another, belong together."""
    found: list[list[Stretch]] = []
    for stretch in stretches:
        if stretch.advises:
            if stretch.again and found:
                found[-1].append(stretch)
            else:
                found.append([stretch])
    return found


def waited(stretches: Iterable[Stretch]) -> list[Waited]:
    """Waiting jobs that some job was advised to shrink for, by id."""
    found: dict[int, Waited] = {}
    for stretch in stretches:
        row = stretch.decision
        if not stretch.advises:
            continue
        for need in evidence.objects(row.evidence, "for_jobs"):
            job_id = evidence.whole(need, "job_id")
            if job_id is not None:
                entry = found.setdefault(job_id, Waited(job_id, evidence.whole(need, "gpus"), stretch.start))
                entry.since = min(entry.since, stretch.start)
                entry.seconds[row.job_id] = entry.seconds.get(row.job_id, 0.0) + stretch.seconds
    return [found[job_id] for job_id in sorted(found)]


def _visible(viewer: Viewer, owner: JobRow | None) -> bool:
    """A job without a record is an ordinary one, of which the store knows no owner."""
    return viewer.admin if owner is None else may_see(viewer, owner)


def _who(job: JobRow, viewer: Viewer) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "own": viewer.uid == job.uid,
        "user": job.user,
        "uid": job.uid,
        "name": job.name,
        "account": job.account,
        "partition": job.partition,
        "state": job.state,
    }


def _means(whole: Sum) -> dict[str, Any]:
    hours = whole.seconds / 3600
    return {"gpus": whole.gpu_hours / hours, "advised_gpus": whole.advised_gpu_hours / hours}


def _move(run: Sequence[Stretch]) -> dict[str, Any]:
    whole, first, last = Sum(), run[0].decision, run[-1].decision
    for stretch in run:
        whole.add(stretch)
    return whole.told() | {
        "at": run[0].start,
        "gpus": first.gpus_from,
        "advised_gpus": first.gpus_to,
        "batch": first.batch_from,
        "advised_batch": first.batch_to,
        "mechanism": last.mechanism,
        "mode": last.mode,
        "gain": last.gain,
        "reason": last.reason,
        "reason_text": reason_text(last.reason),
    }
