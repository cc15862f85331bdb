"""How long a job's last resizes hold it back: cooldowns, the time after a failure, the limit within an hour. Pure."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from slurm_elastic.db.rows import ResizeRow
from slurm_elastic.protocol.codes import Reason, ResizeState
from slurm_elastic.protocol.records import record

from ..settings import PlannerSettings
from .state import JobState

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
