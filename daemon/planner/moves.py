"""From a number of GPUs to a resize: which pieces stay, what is added where, and what has to wait. Pure.

Shrinks first: what they free is the room of the growths that come after, which wait until it is free.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_elastic.protocol.messages import Piece, Resize, Shape

from ..capacity.ledger import Ledger
from ..capacity.shrink_options import Unit, shrinks, units_of, without
from ..config.settings import Settings
from ..mechanisms import registry
from ..mechanisms.base import ChosenWay, FreeNodes, Mechanism, WantedSize
from ..text.reasons import Reason
from .eligibility import Standing, ascending_sizes, sizes


@dataclass(frozen=True, slots=True)
class Wish:
    """What a job is to have, before it is known where."""

    standing: Standing
    gpus: int
    batch: int
    reason: Reason
    gain: float
    """Orders growths on as many nodes: the largest first."""
    forced: frozenset[Unit] = frozenset()
    elsewhere: bool = False
    """It is to leave the nodes it has, whatever its size."""


@dataclass(frozen=True, slots=True)
class Move:
    """A wish with its pieces. `later` says why it cannot be begun in this round; empty when it can."""

    wish: Wish
    keep: tuple[Piece, ...]
    add: tuple[Shape, ...] = ()
    later: str = ""
    placed_by: Mechanism | None = None
    """Has placed what is added; None: nothing is."""

    @property
    def gpus(self) -> int:
        return sum(piece.gpus for piece in self.keep) + sum(shape.gpus for shape in self.add)

    @property
    def changes(self) -> bool:
        now = self.wish.standing
        return bool(self.add) or self.keep != now.pieces or self.wish.batch != now.batch

    @property
    def by(self) -> tuple[Mechanism, ...]:
        """The mechanisms that do it; none when the batch alone changes."""
        return registry.used(self.wish.standing.pieces, self.keep, self.placed_by)

    @property
    def mechanism(self) -> str:
        """Their names, or batch."""
        by = self.by
        if not by and self.wish.batch != self.wish.standing.batch:
            return "batch"
        return "+".join(mechanism.name for mechanism in by)

    def cost_s(self, settings: Settings) -> float:
        """Seconds that the training is expected to stand still for it."""
        return registry.cost_s(self.wish.standing, self.by, settings)

    def passed_over(self, settings: Settings) -> list[dict[str, str]]:
        """{mechanism, why} for every one that has no part in it."""
        standing = self.wish.standing
        chosen = ChosenWay(self.gpus, self.by, self.cost_s(settings), self.wish.elsewhere)
        return registry.passed_over(standing, standing.site, chosen, settings)

    def resize(self, wait_s: float) -> Resize:
        """The order to the supervisor; its number comes from the store."""
        wish = self.wish
        return Resize(
            id=0,
            job_id=wish.standing.job_id,
            keep=self.keep,
            add=self.add,
            gpus=self.gpus,
            batch=wish.batch,
            reason=wish.reason.value,
            wait_s=wait_s,
        )


def moves(wishes: Sequence[Wish], ledger: Ledger, nodes: Mapping[int, Collection[str]]) -> dict[int, Move]:
    """A move for every wish, by job id. `nodes`: where each job may grow. The ledger is used up in place."""
    found: dict[int, Move] = {}
    placing: dict[Mechanism, list[Wish]] = {mechanism: [] for mechanism in registry.MECHANISMS}
    for wish in wishes:
        standing = wish.standing
        if wish.gpus == standing.gpus and not wish.forced and not wish.elsewhere:
            found[standing.job_id] = Move(wish, standing.pieces)
            continue
        kept = shrinks(standing.giver, wish.forced)
        if not wish.elsewhere and wish.gpus in kept:
            found[standing.job_id] = Move(wish, kept[wish.gpus])
            _free(ledger, wish, kept[wish.gpus])
            continue
        wanted = WantedSize(wish.gpus, max(kept, default=0), bool(wish.forced), wish.elsewhere)
        mechanism = registry.cheapest(standing, standing.site, wanted)
        if mechanism is None:
            found[standing.job_id] = _stay(wish)  # a pin to a size that no piece can be cut down to
        else:
            placing[mechanism].append(wish)
    under = _under([wish for placed in placing.values() for wish in placed])
    for mechanism, placed in placing.items():
        free = {w.standing.job_id: FreeNodes(ledger, nodes.get(w.standing.job_id, ()), under) for w in placed}
        if mechanism.adds:
            # Who can grow on few nodes only comes first: others find room elsewhere.
            placed.sort(key=lambda w: (len(free[w.standing.job_id].nodes), -w.gain, w.standing.job_id))
        for wish in placed:
            found[wish.standing.job_id] = _place(mechanism, wish, free[wish.standing.job_id])
    return found


def _free(ledger: Ledger, wish: Wish, keep: Sequence[Piece]) -> None:
    """What is given up becomes free soon; units forced for a waiting job are spoken for already."""
    for unit in units_of(wish.standing.pieces) - units_of(keep) - wish.forced:
        ledger.release(unit[1], wish.standing.giver.share[unit[0]])


def _under(wishes: Sequence[Wish]) -> dict[str, list[str]]:
    """The nodes under each switch; the site's are the same for every job of a round."""
    found: dict[str, list[str]] = {}
    for node, switch in wishes[0].standing.site.switches.items() if wishes else ():
        found.setdefault(switch, []).append(node)
    return found


def _place(mechanism: Mechanism, wish: Wish, free: FreeNodes) -> Move:
    """The wish as far as the mechanism finds room for it: what only adds may add less."""
    standing = wish.standing
    keep = without(standing.pieces, wish.forced) if mechanism.adds else ()
    for gpus in _tries(standing, sum(piece.gpus for piece in keep), wish.gpus) if mechanism.adds else [wish.gpus]:
        placed = mechanism.place(standing, keep, gpus, free)
        if placed is not None and placed.later and wish.forced:
            return _stay(wish)  # what it gives up must not wait for what it gets: that may be the same GPUs
        if placed is not None:
            smaller = wish if gpus == wish.gpus else replace(wish, gpus=gpus, batch=_batch(standing, gpus, wish.batch))
            return Move(smaller, placed.keep, placed.add, placed.later, mechanism)
    return _stay(wish)


def _tries(standing: Standing, rest: int, gpus: int) -> list[int]:
    """The size wished for, then smaller ones: GPUs may be idle where their cores or memory are not."""
    accepted = ascending_sizes(standing.job)
    larger = accepted[bisect_right(accepted, max(rest, standing.gpus)) : bisect_right(accepted, gpus)]
    return [*reversed(larger)] + ([gpus] if gpus <= standing.gpus else [])


def _stay(wish: Wish) -> Move:
    """No place for any growth: keep what there is, or what the forced units leave."""
    standing = wish.standing
    if not wish.forced:
        kept = replace(wish, gpus=standing.gpus, batch=standing.batch, reason=Reason.KEEP_BEST)
        return Move(kept, standing.pieces)
    left = {k: pieces for k, pieces in shrinks(standing.giver, wish.forced).items() if k in sizes(standing.job)}
    size = max(left)
    return Move(replace(wish, gpus=size, batch=_batch(standing, size, wish.batch)), left[size])


def _batch(standing: Standing, gpus: int, wished: int) -> int:
    """The accepted batch nearest to the wished one at another size."""
    return nearest_batch(standing.job.request.batches(gpus), wished)


def nearest_batch(accepted: Sequence[int], wished: int) -> int:
    """The nearest of the accepted batches; the wished one itself when it is accepted or there is no other."""
    return min(accepted, key=lambda batch: (abs(batch - wished), batch), default=wished)
