"""Every mechanism there is, in order of cost: the first that fits a job and reaches its size is taken. Pure.

Promise: whoever needs to know of mechanisms asks here, and nobody else lists them. A test holds `via=` in Python, C and
Lua, and the table in docs/, to this list.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from slurm_elastic.protocol.messages import Piece, Resize

from ..capacity.shrink_options import DropRule, Unit, units_of
from ..slurm.site import Site
from .base import ChosenWay, Mechanism, ResizableJob, WantedSize, pause_s
from .companion import CompanionJob
from .in_place import ComponentRelease, ExpandInPlace, ShrinkInPlace
from .requeue import RequeueResized
from .settings import ResizeSettings

COMPANION = CompanionJob()
"""For what is known to be a companion whatever the resize, as one whose base does not run."""
MECHANISMS: tuple[Mechanism, ...] = (
    COMPANION,
    ComponentRelease(),
    ShrinkInPlace(),
    RequeueResized(),
    ExpandInPlace(),
)
_DROPS = {mechanism.drops.kind: mechanism for mechanism in MECHANISMS if mechanism.drops}


def drop_rules(via: tuple[str, ...], in_parts: bool = True, whole: bool = True) -> Mapping[str, DropRule]:
    """How a job with this `via=` gives up its pieces, by their kind; a kind without a rule stays.

    `in_parts`, `whole`: whether a Slurm job of it may lose some of its nodes now, and whether one may be ended.
    """
    rules = [m.drops for m in MECHANISMS if m.drops and m.name in via]
    if not (in_parts and whole):
        rules = [replace(rule, in_parts=rule.in_parts and in_parts, whole=rule.whole and whole) for rule in rules]
    return {rule.kind: rule for rule in rules if rule.in_parts or rule.whole}


def dropping(kind: str) -> Mechanism:
    """The mechanism that gives up pieces of a kind."""
    return _DROPS[kind]


def stuck(piece: Piece, idle: Collection[Unit], in_parts: bool) -> bool:
    """Whether what is idle of a piece stays with the job: its Slurm job may lose no single nodes (not `in_parts`), and
    cannot be ended either."""
    drops = dropping(piece.kind).drops
    return not in_parts and not (drops is not None and drops.whole and units_of((piece,)) <= set(idle))


def adding(job: ResizableJob, site: Site) -> Mechanism | None:
    """The cheapest that adds to what this job has; None: nothing does."""
    return next((m for m in MECHANISMS if m.adds and not m.fits(job, site)), None)


def no_addition(job: ResizableJob, site: Site) -> str:
    """Why nothing can be added to a job whose request names a way to; empty where something can, or it names none."""
    whys = [m.fits(job, site) for m in MECHANISMS if m.adds and m.name in job.job.request.via]
    return whys[0] if all(whys) and whys else ""


def restarting(job: ResizableJob, site: Site) -> Mechanism | None:
    """The cheapest that starts this job again at another size; None: nothing does."""
    return next((m for m in MECHANISMS if m.restarts and not m.fits(job, site)), None)


def cheapest(job: ResizableJob, site: Site, wanted: WantedSize) -> Mechanism | None:
    """The cheapest that brings this job to a size which giving up nodes does not reach; None: nothing does."""
    return next((m for m in MECHANISMS if m.reaches(wanted) and not m.fits(job, site)), None)


def carrier(resize: Resize) -> Mechanism:
    """The mechanism that leads an open resize."""
    return next(m for m in MECHANISMS if m.carries(resize))


def used(before: Sequence[Piece], keep: Sequence[Piece], placed_by: Mechanism | None = None) -> tuple[Mechanism, ...]:
    """The mechanisms that have a part in a resize, the cheapest first: those that give up what is not kept, and the one
    that has placed what is added. One that restarts the job does it alone."""
    if placed_by is not None and placed_by.restarts:
        return (placed_by,)
    if before == keep:
        return () if placed_by is None else (placed_by,)
    gone = units_of(before) - units_of(keep)
    kinds = {piece.kind for piece in before if units_of((piece,)) & gone}
    return tuple(m for m in MECHANISMS if m is placed_by or (m.drops and m.drops.kind in kinds))


def cost_s(job: ResizableJob, by: Iterable[Mechanism], settings: ResizeSettings) -> float:
    """Seconds that the training is expected to stand still for a resize by these mechanisms."""
    return max((mechanism.cost_s(job, settings) for mechanism in by), default=pause_s(job, settings))


def passed_over(job: ResizableJob, site: Site, chosen: ChosenWay, settings: ResizeSettings) -> dict[str, str]:
    """Why not, by the name of every mechanism without a part in a resize; empty when nothing but the batch changes."""
    if not chosen.by:
        return {}
    return {m.name: m.why_not(job, site, chosen, settings) for m in MECHANISMS if m not in chosen.by}
