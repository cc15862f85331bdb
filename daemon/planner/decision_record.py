"""One round's plan with what is written down about it: the rows that `selastic explain` reads. Pure.

Promise: a row for every elastic job that runs or waits, whether or not anything becomes of it, unless the same decision
stands already. Limit: nothing here decides; what is not known is left out of the Evidence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import nsmallest
from operator import attrgetter
from typing import Any

from slurm_elastic.db.rows import DecisionRow, Mark
from slurm_elastic.protocol.answers.explain import Alternative, Evidence, OtherMove, PassedOver, RoomFor
from slurm_elastic.protocol.answers.record import known_values
from slurm_elastic.protocol.codes import Reason, ResizeState

from ..capacity.make_room import RoomMade
from ..capacity.pending_jobs import by_node, lasting
from ..capacity.roster import ElasticJob
from ..mechanisms.base import pause_s
from ..optimizer.models import goodput
from ..optimizer.models.throughput import ThroughputModel
from ..optimizer.speedups import doubts_at, speeds_at
from ..optimizer.weights import GroupShare
from ..slurm.model import Size
from .context import Inputs
from .decide import Plan, decide
from .moves import Move, nearest_batch
from .pools.candidate import Candidate, progress_of, rests
from .running.eligibility import weight_of
from .running.job import RunningJob
from .settings import SMALLEST, PlannerSettings

MOST_OTHERS = 16
"""Most other jobs that one row names."""
MOST_NAMED = 3
"""Most waiting jobs that one alternative names."""
QUALITY_GAIN = 0.1
"""Least gain by which a user is told of until=quality."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Throughput and progress before and after, with the reports behind them."""

    reports_from: int
    reports_to: int
    samples_per_s_from: float | None = None
    samples_per_s_to: float | None = None
    modelled: bool | None = None
    doubt: float | None = None
    speedup_from: float | None = None
    speedup_to: float | None = None
    considered: tuple[tuple[int, int, float, float | None], ...] = ()
    """The next best sizes: GPUs, batch, value, samples/s."""


_SPEEDS = [name for name in Speeds.__dataclass_fields__ if name != "considered"]
"""The fields of Evidence that they are."""


def plan_round(inputs: Inputs, with_rows: bool = True) -> Plan:
    """The plan of one round. with_rows: False: nobody reads the rows, and there are none."""
    plan = decide(inputs)
    if with_rows:
        plan.rows = tuple(DecisionRecord(plan).rows())
    return plan


class DecisionRecord:
    """What is written down of the decisions of one round."""

    def __init__(self, made: Plan) -> None:
        self.made, self.context, self.inputs = made, made.context, made.context.inputs
        self.settings, self.now = self.inputs.settings, self.inputs.now
        self.begun = {move.target_size.running.job_id for move in made.begun}
        self.makes_room: dict[int, list[RoomMade]] = {}
        """By elastic job, the waiting jobs that it makes room for."""
        for served in self.context.room.served:
            for job_id in served.givers:
                self.makes_room.setdefault(job_id, []).append(served)

    def rows(self) -> list[DecisionRow]:
        """A row for every elastic job, by job id, but for those whose decision is the one that stands."""
        marks = {job_id: self._mark(job_id) for job_id in self.context.running_jobs}
        new = [job_id for job_id, mark in marks.items() if mark != self.inputs.marks.get(job_id)]
        moves = {job_id: self.made.moves[job_id] for job_id in new if job_id in self.made.moves}
        speeds = dict(zip(moves, speeds_of(list(moves.values())), strict=True))
        found = [self._row(job_id, marks[job_id], speeds.get(job_id)) for job_id in new]
        return sorted(found + self._of_waiting(), key=attrgetter("job_id"))

    def _mark(self, job_id: int) -> Mark:
        """What a row has beside its evidence; of a job that is left as it is, what it is coming to."""
        running, move, mode = self.context.running_jobs[job_id], self.made.moves.get(job_id), self.settings.mode
        if move is None:
            to = running.state.resize or running
            reason = running.frozen or Reason.KEEP_BEST
            return running.gpus, to.gpus, running.batch, to.batch, reason.value, "", mode
        wanted, mechanism = move.target_size, move.mechanism if move.changes else ""
        return running.gpus, move.gpus, running.batch, wanted.batch, wanted.reason.value, mechanism, mode

    def _row(self, job_id: int, mark: Mark, speeds: Speeds | None) -> DecisionRow:
        gpus_from, gpus_to, batch_from, batch_to, reason, mechanism, mode = mark
        move, pool = self.made.moves.get(job_id), self.made.pools.get(job_id)
        evidence, value, gain, alternatives = self._common(job_id, move), None, None, list[Alternative]()
        if move is not None and speeds is not None:
            target = move.target_size.target
            planned = target if target is not None and target.gpus == gpus_to else None
            # A size that is only tried is no part of the optimizer's plan, and so has none of its gain.
            value = planned.value if planned is not None else None
            gain = self._progress[pool.name] if planned is not None and pool is not None and move.changes else None
            evidence |= self._of_move(move, speeds)
            evidence |= self._of_change(move, planned is not None) if move.changes else {}
            alternatives = _alternatives(speeds) or _kept_more(move, self.makes_room.get(job_id, ()))
        known = known_values(Evidence(**evidence))
        others = [other for other in self._others if other["job_id"] != job_id] if move and move.changes else []
        return DecisionRow(
            job_id=job_id,
            at=self.now,
            gpus_from=gpus_from,
            gpus_to=gpus_to,
            batch_from=batch_from,
            batch_to=batch_to,
            reason=reason,
            value=value,
            gain=gain,
            evidence={**known, "others": others[:MOST_OTHERS]} if others else known,
            alternatives=[known_values(one) for one in alternatives],
            mechanism=mechanism,
            mode=mode,
        )

    @cached_property
    def _others(self) -> list[dict[str, Any]]:
        """Those who move, the largest changes first, as many as a row names beside its own job; the OtherMove of each
        as the store keeps it: all rows of a round name the same."""
        largest = nsmallest(MOST_OTHERS + 1, (m for m in self.made.moves.values() if m.changes), key=_by_change)
        return [known_values(_other(move, speeds)) for move, speeds in zip(largest, speeds_of(largest), strict=True)]

    @cached_property
    def _progress(self) -> dict[str, float | None]:
        """What the optimizer's plan of each pool gains in jobs' worth of progress: speedups, pauses left out; None
        where a model is missing."""
        found = dict[str, float | None]()
        for pool, (members, plan) in self.made.allocation.plans.items():
            changes = progress_of(members, plan.targets, self.inputs.tables.progress)
            known = [change for change in changes if change is not None]
            found[pool] = sum(known) if len(known) == len(changes) else None
        return found

    @cached_property
    def _unlisted(self) -> dict[str, str]:
        """By pool, GPUs in use on its nodes that no job holds, in words."""
        left_out = lasting(self.context.unlisted, self.inputs.unlisted_before)
        nodes = {pool.name: pool.nodes for pool in self.made.pools.values()}
        return {pool: by_node({name: left_out[name] for name in left_out if name in of}) for pool, of in nodes.items()}

    def _of_move(self, move: Move, speeds: Speeds) -> dict[str, Any]:
        """What is said of a job that could be moved."""
        wanted, limit = move.target_size, self.context.limiting_reasons.get(move.target_size.running.job_id)
        worth, gain = _quality(wanted.running, move.gpus, wanted.batch, wanted.candidate) or (None, None)
        about = {name: getattr(speeds, name) for name in _SPEEDS}
        exact = wanted.target.exact if wanted.target is not None else None
        return dict(
            **about, next=self._next(move), limit=limit or None, sample_worth=worth, quality_gain=gain,
            exact_gpus=exact if wanted.target is not None and exact != wanted.target.gpus else None,
        )  # fmt: skip

    def _of_change(self, move: Move, planned: bool) -> dict[str, Any]:
        """What is said of a job only when it is to change. `planned`: the size is the optimizer's."""
        running, settings = move.target_size.running, self.settings
        own, likely = running.pause_s, running.likely_pause_s
        if move.of_batch:
            own, likely = running.state.batch_pause_s, None
        elif any(mechanism.restarts for mechanism in move.by):
            own, likely = running.requeue_s, running.likely_requeue_s
        return dict(
            starts="now" if running.job_id in self.begun else "later",
            passed_over=tuple(PassedOver(mechanism=name, why=why) for name, why in move.passed_over(settings).items()),
            pause_s=move.cost_s(settings),
            pause_measured=own is not None,
            pause_likely=True if own is None and likely is not None else None,
            tried=True if not planned and move.target_size.reason is Reason.GROW_IDLE else None,
        )

    def _next(self, move: Move) -> str | None:
        """What is tried next, or what stands in the way."""
        job_id, pool = move.target_size.running.job_id, self.made.pools.get(move.target_size.running.job_id)
        if move.target_size.target is not None and pool is not None and not move.changes:
            _, plan = self.made.allocation.plans[pool.name]
            if plan.held_back:
                least = f"below the least worth moving for ({self.settings.min_gain:g})"
                return f"the best other plan gains {plan.gain:.3f}, {least}"
        if move.changes and job_id not in self.begun:
            return f"it is resized as soon as it can be: {move.later or 'enough resizes were begun in this round'}"
        return self.context.limiting_reasons.get(job_id) or None

    def _common(self, job_id: int, move: Move | None) -> dict[str, Any]:
        """The evidence that every row of a running job has."""
        running, settings, weights = self.context.running_jobs[job_id], self.settings, self.context.weights
        state, pool, served = running.state, self.made.pools.get(job_id), self.makes_room.get(job_id, [])
        candidate = move.target_size.candidate if move is not None else None
        own = state.model if running.measured and isinstance(state.model, ThroughputModel) else None
        until = running.until if running.until is not None and running.until > self.now else None
        failed = state.last is not None and state.last.state != ResizeState.DONE
        weight, counts = running.job.request.weight, weight_of(running.job.request, settings)
        short, first = weights.short.get(job_id, 1.0), served[0].need if served else None
        given = [RoomFor(job_id=s.need.job_id, gpus=s.need.gpus, given=s.givers[job_id]) for s in served]
        return dict(
            idle_gpus=self.made.idle[pool.name] if pool else 0,
            capacity_gpus=self.made.capacity[pool.name] if pool else 0,
            pool=pool.name if pool else "",
            pause_s=pause_s(running, settings),
            pause_measured=state.pause_s is not None,
            pause_likely=True if state.pause_s is None and state.likely_pause_s is not None else None,
            horizon_s=candidate.horizon_s if candidate else settings.horizon_s,
            prior=(state.prior_words or None) if running.measured else None,
            line_share=round(own.line_share, 2) if own is not None and own.form == "straight line" else None,
            unfitted=state.unfitted or None,
            last_report_age_s=None if state.reported_at is None else max(0.0, round(self.now - state.reported_at, 3)),
            pinned=state.pinned,
            blocked_until=until if failed else None,
            cooldown_until=None if failed else until,
            resizes_in_hour=len(state.resized) if len(state.resized) >= settings.max_resizes_per_job_hour else None,
            weight_asked=weight if counts < weight else None,
            weight_counts=settings.max_weight if counts < weight else None,
            weight_factor=round(short, 3) if short != 1.0 else None,
            **_share(weights.shares.get(job_id)),
            resize=state.resize.id if state.resize is not None else None,
            unlisted=(self._unlisted[pool.name] if pool else "") or None,
            asleep_gpus=self.context.asleep.get(job_id, 0) or None,
            for_job=first.job_id if first is not None else None,
            for_gpus=first.gpus if first is not None else None,
            for_jobs=tuple(given) or None,
        )

    def _of_waiting(self) -> list[DecisionRow]:
        """The rows of elastic jobs in Slurm's queue."""
        first = {**self.made.first.aims, **self.made.first.starts}
        served = {entry.need.job_id: entry for entry in self.context.room.served}
        jobs = [job for job in self.inputs.roster.elastic.values() if job.base.pending]
        return [self._row_of_waiting(job, served.get(job.job_id), first.get(job.job_id)) for job in jobs]

    def _row_of_waiting(self, job: ElasticJob, served: RoomMade | None, first: Size | None) -> DecisionRow:
        """`first`: the size that it is to start at, if it is not what it asks for now."""
        gpus = job.base.gpus + sum(part.gpus for part in job.components)
        evidence = Evidence(for_gpus=gpus, slurm_reason=job.base.reason, next=_coming(served, first, self.settings))
        return DecisionRow(
            job_id=job.job_id,
            at=self.now,
            gpus_from=0,
            gpus_to=0 if served is None else first.gpus if first is not None else gpus,
            batch_from=0,
            batch_to=0,
            reason=Reason.WAITING.value,
            value=None,
            gain=None,
            evidence=known_values(evidence),
            mode=self.settings.mode,
        )


def _quality(running: RunningJob, gpus: int, batch: int, candidate: Candidate | None) -> tuple[float, float] | None:
    """(worth of a sample, gain at the same size with until=quality) of a job that trains epochs at a batch that wastes
    many samples, if it trains until a quality is reached. None: it wastes few, or they are not known."""
    noise = running.state.noise_scale
    if candidate is None or noise is None or running.job.request.until != "epochs" or batch < 1:
        return None
    reference = (running.state.reference or (gpus, batch))[1]
    worth = {b: goodput.efficiency(b, max(1, reference), noise) for b in (batch, *running.job.request.batches(gpus))}
    (speeds,) = speeds_at([(candidate, [(gpus, b) for b in worth])])
    if not speeds:
        return None
    best = max(speed * each for speed, each in zip(speeds, worth.values(), strict=True))
    gain = best / (speeds[0] * worth[batch]) - 1.0
    return (round(worth[batch], 3), round(gain, 3)) if gain >= QUALITY_GAIN else None


def _coming(served: RoomMade | None, first: Size | None, settings: PlannerSettings) -> str | None:
    """What becomes of a job in Slurm's queue."""
    if served is None:
        return None
    given = sum(served.givers.values())
    room = f"elastic jobs give up {given} GPUs for it" if served.givers else "there is room for it"
    if first is None:
        return room
    of = "the smallest size that it accepts" if settings.first_size == SMALLEST else "what the plan gives it"
    return f"it starts with {first.gpus} GPUs ({of}; first_size) and grows from there; {room}"


def _share(share: GroupShare | None) -> dict[str, Any]:
    if share is None:
        return {}
    names = ", ".join(name for name, _ in share.group)
    return {"share_of": names, "share_part": round(share.part, 4), "share_jobs": share.jobs}


def _other(move: Move, speeds: Speeds) -> OtherMove:
    before, after = speeds.samples_per_s_from, speeds.samples_per_s_to
    change = after / before - 1.0 if before and after is not None else None
    running = move.target_size.running
    return OtherMove(job_id=running.job_id, gpus_from=running.gpus, gpus_to=move.gpus, change=change)


def _by_change(move: Move) -> tuple[int, int]:
    running = move.target_size.running
    return -abs(move.gpus - running.gpus), running.job_id


def _alternatives(speeds: Speeds | None) -> list[Alternative]:
    found = speeds.considered if speeds is not None else ()
    return [
        Alternative(gpus=gpus, batch=batch, value=value, samples_per_s=speed) for gpus, batch, value, speed in found
    ]


def _kept_more(move: Move, served: Sequence[RoomMade]) -> list[Alternative]:
    """The next size above the one that is left to a job which makes room, and why it was not left that one."""
    running = move.target_size.running
    if not served or not move.target_size.forced:
        return []
    size = min((k for k in rests(running, frozenset()) if move.gpus < k <= running.gpus), default=running.gpus)
    names = ", ".join(str(entry.need.job_id) for entry in served[:MOST_NAMED])
    batch = nearest_batch(running.job.request.batches(size), running.batch)
    return [Alternative(gpus=size, batch=batch, why=f"too few would be left for {names} to start")]


def speeds_of(moves: Sequence[Move]) -> list[Speeds]:
    """Those of each move's job: before, after, and at the sizes that were considered. All models are asked at once."""
    reports = [_reports(move.target_size.running) for move in moves]
    targets = [move.target_size.target for move in moves]
    others = [target.alternatives if target is not None else () for target in targets]
    members = [move.target_size.candidate for move in moves]
    sizes = [_considered(move, own) for move, own in zip(moves, others, strict=True)]
    speeds = speeds_at(list(zip(members, sizes, strict=True)))
    gpus = [move.gpus for move in moves]
    unseen = [m if size not in known else None for m, size, known in zip(members, gpus, reports, strict=True)]
    doubts = doubts_at(list(zip(unseen, gpus, strict=True)))
    return [_speeds(*each) for each in zip(moves, reports, others, speeds, doubts, strict=True)]


_Others = tuple[tuple[int, int, float], ...]
"""(GPUs, batch, value)"""


def _reports(running: RunningJob) -> dict[int, int]:
    """By GPUs, how many reports there are; what is declared alone (models/declared.py) is none."""
    counts: dict[int, int] = {}
    for seen in running.state.observations:
        if seen.last_at:
            counts[seen.gpus] = counts.get(seen.gpus, 0) + seen.count
    return counts


def _considered(move: Move, others: _Others) -> list[tuple[int, int]]:
    """Before, after, the least that the request accepts, and the others."""
    running, request, batch = move.target_size.running, move.target_size.running.job.request, move.target_size.batch
    least = request.min_gpus, max(request.batches(request.min_gpus), default=batch)
    return [(running.gpus, running.batch), (move.gpus, batch), least, *((gpus, batch) for gpus, batch, _ in others)]


def _speeds(
    move: Move, reports: Mapping[int, int], others: _Others, speeds: Sequence[float], doubt: float | None
) -> Speeds:
    counts = reports.get(move.target_size.running.gpus, 0), reports.get(move.gpus, 0)
    if not speeds:
        return Speeds(*counts, considered=tuple((*other, None) for other in others))
    before, after, unit, *rest = speeds
    return Speeds(
        *counts,
        samples_per_s_from=before,
        samples_per_s_to=after,
        modelled=move.gpus not in reports,
        doubt=None if doubt is None else round(doubt, 3),
        speedup_from=before / unit,
        speedup_to=after / unit,
        considered=tuple((*other, round(speed, 3)) for other, speed in zip(others, rest, strict=True)),
    )
