"""Whether a running job may be resized at the beginning of a round, which of its nodes it trains on, and how long
its last resizes hold it back: cooldowns, the time after a failure, the limit within an hour. Pure.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from math import inf

from slurm_elastic.db.rows import InUse, ResizeRow
from slurm_elastic.protocol.codes import Reason, ResizeState
from slurm_elastic.protocol.messages import Piece
from slurm_elastic.protocol.records import record
from slurm_elastic.protocol.request import ElasticRequest

from ...capacity.ledger import Amount, per_node
from ...capacity.roster import ElasticJob
from ...capacity.shrink_options import Unit, units_of, without
from ...mechanisms import registry
from ...models.declared import only_idle
from ...slurm.site import Site
from ..settings import PlannerSettings
from .job import AcceptedSizes, RunningJob, asked_for
from .state import JobState

STALLED_WEIGHT = 0.001
"""What the weight of a job is multiplied by that does no step, or of whose speed nobody knows: it gives first."""


def running_job(
    job: ElasticJob,
    state: JobState,
    settings: PlannerSettings,
    now: float,
    site: Site | None = None,
    accepted: AcceptedSizes | None = None,
) -> RunningJob:
    """A running job as a round finds it. accepted: its sizes, where they are known."""
    site, accepted = site or Site(), accepted or AcceptedSizes(*asked_for(job, state.too_large))
    held, used = job.pieces, state.in_use.pieces if state.in_use and not state.in_use.refusal else ()
    pieces = held if held == used else without(held, units_of(held) - units_of(used))
    registered = bool(pieces) and pieces[0].kind == "base"
    if not registered:
        pieces = held
    left = units_of(held) - units_of(used) if registered and state.resize is None and held != used else set()
    kept = _stuck(held, left, state) if left else set()
    frozen = _frozen(job, state, pieces, registered, bool(kept), accepted)
    growth = _open_growth(state, pieces) if registered else None
    rest = Rest() if frozen else rested(cooled(state, settings, now), state, settings, now)
    idle = only_idle(job.request, state.observations)
    more, gpus = state.given_nothing is None, sum(piece.gpus for piece in pieces)
    smaller = rest.most is None or any(gpus < size <= rest.most for size in accepted.ascending)
    return RunningJob(
        job=job,
        state=state,
        pieces=pieces,
        loose=_loose(job, state, used, kept) if registered and (held != used or state.resize is not None) else {},
        stuck=without(held, left - kept) if kept else (),
        frozen=frozen or rest.frozen,
        growing=growth is not None,
        may_grow=rest.may_grow and more and smaller,
        may_shrink=rest.may_shrink,
        may_rebatch=rest.may_rebatch and more,
        until=rest.until,
        weight=weight_of(job.request, settings) * (STALLED_WEIGHT if state.stalled or idle else 1.0),
        site=site,
        most=rest.most,
        fresh_until=rest.fresh_until,
        accepted=accepted,
    )


def not_listed(job: ElasticJob, in_use: InUse | None) -> list[Piece]:
    """What it trains on as companions that the snapshot does not list as running: they started after it was taken, or
    they have ended and the supervisor does not know yet."""
    listed = {held.job.job_id for held in job.held}
    pieces = in_use.pieces if in_use is not None else ()
    return [piece for piece in pieces if piece.kind == "companion" and piece.slurm_job_id not in listed]


def _stuck(held: Iterable[Piece], left: set[Unit], state: JobState) -> set[Unit]:
    """Of the units that the training has left those that stay with the job."""
    in_parts, _ = state.releases
    idle = ((piece, units_of((piece,)) & left) for piece in held)
    return {unit for piece, units in idle if registry.stuck(piece, units, in_parts) for unit in units}


def _frozen(
    job: ElasticJob, state: JobState, pieces: tuple[Piece, ...], registered: bool, stuck: bool, accepted: AcceptedSizes
) -> Reason | None:
    if state.in_use is not None and state.in_use.refusal:
        return Reason.KEEP_NOT_UNDERSTOOD
    if not registered:
        return Reason.KEEP_UNREGISTERED
    if state.resize is not None or not_listed(job, state.in_use):
        return Reason.KEEP_RESIZING
    if state.pinned is not None:
        there = state.pinned == sum(piece.gpus for piece in pieces) and not stuck
        if there or state.pinned not in accepted.every:
            return Reason.KEEP_PINNED
    return None


def _open_growth(state: JobState, pieces: tuple[Piece, ...]) -> ResizeRow | None:
    """Its open resize, if that only adds, training has not switched to it yet, and its owner has not asked for it."""
    resize = state.resize
    if resize is None or state.pinned is not None or not resize.state.comes_before(ResizeState.RUNNING):
        return None
    return resize if resize.add and units_of(resize.keep) == units_of(pieces) else None


def _loose(
    job: ElasticJob, state: JobState, trained_on: tuple[Piece, ...], stuck: Collection[Unit]
) -> dict[Unit, Amount]:
    used = units_of(trained_on)
    wanted = used | set(stuck)
    if state.resize is not None and state.resize.state != ResizeState.RUNNING:
        # What it adds is trained on where the switch came after the resize was read: resizes are read first.
        stays = units_of(state.resize.keep) | units_of(h.piece for h in job.held if h.resize == state.resize.id)
        # Given up by the resize under way: still trained on, and on its way out.
        wanted = (wanted | stays) - (used - stays)
    base = job.held[0]
    wanted.add((base.job.job_id, base.job.batch_host))
    return {
        (held.job.job_id, node): per_node(held.job)
        for held in job.held
        for node in held.piece.nodes
        if (held.job.job_id, node) not in wanted
    }


def weight_of(request: ElasticRequest, settings: PlannerSettings) -> float:
    """The request's weight as far as the site lets it count."""
    return min(request.weight, settings.max_weight)


HOUR_S = 3600.0
LEAST_COOLDOWN_S = 60.0
"""Until the new size has been reported a few times."""
CLOCK_S = 600.0
"""What lies further in the future was stored by a wrong clock: nobody waits for it."""


@record(frozen=True, slots=True)
class Rest:
    """What its last resizes leave a job free to do, and until when that holds."""

    may_grow: bool = True
    may_shrink: bool = True
    may_rebatch: bool = True
    until: float | None = None
    frozen: Reason | None = None
    fresh_until: float = inf
    most: int | None = None
    """GPUs that it may try, for Slurm has refused it more; None: it has not."""


def rested(rest: Rest, state: JobState, settings: PlannerSettings, now: float) -> Rest:
    """Apply the limit of resizes within an hour."""
    limit, times = settings.max_resizes_per_job_hour, state.resized
    if len(times) < limit:
        return rest
    free = times[-limit] + HOUR_S
    if now >= free:
        return rest
    until, fresh = max(free, rest.until or 0.0), min(free, rest.fresh_until)
    return replace(rest, may_grow=False, may_shrink=False, until=until, fresh_until=fresh)


def cooldown_s(longest_s: float, pause_s: float | None, settings: PlannerSettings) -> float:
    """How long a resize holds a job back: `cooldown_pauses` of its mean pauses (None: not measured), within
    LEAST_COOLDOWN_S and `longest_s`. A pause of seconds is earned back in a minute, one of a minute is not."""
    if not settings.cooldown_pauses:
        return longest_s
    pause = settings.assumed_pause_s if pause_s is None else pause_s
    return min(longest_s, max(LEAST_COOLDOWN_S, settings.cooldown_pauses * pause))


def cooled(state: JobState, settings: PlannerSettings, now: float) -> Rest:
    """Apply the cooldowns and the time after a failure: to the nodes, and to the batch alone.

    The batch waits until what it would be chosen from has been reported: of a new size, and of the batch before. Its
    own changes hold nothing else back: they take no node, and hardly a pause.

    After a growth that failed, or a companion that never came, the job only does not grow for a while: it gives way.
    Where Slurm refused the companion at once, half of what that was to add may be tried meanwhile, then half of that.
    A growth whose nodes somebody else got, or needed, is planned again at once, and so is what was given up for a job
    that did not take it, because a companion's time was over, or on a node that was drained. After a shrink that failed
    nothing is done to it for a tenth of the time after a failure, twice as long after each further one; then it gives
    way.
    """
    rest, of_batch = _after_resize(state, settings, now), _batch_until(state.last_batch, state, settings, now)
    if of_batch is None:
        return rest
    return replace(rest, may_rebatch=False, fresh_until=min(rest.fresh_until, of_batch))


def _batch_until(last: ResizeRow | None, state: JobState, settings: PlannerSettings, now: float) -> float | None:
    """How long its last change holds the batch back; None: it does not."""
    if last is None or last.state == ResizeState.OVERTAKEN or last.updated > now + CLOCK_S:
        return None
    waits_s = settings.failed_backoff_s
    if last.state == ResizeState.DONE:
        waits_s = cooldown_s(settings.cooldown_grow_s, state.batch_pause_s or 0.0, settings)
    return last.updated + waits_s if now < last.updated + waits_s else None


def _after_resize(state: JobState, settings: PlannerSettings, now: float) -> Rest:
    last = state.last
    if last is None or last.state == ResizeState.OVERTAKEN or last.updated > now + CLOCK_S:
        return Rest()
    if last.state == ResizeState.DONE:
        if state.gave_in_vain or (last.reason in _NOT_ITS_CHOICE and not last.add):
            return Rest()
        grow, shrink = (
            last.updated + cooldown_s(longest_s, state.pause_s, settings)
            for longest_s in (settings.cooldown_grow_s, settings.cooldown_shrink_s)
        )
        reported = min(last.updated + LEAST_COOLDOWN_S, max(grow, shrink))
        times = [t for t in (grow, shrink, reported) if t > now]
        if not times:
            return Rest()
        return Rest(now >= grow, now >= shrink, now >= reported, until=max(times), fresh_until=min(times))
    until = last.updated + settings.failed_backoff_s
    if now >= until:
        return Rest()
    if last.state == ResizeState.FAILED and not last.add:
        gives_way = last.updated + min(1.0, 2 ** min(20, max(0, state.failures - 1)) / 10) * settings.failed_backoff_s
        if now < gives_way:
            return Rest(False, False, until=until, frozen=Reason.KEEP_FAILED, fresh_until=gives_way)
        return Rest(False, False, False, until=until, fresh_until=until)
    if _refused_at_once(last):
        added = sum(shape.gpus for shape in last.add)
        return Rest(until=until, fresh_until=until, most=last.gpus - added + added // 2)
    return Rest(may_grow=False, until=until, fresh_until=until)


def _refused_at_once(last: ResizeRow) -> bool:
    """Whether Slurm refused what was asked for, and was not waited for in vain."""
    asked, at = last.phases[-2:][0]
    refused = last.state == ResizeState.WITHDRAWN and asked == ResizeState.SUBMITTED
    return refused and last.updated - at < last.wait_s / 2


_NOT_ITS_CHOICE = (Reason.COMPANION_ENDS, Reason.SHRINK_DRAIN)
