"""What a movable job may come to, whatever that is worth: sizes with their nodes. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from slurm_elastic.protocol.messages import Piece
from slurm_elastic.protocol.records import record

from ...capacity.requeue_placement import whole_sizes
from ...capacity.shrink_options import ShrinkableJob, Unit, nodes_left
from ...mechanisms import registry
from ...mechanisms.base import Mechanism
from ..running.job import RunningJob
from ..running.sizes import ascending_sizes, sizes


@record(frozen=True, slots=True)
class Options:
    """What a job may come to, whatever that is worth."""

    forced: frozenset[Unit]
    """The units that it gives up for others."""
    downs: Mapping[int, int]
    """GPUs -> nodes, for every size that it can come down to; the largest is what is left after the forced units."""
    rest: int
    """The largest of `downs`."""
    choices: tuple[tuple[int, int], ...]
    """All sizes, with their nodes."""
    restart_sizes: frozenset[int] = frozenset()
    """Those that only a restart reaches."""
    restart: Mechanism | None = None
    """How it is started again; None: there are no such sizes."""


def options(running: RunningJob, forced: frozenset[Unit], room: int, node_gpus: int) -> Options | None:
    """What the job may come to; None when it has no size to come to rest on. `room`: GPUs it could gain."""
    if not forced and not running.state.slow and registry.restarting(running, running.site) is None:
        grows = running.may_grow and running.can_add
        alike = tuple([(piece.kind, len(piece.nodes), piece.gpus_per_node) for piece in running.pieces])
        down = (running.job.request.via, running.state.releases, alike) if running.may_shrink else (alike,)
        reach = in_reach(running, forced, room) if grows else 0
        return _unforced(ascending_sizes(running.job), running.gpus, down, reach, max(1, node_gpus))
    downs = rests(running, forced)
    if not downs:
        return None
    rest = max(downs)
    if not running.may_shrink:
        downs = {rest: downs[rest]}
    choices = dict(downs)
    if running.may_grow and running.can_add:
        larger, per_node = ascending_sizes(running.job), max(1, node_gpus)
        for size in larger[bisect_right(larger, rest) : bisect_right(larger, rest + room)]:
            choices[size] = downs[rest] + -(-(size - rest) // per_node)
    restart = None if forced else registry.restarting(running, running.site)
    by_restart = _restart_sizes(running, choices, rest + room, node_gpus) if restart else {}
    every = _same(tuple(sorted({**choices, **by_restart}.items())))
    return Options(forced, downs, rest, every, frozenset(by_restart), restart if by_restart else None)


@lru_cache(maxsize=1 << 12)
def _unforced(accepted: tuple[int, ...], gpus: int, down: tuple[Any, ...], reach: int, node_gpus: int) -> Options:
    """The same for all jobs with pieces of these kinds and sizes, as long as no node of theirs is slow or needed by
    others. `down`: what `_nodes_left` takes, or the pieces alone of a job that may not shrink; `reach`: how many of the
    accepted sizes are in reach."""
    *how, alike = down
    nodes = sum(count for _, count, _ in alike)
    downs = {k: n for k, n in _nodes_left(*how, alike).items() if k in accepted} if how else {}
    downs[gpus] = nodes
    larger = accepted[bisect_right(accepted, gpus) : reach]
    choices = {**downs, **{size: nodes + -(-(size - gpus) // node_gpus) for size in larger}}
    return Options(_NO_UNITS, downs, gpus, _same(tuple(sorted(choices.items()))))


_NO_UNITS = frozenset[Unit]()


def rests(running: RunningJob, forced: frozenset[Unit]) -> dict[int, int]:
    """Accepted sizes that the job may come down to, with their nodes; unforced, the present size is one of them."""
    found = {}
    if forced or running.may_shrink:
        accepted, giver = sizes(running.job), running.shrinkable
        if forced or giver.slow:
            left = nodes_left(giver, forced)
        else:
            alike = tuple([(piece.kind, len(piece.nodes), piece.gpus_per_node) for piece in running.pieces])
            left = _nodes_left(running.job.request.via, running.state.releases, alike)
        found = {k: nodes for k, nodes in left.items() if k in accepted}
    if not forced:
        found[running.gpus] = sum(len(piece.nodes) for piece in running.pieces)
    return found


@lru_cache(maxsize=1 << 12)
def _nodes_left(
    via: tuple[str, ...], releases: tuple[bool, bool], alike: tuple[tuple[str, int, int], ...]
) -> Mapping[int, int]:
    """The same for all jobs with pieces of these kinds and sizes, as long as no node of theirs is slow."""
    pieces = tuple(
        Piece(number, kind, tuple(f"{number}.{node}" for node in range(count)), gpus)
        for number, (kind, count, gpus) in enumerate(alike)
    )
    return nodes_left(ShrinkableJob(0, pieces, frozenset(), frozenset(), registry.drop_rules(via, *releases), {}))


def in_reach(running: RunningJob, forced: frozenset[Unit], room: int) -> int:
    """What `member` makes of the room: how many accepted sizes are in reach; of a forced job, the room itself."""
    if forced:
        return room
    return bisect_right(ascending_sizes(running.job), running.gpus + room) if running.may_grow else 0


def _restart_sizes(running: RunningJob, reached: Mapping[int, int], most: int, node_gpus: int) -> dict[int, int]:
    """GPUs -> nodes of the sizes that only a requeue reaches."""
    if not (running.may_grow and running.may_shrink):
        return {}
    wanted = (size for size in sizes(running.job) if size not in reached and size <= most)
    return {size: next(whole_sizes(size, max(1, node_gpus))).nodes for size in wanted}


@lru_cache(maxsize=1 << 12)
def _same(choices: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The same object for equal ones: they are kept from round to round, and most jobs share a few."""
    return choices
