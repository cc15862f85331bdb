"""From a number of GPUs to a resize: which pieces stay, what is added where, and what has to wait. Pure.

Shrinks first: what they free is the room of the growths that come after, which wait until it is free.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_elastic.protocol.messages import Directive, Piece, Shape

from ..capacity.ledger import Amount, Ledger
from ..capacity.placement import Like, place, take
from ..capacity.requeue_placement import place_anew
from ..capacity.shrink_options import Unit, shrinks, units_of, without
from ..text.reasons import Reason
from .eligibility import Standing, sizes


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

    @property
    def gpus(self) -> int:
        return sum(piece.gpus for piece in self.keep) + sum(shape.gpus for shape in self.add)

    @property
    def changes(self) -> bool:
        now = self.wish.standing
        return bool(self.add) or self.keep != now.pieces or self.wish.batch != now.batch

    @property
    def mechanism(self) -> str:
        """How it is done: shrink, component, companion, several of them, requeue, or batch alone."""
        if not self.keep:
            return "requeue"
        now = self.wish.standing
        gone = units_of(now.pieces) - units_of(self.keep)
        kinds = {piece.kind for piece in now.pieces if units_of((piece,)) & gone}
        words = {"base": "shrink", "component": "component", "companion": "companion"}
        used = sorted({words[kind] for kind in kinds} | ({"companion"} if self.add else set()))
        if not used and self.wish.batch != now.batch:
            return "batch"
        return "+".join(used)

    def directive(self, wait_s: float) -> Directive:
        """The order to the supervisor; its number comes from the store."""
        wish = self.wish
        return Directive(
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
    growing, anew = [], []
    for wish in wishes:
        kept = shrinks(wish.standing.giver, wish.forced)
        if wish.elsewhere:
            anew.append(wish)
        elif wish.gpus in kept or (wish.gpus == wish.standing.gpus and not wish.forced):
            keep = kept[wish.gpus] if wish.gpus != wish.standing.gpus else wish.standing.pieces
            found[wish.standing.job_id] = Move(wish, keep)
            _free(ledger, wish, keep)
        elif wish.gpus > max(kept, default=0) and "companion" in wish.standing.job.request.via:
            growing.append(wish)
        elif wish.standing.may_start_anew and not wish.forced:
            anew.append(wish)
        else:
            found[wish.standing.job_id] = _stay(wish)  # a pin to a size that no piece can be cut down to
    places = {wish.standing.job_id: nodes.get(wish.standing.job_id, ()) for wish in growing}
    beside = _beside(growing)
    # Who can grow on few nodes only comes first: others find room elsewhere.
    for wish in sorted(growing, key=lambda w: (len(places[w.standing.job_id]), -w.gain, w.standing.job_id)):
        found[wish.standing.job_id] = _grow(wish, ledger, places[wish.standing.job_id], beside)
    for wish in anew:
        found[wish.standing.job_id] = _start_anew(wish, ledger, tuple(nodes.get(wish.standing.job_id, ())))
    return found


def _free(ledger: Ledger, wish: Wish, keep: Sequence[Piece]) -> None:
    """What is given up becomes free soon; units forced for a waiting job are spoken for already."""
    for unit in units_of(wish.standing.pieces) - units_of(keep) - wish.forced:
        ledger.release(unit[1], wish.standing.giver.share[unit[0]])


def _beside(growing: Sequence[Wish]) -> dict[str, list[str]]:
    """The nodes under each switch; the site's are the same for every job of a round."""
    found: dict[str, list[str]] = {}
    for node, switch in growing[0].standing.giver.switches.items() if growing else ():
        found.setdefault(switch, []).append(node)
    return found


def _grow(wish: Wish, ledger: Ledger, nodes: Collection[str], beside: Mapping[str, Sequence[str]]) -> Move:
    standing = wish.standing
    keep = without(standing.pieces, wish.forced)
    like = Like.base(standing.job.base)
    rest, switches = sum(piece.gpus for piece in keep), standing.giver.switches
    home = {switches[node] for piece in keep for node in piece.nodes if node in switches}
    near = {node for switch in home for node in beside[switch]}
    for gpus in _tries(standing, rest, wish.gpus):
        smaller = wish if gpus == wish.gpus else replace(wish, gpus=gpus, batch=_batch(standing, gpus, wish.batch))
        for soon in (False, True):
            shapes = place(ledger, gpus - rest, like, nodes, soon, near)
            if shapes is not None:
                take(ledger, shapes)
                return Move(smaller, keep, shapes, "the GPUs are still being released" if soon else "")
    return _stay(wish)


def _start_anew(wish: Wish, ledger: Ledger, nodes: Sequence[str]) -> Move:
    """The whole job at another size, on its own nodes and what is free: the last resort."""
    standing, own = wish.standing, own_nodes(wish.standing)
    usable = [name for name in nodes if ledger.usable(name)]
    most = max((ledger.now[name].gpus + own.get(name, Amount()).gpus for name in usable), default=1)
    shape = place_anew(ledger, own, wish.gpus, Like.base(standing.job.base), nodes, most)
    if shape is None:
        return _stay(wish)
    for name, amount in own.items():
        ledger.release(name, amount)
    take(ledger, (shape,))
    return Move(wish, (), (shape,))


def own_nodes(standing: Standing) -> dict[str, Amount]:
    """What the job gives back on each of its nodes when it starts anew."""
    own: dict[str, Amount] = {}
    for slurm_job_id, node in units_of(standing.pieces):
        own[node] = own.get(node, Amount()) + standing.giver.share[slurm_job_id]
    return own


def _tries(standing: Standing, rest: int, gpus: int) -> list[int]:
    """The size wished for, then smaller ones: GPUs may be idle where their cores or memory are not."""
    return [k for k in sorted(sizes(standing.job), reverse=True) if max(rest, standing.gpus) < k <= gpus] + (
        [gpus] if gpus <= standing.gpus else []
    )


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
