"""Whether a running job may be resized at the beginning of a round, and which of its nodes it trains on. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from slurm_elastic.db.rows import InUse, ResizeRow
from slurm_elastic.protocol.codes import Reason, ResizeState
from slurm_elastic.protocol.messages import Piece
from slurm_elastic.protocol.request import ElasticRequest

from ...capacity.ledger import Amount, per_node
from ...capacity.roster import ElasticJob
from ...capacity.shrink_options import Unit, units_of, without
from ...mechanisms import registry
from ...models.declared import only_idle
from ...slurm.site import Site
from ..settings import PlannerSettings
from .cooldown import Rest, cooled, rested
from .job import RunningJob
from .sizes import AcceptedSizes, asked_for
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
    site, accepted = site or Site(), accepted or AcceptedSizes(*asked_for(job))
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
