"""A movable job of a pool as the optimizer sees it: all that it may come to, and what a plan gains such jobs. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from slurm_elastic.protocol.messages import Piece
from slurm_elastic.protocol.records import record
from slurm_elastic.protocol.request import ElasticRequest

from ...capacity.placement import whole_sizes
from ...capacity.shrink_options import ShrinkableJob, Unit, nodes_left
from ...derived.table import Derived
from ...mechanisms import registry
from ...mechanisms.base import pause_s
from ...optimizer.job_view import JobView, Model
from ...optimizer.models import goodput
from ...optimizer.plan import Target
from ...optimizer.policies import POLICIES
from ...optimizer.speedups import speeds_at
from ..running.job import AcceptedSizes, RunningJob
from ..settings import PlannerSettings

Sizes = Mapping[int, int]
"""GPUs -> nodes."""
AlikeKey = tuple[AcceptedSizes, int, tuple[Any, ...], int, int]
Alike = Derived[AlikeKey, AlikeKey, tuple[Sizes, tuple[tuple[int, int], ...]]]
"""What `alike_sizes` gives, under what it is made from: most jobs share a few."""


@record(frozen=True, slots=True, eq=False, kw_only=True)
class Candidate(JobView):
    """A movable job of a pool."""

    running: RunningJob
    forced: frozenset[Unit]
    """The units that it gives up for others."""
    downs: Sizes
    """Every size that it can come down to; the largest is what is left after the forced units."""
    rest: int
    """The largest of `downs`: the most GPUs that it keeps when it gives up what others need."""


@record(frozen=True, slots=True)
class Batches:
    """The request's batches; where only the batch could change and that is not to be, the present one."""

    request: ElasticRequest
    settled: bool = False
    gpus: int = 0
    batch: int = 0
    reference: int = 1
    noise_scale: float | None = None
    """Read only where the request guards its range."""

    def __call__(self, size: int) -> tuple[int, ...]:
        if self.settled and size == self.gpus and self.batch > 0:
            return (self.batch,)
        found = self.request.batches(size)
        if not self.request.guard:
            return found
        return goodput.guarded(found, self.reference, self.noise_scale, self.request.guard / 100)


CandidateInputs = tuple[
    RunningJob, Model | None, float | None, frozenset[Unit], int, int, float, float, PlannerSettings
]  # fmt: skip
"""A running job, its model and its noise scale, the units that it gives up, GPUs it could gain, GPUs of a node, what
its weight is multiplied by to be fair, seconds in which a pause has to be earned back, settings."""


def candidate(asked: CandidateInputs, alike: Alike) -> Candidate | None:
    """The job as the optimizer sees it; None when it has no size to come to rest on."""
    running, model, noise, forced, room, node_gpus, factor, horizon_s, settings = asked
    state, request, node_gpus = running.state, running.job.request, max(1, node_gpus)
    restart = None if forced else registry.restarting(running, running.site)
    grows, restart_sizes = running.may_grow and running.can_add, frozenset[int]()
    if not forced and not state.slow and restart is None:
        of_pieces = tuple([(piece.kind, len(piece.nodes), piece.gpus_per_node) for piece in running.pieces])
        down = (request.via, state.releases, of_pieces) if running.may_shrink else (of_pieces,)
        most = bisect_right(running.accepted.ascending, running.gpus + room) if grows else 0
        ((downs, choices),) = alike.each([(running.accepted, running.gpus, down, most, node_gpus)])
        rest = running.gpus
    else:
        downs = rests(running, forced)
        if not downs:
            return None
        rest = max(downs)
        downs = downs if running.may_shrink else {rest: downs[rest]}
        larger = running.accepted.ascending if grows else ()
        reached = {**downs, **_larger(larger, rest, downs[rest], bisect_right(larger, rest + room), node_gpus)}
        by_restart = _restart_sizes(running, reached, rest + room, node_gpus) if restart else {}
        choices, restart_sizes = tuple(sorted({**reached, **by_restart}.items())), frozenset(by_restart)
    gpus, batch = state.reference or (running.gpus, running.batch)
    guard_noise = noise if request.guard else None
    return Candidate(
        label=str(running.job_id),
        model=model,
        choices=choices,
        batches=Batches(request, not running.may_rebatch, running.gpus, running.batch, max(1, batch), guard_noise),
        current_gpus=running.gpus,
        current_batch=running.batch,
        reference_gpus=max(1, gpus),
        reference_batch=max(1, batch),
        weight=running.weight * factor,
        pause_s=pause_s(running, settings),
        batch_pause_s=state.batch_pause_s or 0.0,
        horizon_s=horizon_s,
        noise_scale=noise,
        quality=request.until == "quality",
        least_per_gpu=settings.awake_gain if running.site.power_saving else 0.0,
        restart_sizes=restart_sizes,
        restart_pause_s=restart.cost_s(running, settings) if restart and restart_sizes else 0.0,
        running=running,
        forced=forced,
        downs=downs,
        rest=rest,
    )


def alike_sizes(asked: AlikeKey) -> tuple[Sizes, tuple[tuple[int, int], ...]]:
    """(`Candidate.downs`, its choices): the same for all jobs with pieces of these kinds and sizes, as long as no node
    of theirs is slow or needed by others.

    asked: the accepted sizes; the job's GPUs; what `_nodes_left` takes, or the pieces alone of a job that may not
    shrink; how many of the accepted sizes are in reach; GPUs of a node.
    """
    accepted, gpus, (*how, of_pieces), most, node_gpus = asked
    nodes = sum(count for _, count, _ in of_pieces)
    left = _nodes_left(how[0], how[1], of_pieces) if how else {}
    downs = {k: n for k, n in left.items() if k in accepted.every}
    downs[gpus] = nodes
    return downs, tuple(sorted({**downs, **_larger(accepted.ascending, gpus, nodes, most, node_gpus)}.items()))


def _larger(accepted: Sequence[int], gpus: int, nodes: int, most: int, node_gpus: int) -> dict[int, int]:
    """The sizes above one that lies on so many nodes, up to the place `most`, with their nodes."""
    return {size: nodes + -(-(size - gpus) // node_gpus) for size in accepted[bisect_right(accepted, gpus) : most]}


def rests(running: RunningJob, forced: frozenset[Unit]) -> dict[int, int]:
    """Accepted sizes that the job may come down to, with their nodes; unforced, the present size is one of them."""
    found = {}
    if forced or running.may_shrink:
        if forced or running.state.slow:
            left = nodes_left(running.shrinkable, forced)
        else:
            of_pieces = tuple([(piece.kind, len(piece.nodes), piece.gpus_per_node) for piece in running.pieces])
            left = _nodes_left(running.job.request.via, running.state.releases, of_pieces)
        found = {k: nodes for k, nodes in left.items() if k in running.accepted.every}
    if not forced:
        found[running.gpus] = sum(len(piece.nodes) for piece in running.pieces)
    return found


def _nodes_left(
    via: tuple[str, ...], releases: tuple[bool, bool], of_pieces: tuple[tuple[str, int, int], ...]
) -> Mapping[int, int]:
    """The same for all jobs with pieces of these kinds and sizes, as long as no node of theirs is slow."""
    pieces = tuple(
        Piece(number, kind, tuple(f"{number}.{node}" for node in range(count)), gpus)
        for number, (kind, count, gpus) in enumerate(of_pieces)
    )
    return nodes_left(ShrinkableJob(0, pieces, frozenset(), frozenset(), registry.drop_rules(via, *releases), {}))


def _restart_sizes(running: RunningJob, reached: Sizes, most: int, node_gpus: int) -> dict[int, int]:
    """The sizes that only a requeue reaches."""
    if not (running.may_grow and running.may_shrink):
        return {}
    wanted = (size for size in running.accepted.every if size not in reached and size <= most)
    return {size: next(whole_sizes(size, node_gpus)).nodes for size in wanted}


def staying(m: Candidate) -> Candidate:
    """The job with no choice: where it is, or where the forced units leave it."""
    if m.forced:  # the plan charges every size of a job that has to move anyway; so does the comparison
        return replace(m, choices=((m.rest, m.downs[m.rest]),))
    return replace(m, frozen=True)


def in_place(m: Candidate) -> Candidate:
    """The job with no size but the present one, at any batch; one that gives up units as `staying`."""
    nodes = next((count for gpus, count in m.choices if gpus == m.current_gpus), None)
    if m.forced or nodes is None:
        return staying(m)
    return replace(m, choices=((m.current_gpus, nodes),))


def gain_of(policy: str, members: Sequence[Candidate], values: Sequence[float], stays: Sequence[float]) -> float:
    """What the terms gain against staying, in relative gains of one job's progress, whatever its weight.

    The sum of all jobs' own changes, each taken as a gain, times the share of them that is gained by weight when losses
    are taken off. Without losses that is the sum of their gains, and so it is with equal weights: a job that counts as
    much as fifty others together is not moved for a fiftieth of what they would be.
    """
    rows = zip(members, values, stays, strict=True)
    changes = [(v - stay, (v - stay) / m.weight) for m, v, stay in rows if v != stay]
    gross = math.fsum(abs(weighted) for weighted, _ in changes)
    if not gross:
        return 0.0
    net = math.fsum(weighted for weighted, _ in changes)
    return net / gross * math.fsum(abs(own) for _, own in changes) / _worth(policy, members, stays)


def _worth(policy: str, members: Sequence[Candidate], stays: Sequence[float]) -> float:
    """What a relative gain of progress is worth in the objective, in the mean over the jobs: u'(s) s.

    1 with logarithms. With sums it is the progress itself, with `harmonic` its inverse: a term's amount by its weight.
    """
    if POLICIES[policy].relative or not members:
        return 1.0
    each = (abs(stay) / m.weight for m, stay in zip(members, stays, strict=True))
    return max(1e-12, math.fsum(each) / len(members))


def progress_of(members: Sequence[Candidate], targets: Sequence[Target], known: Progress) -> list[float | None]:
    """How much each job's speedup changes, against the size that it began with; None where that is not known."""
    pairs = list(zip(members, targets, strict=True))
    found = known.of({m.running.job_id: (m, t.gpus, t.batch) for m, t in pairs if _changes(m, t)})
    return [found.get(m.running.job_id, 0.0) if _known(m, t) else None for m, t in pairs]


Progress = Derived[int, tuple[Candidate, int, int], float]
"""By job id, how much its progress changes at so many GPUs and that batch."""


def progress_changes(asked: Sequence[tuple[Candidate, int, int]]) -> list[float]:
    """Those of `Progress`, by the models, asked all at once."""
    each = [
        (m, [(m.current_gpus, m.current_batch), (gpus, batch), (m.reference_gpus, m.reference_batch)])
        for m, gpus, batch in asked
    ]
    return [(then - now) / unit for now, then, unit in speeds_at(each)]


def _changes(view: JobView, target: Target) -> bool:
    """Whether its progress changes, and it is known by how much."""
    return _known(view, target) and (target.gpus, target.batch) != (view.current_gpus, view.current_batch)


def _known(view: JobView, target: Target) -> bool:
    return view.model is not None and min(view.current_gpus, view.current_batch, target.gpus, target.batch) >= 1
