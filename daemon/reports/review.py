"""What the daemon would have done while it did not act, and what that would have brought: `selastic review`.

Promise: each figure follows from stored decisions, held against what the job had at that moment; progress is the
planner's own figure, and hours for which it had none are counted as unknown, not as nothing. Limit: a comparison, no
simulation: had the first advice been followed, later ones would have been others. A decision counts as standing until
the job's next one, also while the daemon was down.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

from slurm_elastic.db.rows import DecisionRow, JobRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers import review as answers
from slurm_elastic.protocol.answers.explain import Evidence, RoomFor
from slurm_elastic.protocol.answers.record import made_from, read, reason_text

from .common import Viewer, may_see


@dataclass(slots=True)
class DecisionPeriod:
    """The time over which one decision was its job's latest."""

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
    def gpus(self) -> int:
        """What the job would have had."""
        return self.decision.gpus_to if self.advises else self.decision.gpus_from

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


def figures(stretches: Sequence[DecisionPeriod]) -> answers.ReviewFigures:
    """The sums over stretches, of one job or of many."""
    advised = [stretch for stretch in stretches if stretch.advises]
    known = [(stretch, progress) for stretch in stretches if (progress := stretch.progress()) is not None]
    modelled = [stretch for stretch, _ in known if stretch.advises and stretch.evidence.modelled]
    was, would = sum(before for _, (before, _) in known), sum(after for _, (_, after) in known)
    modelled_s = _seconds(modelled)
    doubt_s = sum(stretch.seconds * (stretch.evidence.doubt or 0.0) for stretch in modelled)
    return answers.ReviewFigures(
        seconds=_seconds(stretches),
        moves=sum(not stretch.again for stretch in advised),
        gpu_hours=sum(stretch.decision.gpus_from * stretch.seconds for stretch in stretches) / 3600,
        advised_gpu_hours=sum(stretch.gpus * stretch.seconds for stretch in stretches) / 3600,
        change=would / was - 1 if was > 0 else None,
        progress_h=(would - was) / 3600 if was > 0 else None,
        pause_s=sum(stretch.pause_s for stretch in advised),
        unknown_s=_seconds(stretch for stretch in advised if stretch.progress() is None),
        modelled_s=modelled_s,
        doubt=doubt_s / modelled_s if modelled_s else None,
    )


def _seconds(stretches: Iterable[DecisionPeriod]) -> float:
    return sum(stretch.seconds for stretch in stretches)


def review(
    store: Store, viewer: Viewer, now: float, *, start: float, end: float | None = None, job: Iterable[int] = ()
) -> answers.Review:
    """`moves`, `jobs` and `waited` of the jobs that the viewer may see, `cluster`: the sums over all jobs.

    start, end: the window in unix seconds; job: only these ids (empty: all), also in the sums. The sums leave out
    jobs that the viewer may not see where ids are named, since a sum over one job is that job's own figure, and where
    Slurm hides others' jobs.
    """
    end = now if end is None else min(end, now)
    wanted = set(job)
    jobs = {row.job_id: row for row in store.jobs.all(active_only=False)}
    stretches = [
        stretch
        for stretch in stretched(store.decisions.within(start, end), start, end, jobs)
        if not wanted or stretch.decision.job_id in wanted
    ]
    rows, moves, counted = list[answers.JobReview](), list[answers.MoveReview](), list[list[DecisionPeriod]]()
    for job_id, some in groupby(stretches, key=lambda stretch: stretch.decision.job_id):
        mine, owner = list(some), jobs[job_id]
        seen = may_see(viewer, owner)
        if seen or not (viewer.private or wanted):
            counted.append(mine)
        if seen:
            rows.append(_job(owner, viewer, figures(mine)))
            moves += [_move(owner, viewer, run) for run in runs(mine)]
    total = list(chain.from_iterable(counted))
    return answers.Review(
        start=start,
        end=end,
        acted=sum(stretch.decision.mode == "act" for stretch in total),
        cluster=made_from(answers.ClusterReview, figures(total), jobs=len(counted)),
        jobs=tuple(rows),
        moves=tuple(moves),
        waited=tuple(wait for wait in waited(stretches) if _visible(viewer, jobs.get(wait.job_id))),
    )


def stretched(
    decisions: Sequence[DecisionRow], start: float, end: float, jobs: Mapping[int, JobRow]
) -> list[DecisionPeriod]:
    """Running jobs' decisions with the time that each stood within [start, end]; `decisions` by job, oldest first."""
    found: list[DecisionPeriod] = []
    for job_id, some in groupby(decisions, key=lambda row: row.job_id):
        rows = list(some)
        owner = jobs.get(job_id)
        if owner is None:
            continue
        over = min(end, owner.end_time) if owner.end_time is not None else end
        before: DecisionPeriod | None = None
        for row, until in zip(rows, [row.at for row in rows[1:]] + [over], strict=True):
            stretch = DecisionPeriod(row, max(row.at, start), min(until, over), read(Evidence, row.evidence))
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


def runs(stretches: Iterable[DecisionPeriod]) -> list[list[DecisionPeriod]]:
    """One job's advised moves: stretches that advise the same, one after another, belong together."""
    found: list[list[DecisionPeriod]] = []
    for stretch in stretches:
        if stretch.advises:
            if stretch.again and found:
                found[-1].append(stretch)
            else:
                found.append([stretch])
    return found


def waited(stretches: Iterable[DecisionPeriod]) -> list[answers.WaitingReview]:
    """Waiting jobs that some job was advised to shrink for, by id."""
    advised = (stretch for stretch in stretches if stretch.advises)
    needs = [(need, stretch) for stretch in advised for need in stretch.evidence.for_jobs or ()]
    found = []
    for job_id, some in groupby(sorted(needs, key=_job_id), key=_job_id):
        mine, seconds = list(some), dict[int, float]()  # how long each of the others was advised to shrink
        for _, stretch in mine:
            giver = stretch.decision.job_id
            seconds[giver] = seconds.get(giver, 0.0) + stretch.seconds
        at, waited_s = min(stretch.start for _, stretch in mine), max(seconds.values())
        found.append(answers.WaitingReview(job_id=job_id, gpus=mine[0][0].gpus, at=at, waited_s=waited_s))
    return found


def _job_id(entry: tuple[RoomFor, DecisionPeriod]) -> int:
    return entry[0].job_id


def _visible(viewer: Viewer, owner: JobRow | None) -> bool:
    """A job without a record is an ordinary one: the store does not know its owner."""
    return viewer.admin if owner is None else may_see(viewer, owner)


def _job(job: JobRow, viewer: Viewer, whole: answers.ReviewFigures) -> answers.JobReview:
    hours = whole.seconds / 3600
    return made_from(
        answers.JobReview,
        job,
        whole,
        own=viewer.uid == job.uid,
        gpus=whole.gpu_hours / hours,
        advised_gpus=whole.advised_gpu_hours / hours,
    )


def _move(job: JobRow, viewer: Viewer, run: Sequence[DecisionPeriod]) -> answers.MoveReview:
    first, last = run[0].decision, run[-1].decision
    return made_from(
        answers.MoveReview,
        job,
        last,
        figures(run),
        own=viewer.uid == job.uid,
        at=run[0].start,
        gpus=first.gpus_from,
        advised_gpus=first.gpus_to,
        batch=first.batch_from,
        advised_batch=first.batch_to,
        reason_text=reason_text(last.reason),
    )
