"""From a number of GPUs to a resize: which pieces stay, what is added where, and what has to wait. Pure.

Shrinks first: what they free is the room of the growths that come after, which wait until it is free.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurm_elastic.protocol.codes import Reason
from slurm_elastic.protocol.messages import Piece, Resize, Shape
from slurm_elastic.protocol.records import record

from ..capacity.ledger import Ledger
from ..capacity.placement import CompanionLimits
from ..capacity.shrink_options import Unit, shrinks, units_of, without
from ..mechanisms import registry
from ..mechanisms.base import ChosenWay, FreeNodes, Mechanism, WantedSize
from ..optimizer.plan import Target
from .pools.candidate import Candidate
from .running.job import RunningJob
from .settings import PlannerSettings


@record(frozen=True, slots=True)
class TargetSize:
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
    candidate: Candidate | None = None
    """As the optimizer was asked of it; None: it was not, or has given no plan."""
    target: Target | None = None
    """What the optimizer has said."""


@record(frozen=True, slots=True)
class Move:
    """A target size with its pieces. `later` says why it cannot be begun in this round; empty when it can."""

    target_size: TargetSize
    keep: tuple[Piece, ...]
    add: tuple[Shape, ...] = ()
    later: str = ""
    placed_by: Mechanism | None = None
    """Has placed what is added; None: nothing is."""

    @property
    def gpus(self) -> int:
        if not self.add and self.keep is self.target_size.running.pieces:
            return self.target_size.running.gpus
        return sum(piece.gpus for piece in self.keep) + sum(shape.gpus for shape in self.add)

    @property
    def changes(self) -> bool:
        now = self.target_size.running
        return bool(self.add) or self.keep != now.pieces or self.target_size.batch != now.batch

    @property
    def of_batch(self) -> bool:
        """Whether the batch alone changes."""
        now = self.target_size.running
        return not self.add and self.target_size.batch != now.batch and self.keep == now.pieces

    @property
    def by(self) -> tuple[Mechanism, ...]:
        """The mechanisms that do it; none when the batch alone changes."""
        return registry.used(self.target_size.running.pieces, self.keep, self.placed_by)

    @property
    def mechanism(self) -> str:
        """Their names, or batch."""
        by = self.by
        if not by and self.target_size.batch != self.target_size.running.batch:
            return "batch"
        return "+".join(mechanism.name for mechanism in by)

    def cost_s(self, settings: PlannerSettings) -> float:
        """Seconds that the training is expected to stand still for it."""
        if self.of_batch:
            return self.target_size.running.state.batch_pause_s or 0.0
        return registry.cost_s(self.target_size.running, self.by, settings)

    def passed_over(self, settings: PlannerSettings) -> dict[str, str]:
        """Why not, by the name of every mechanism that has no part in it."""
        running = self.target_size.running
        chosen = ChosenWay(self.gpus, self.by, self.cost_s(settings), self.target_size.elsewhere)
        return registry.passed_over(running, running.site, chosen, settings)

    def resize(self, wait_s: float, number: int = 0) -> Resize:
        """The message to the supervisor; in the daemon its number comes from the store."""
        target_size = self.target_size
        return Resize(
            id=number,
            job_id=target_size.running.job_id,
            keep=self.keep,
            add=self.add,
            gpus=self.gpus,
            batch=target_size.batch,
            reason=target_size.reason.value,
            wait_s=wait_s,
        )


def moves(
    target_sizes: Sequence[TargetSize],
    ledger: Ledger,
    nodes: Mapping[int, frozenset[str]],
    companions: CompanionLimits | None = None,
) -> dict[int, Move]:
    """A move for every target size, by job id. `nodes`: where each job may grow. Ledger and companions are used up in
    place."""
    found: dict[int, Move] = {}
    placing: dict[Mechanism, list[TargetSize]] = {mechanism: [] for mechanism in registry.MECHANISMS}
    for target_size in target_sizes:
        running = target_size.running
        if target_size.keep:
            found[running.job_id] = Move(target_size, target_size.keep)
            continue
        if target_size.gpus == running.gpus and not target_size.forced and not target_size.elsewhere:
            found[running.job_id] = Move(target_size, running.pieces)
            continue
        grows = target_size.gpus > running.gpus and not target_size.forced
        kept = {running.gpus: running.pieces} if grows else shrinks(running.shrinkable, target_size.forced)
        if not target_size.elsewhere and target_size.gpus in kept:
            found[running.job_id] = Move(target_size, kept[target_size.gpus])
            _free(ledger, target_size, kept[target_size.gpus])
            continue
        wanted = WantedSize(target_size.gpus, max(kept, default=0), bool(target_size.forced), target_size.elsewhere)
        mechanism = registry.cheapest(running, running.site, wanted)
        if mechanism is None:
            found[running.job_id] = _stay(target_size)  # nothing leads there from what it has
        else:
            placing[mechanism].append(target_size)
    under = _under([target_size for placed in placing.values() for target_size in placed])
    shared: dict[frozenset[str], FreeNodes] = {}
    for mechanism, placed in placing.items():
        free = {}
        for target_size in placed:  # most jobs may grow onto the same nodes
            own = nodes.get(target_size.running.job_id, _NOWHERE)
            if own not in shared:
                shared[own] = FreeNodes(ledger, own, under, companions)
            free[target_size.running.job_id] = shared[own]
        if mechanism.adds:
            # Who can grow on few nodes only comes first: others find room elsewhere.
            placed.sort(key=lambda w: (len(free[w.running.job_id].nodes), -w.progress_change, w.running.job_id))
        for target_size in placed:
            move = _place(mechanism, target_size, free[target_size.running.job_id])
            if companions is not None and not move.changes and target_size.running.job_id in companions.refused:
                move = replace(move, target_size=replace(move.target_size, reason=Reason.KEEP_LIMIT))
            found[target_size.running.job_id] = move
    return found


_NOWHERE = frozenset[str]()


def _free(ledger: Ledger, target_size: TargetSize, keep: Sequence[Piece]) -> None:
    """What is given up becomes free soon; units forced for a waiting job are spoken for already."""
    for unit in units_of(target_size.running.pieces) - units_of(keep) - target_size.forced:
        ledger.release(unit[1], target_size.running.shrinkable.share[unit[0]])


def _under(target_sizes: Sequence[TargetSize]) -> dict[str, list[str]]:
    """The nodes under each switch; the site's are the same for every job of a round."""
    found: dict[str, list[str]] = {}
    for node, switch in target_sizes[0].running.site.switches.items() if target_sizes else ():
        found.setdefault(switch, []).append(node)
    return found


def _place(mechanism: Mechanism, target_size: TargetSize, free: FreeNodes) -> Move:
    """The target size as far as the mechanism finds room for it: what only adds may add less."""
    running = target_size.running
    keep = without(running.pieces, target_size.forced) if mechanism.adds else ()
    kept = sum(piece.gpus for piece in keep)
    for gpus in _tries(running, kept, target_size.gpus) if mechanism.adds else [target_size.gpus]:
        placed = mechanism.place(running, keep, gpus, free)
        if placed is not None and placed.later and target_size.forced:
            return _stay(target_size)  # what it gives up must not wait for what it gets: that may be the same GPUs
        if placed is not None:
            if gpus != target_size.gpus:
                target_size = replace(target_size, gpus=gpus, batch=_batch(running, gpus, target_size.batch))
            return Move(target_size, placed.keep, placed.add, placed.later, mechanism)
    return _stay(target_size)


def _tries(running: RunningJob, rest: int, gpus: int) -> list[int]:
    """The size wanted, then smaller ones: GPUs may be idle where their cores or memory are not."""
    accepted = running.accepted.ascending
    larger = accepted[bisect_right(accepted, max(rest, running.gpus)) : bisect_right(accepted, gpus)]
    return [*reversed(larger)] + ([gpus] if gpus <= running.gpus else [])


def _stay(target_size: TargetSize) -> Move:
    """No place for any growth: keep what there is, or what the forced units leave."""
    running = target_size.running
    if not target_size.forced:
        kept = replace(target_size, gpus=running.gpus, batch=running.batch, reason=Reason.KEEP_BEST)
        return Move(kept, running.pieces)
    shrunk, accepted = shrinks(running.shrinkable, target_size.forced), running.accepted.every
    left = {k: pieces for k, pieces in shrunk.items() if k in accepted}
    size = max(left)
    return Move(replace(target_size, gpus=size, batch=_batch(running, size, target_size.batch)), left[size])


def _batch(running: RunningJob, gpus: int, wanted: int) -> int:
    """The accepted batch nearest to the wanted one at another size."""
    return nearest_batch(running.job.request.batches(gpus), wanted)


def nearest_batch(accepted: Sequence[int], wanted: int) -> int:
    """The nearest of the accepted batches; the wanted one itself when it is accepted or there is no other."""
    return min(accepted, key=lambda batch: (abs(batch - wanted), batch), default=wanted)
