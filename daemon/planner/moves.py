"""From a number of GPUs to a resize: which pieces stay, what is added where, and what has to wait. Pure.

Shrinks first: what they free is the room of the growths that come after, which wait until it is free.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from slurm_elastic.protocol.messages import Piece, Resize, Shape
from slurm_elastic.protocol.records import record

from ..capacity.companion_limits import CompanionLimits
from ..capacity.ledger import Ledger
from ..capacity.shrink_options import Unit, shrinks, units_of, without
from ..config.settings import Settings
from ..mechanisms import registry
from ..mechanisms.base import ChosenWay, FreeNodes, Mechanism, WantedSize
from ..text.reasons import Reason
from .running.job import RunningJob
from .running.sizes import ascending_sizes, sizes


@record(frozen=True, slots=True)
class Allotment:
    """What a job is to have, before it is known where."""

    running: RunningJob
    gpus: int
    batch: int
    reason: Reason
    progress_change: float
    """The optimizer's, which orders growths on as many nodes: the largest first."""
    forced: frozenset[Unit] = frozenset()
    elsewhere: bool = False
    """It is to leave the nodes it has, whatever its size."""
    keep: tuple[Piece, ...] = ()
    """The pieces that it is to have, where that is known already."""


@record(frozen=True, slots=True)
class Move:
    """An allotment with its pieces. `later` says why it cannot be begun in this round; empty when it can."""

    allotment: Allotment
    keep: tuple[Piece, ...]
    add: tuple[Shape, ...] = ()
    later: str = ""
    placed_by: Mechanism | None = None
    """Has placed what is added; None: nothing is."""

    @property
    def gpus(self) -> int:
        if not self.add and self.keep is self.allotment.running.pieces:
            return self.allotment.running.gpus
        return sum(piece.gpus for piece in self.keep) + sum(shape.gpus for shape in self.add)

    @property
    def changes(self) -> bool:
        now = self.allotment.running
        return bool(self.add) or self.keep != now.pieces or self.allotment.batch != now.batch

    @property
    def of_batch(self) -> bool:
        """Whether the batch alone changes."""
        now = self.allotment.running
        return not self.add and self.allotment.batch != now.batch and self.keep == now.pieces

    @property
    def by(self) -> tuple[Mechanism, ...]:
        """The mechanisms that do it; none when the batch alone changes."""
        return registry.used(self.allotment.running.pieces, self.keep, self.placed_by)

    @property
    def mechanism(self) -> str:
        """Their names, or batch."""
        by = self.by
        if not by and self.allotment.batch != self.allotment.running.batch:
            return "batch"
        return "+".join(mechanism.name for mechanism in by)

    def cost_s(self, settings: Settings) -> float:
        """Seconds that the training is expected to stand still for it."""
        if self.of_batch:
            return self.allotment.running.state.batch_pause_s or 0.0
        return registry.cost_s(self.allotment.running, self.by, settings)

    def passed_over(self, settings: Settings) -> dict[str, str]:
        """Why not, by the name of every mechanism that has no part in it."""
        running = self.allotment.running
        chosen = ChosenWay(self.gpus, self.by, self.cost_s(settings), self.allotment.elsewhere)
        return registry.passed_over(running, running.site, chosen, settings)

    def resize(self, wait_s: float, number: int = 0) -> Resize:
        """The message to the supervisor; in the daemon its number comes from the store."""
        allotment = self.allotment
        return Resize(
            id=number,
            job_id=allotment.running.job_id,
            keep=self.keep,
            add=self.add,
            gpus=self.gpus,
            batch=allotment.batch,
            reason=allotment.reason.value,
            wait_s=wait_s,
        )


def moves(
    allotments: Sequence[Allotment],
    ledger: Ledger,
    nodes: Mapping[int, Collection[str]],
    companions: CompanionLimits | None = None,
) -> dict[int, Move]:
    """A move for every allotment, by job id. `nodes`: where each job may grow. Ledger and companions are used up
    in place."""
    found: dict[int, Move] = {}
    placing: dict[Mechanism, list[Allotment]] = {mechanism: [] for mechanism in registry.MECHANISMS}
    for allotment in allotments:
        running = allotment.running
        if allotment.keep:
            found[running.job_id] = Move(allotment, allotment.keep)
            continue
        if allotment.gpus == running.gpus and not allotment.forced and not allotment.elsewhere:
            found[running.job_id] = Move(allotment, running.pieces)
            continue
        grows = allotment.gpus > running.gpus and not allotment.forced
        kept = {running.gpus: running.pieces} if grows else shrinks(running.giver, allotment.forced)
        if not allotment.elsewhere and allotment.gpus in kept:
            found[running.job_id] = Move(allotment, kept[allotment.gpus])
            _free(ledger, allotment, kept[allotment.gpus])
            continue
        wanted = WantedSize(allotment.gpus, max(kept, default=0), bool(allotment.forced), allotment.elsewhere)
        mechanism = registry.cheapest(running, running.site, wanted)
        if mechanism is None:
            found[running.job_id] = _stay(allotment)  # nothing leads there from what it has
        else:
            placing[mechanism].append(allotment)
    under = _under([allotment for placed in placing.values() for allotment in placed])
    shared: dict[int, FreeNodes] = {}
    for mechanism, placed in placing.items():
        free = {}
        for allotment in placed:  # most jobs may grow onto the same nodes
            own = nodes.get(allotment.running.job_id, ())
            if id(own) not in shared:
                shared[id(own)] = FreeNodes(ledger, own, under, companions)
            free[allotment.running.job_id] = shared[id(own)]
        if mechanism.adds:
            # Who can grow on few nodes only comes first: others find room elsewhere.
            placed.sort(key=lambda w: (len(free[w.running.job_id].nodes), -w.progress_change, w.running.job_id))
        for allotment in placed:
            move = _place(mechanism, allotment, free[allotment.running.job_id])
            if companions is not None and not move.changes and allotment.running.job_id in companions.refused:
                move = replace(move, allotment=replace(move.allotment, reason=Reason.KEEP_LIMIT))
            found[allotment.running.job_id] = move
    return found


def _free(ledger: Ledger, allotment: Allotment, keep: Sequence[Piece]) -> None:
    """What is given up becomes free soon; units forced for a waiting job are spoken for already."""
    for unit in units_of(allotment.running.pieces) - units_of(keep) - allotment.forced:
        ledger.release(unit[1], allotment.running.giver.share[unit[0]])


def _under(allotments: Sequence[Allotment]) -> dict[str, list[str]]:
    """The nodes under each switch; the site's are the same for every job of a round."""
    found: dict[str, list[str]] = {}
    for node, switch in allotments[0].running.site.switches.items() if allotments else ():
        found.setdefault(switch, []).append(node)
    return found


def _place(mechanism: Mechanism, allotment: Allotment, free: FreeNodes) -> Move:
    """The allotment as far as the mechanism finds room for it: what only adds may add less."""
    running = allotment.running
    keep = without(running.pieces, allotment.forced) if mechanism.adds else ()
    kept = sum(piece.gpus for piece in keep)
    for gpus in _tries(running, kept, allotment.gpus) if mechanism.adds else [allotment.gpus]:
        placed = mechanism.place(running, keep, gpus, free)
        if placed is not None and placed.later and allotment.forced:
            return _stay(allotment)  # what it gives up must not wait for what it gets: that may be the same GPUs
        if placed is not None:
            if gpus != allotment.gpus:
                allotment = replace(allotment, gpus=gpus, batch=_batch(running, gpus, allotment.batch))
            return Move(allotment, placed.keep, placed.add, placed.later, mechanism)
    return _stay(allotment)


def _tries(running: RunningJob, rest: int, gpus: int) -> list[int]:
    """The size wanted, then smaller ones: GPUs may be idle where their cores or memory are not."""
    accepted = ascending_sizes(running.job)
    larger = accepted[bisect_right(accepted, max(rest, running.gpus)) : bisect_right(accepted, gpus)]
    return [*reversed(larger)] + ([gpus] if gpus <= running.gpus else [])


def _stay(allotment: Allotment) -> Move:
    """No place for any growth: keep what there is, or what the forced units leave."""
    running = allotment.running
    if not allotment.forced:
        kept = replace(allotment, gpus=running.gpus, batch=running.batch, reason=Reason.KEEP_BEST)
        return Move(kept, running.pieces)
    left = {k: pieces for k, pieces in shrinks(running.giver, allotment.forced).items() if k in sizes(running.job)}
    size = max(left)
    return Move(replace(allotment, gpus=size, batch=_batch(running, size, allotment.batch)), left[size])


def _batch(running: RunningJob, gpus: int, wanted: int) -> int:
    """The accepted batch nearest to the wanted one at another size."""
    return nearest_batch(running.job.request.batches(gpus), wanted)


def nearest_batch(accepted: Sequence[int], wanted: int) -> int:
    """The nearest of the accepted batches; the wanted one itself when it is accepted or there is no other."""
    return min(accepted, key=lambda batch: (abs(batch - wanted), batch), default=wanted)
