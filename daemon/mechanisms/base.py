"""What a mechanism is: one way in which Slurm can change a job's allocation. Pure.

Promise: planner, `explain`, reconcile and executor know mechanisms by this class and the registry alone.
Limit: nodes are given up by rule (`DropRule`), several mechanisms together; which nodes go is found in
capacity/shrink_options.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from slurm_elastic.db.rows import InUse, ResizeRow
from slurm_elastic.protocol.codes import EventKind, ResizeState
from slurm_elastic.protocol.messages import Piece, Resize, Shape
from slurm_elastic.protocol.records import record

from ..actions.action import Action, Cancel, Close, Shrink
from ..actions.refusals import Refusal
from ..capacity.ledger import Ledger
from ..capacity.placement import CompanionLimits
from ..capacity.roster import ElasticJob, RunningPiece
from ..capacity.shrink_options import DropRule, ShrinkableJob, Unit
from ..slurm.site import Site
from .settings import Bounds, ResizeSettings


class ResizableJob(Protocol):
    """A running elastic job, as far as mechanisms look at it."""

    @property
    def job(self) -> ElasticJob: ...

    @property
    def pieces(self) -> tuple[Piece, ...]: ...

    @property
    def gpus(self) -> int: ...

    @property
    def shrinkable(self) -> ShrinkableJob: ...

    @property
    def pause_s(self) -> float | None:
        """Mean measured pause of its resizes; None: not measured."""

    @property
    def requeue_s(self) -> float | None:
        """The same of its resizes by requeue."""

    @property
    def likely_pause_s(self) -> float | None:
        """What the resizes of other jobs say of one that was not resized yet; None: there were none."""

    @property
    def likely_requeue_s(self) -> float | None:
        """The same of resizes by requeue."""

    @property
    def one_node_each(self) -> bool:
        """Whether each Slurm job that holds more for it is to have one node, so that it can be given back whole."""

    @property
    def refused(self) -> Mapping[EventKind, Refusal]:
        """What Slurm refuses to do about it now."""


@record(frozen=True, slots=True)
class WantedSize:
    """The size that a job is to come to, where giving up nodes does not lead there."""

    gpus: int
    left: int
    """The most GPUs that it keeps when it gives up what others need."""
    forced: bool = False
    """Waiting jobs need nodes of it."""
    elsewhere: bool = False
    """It has to leave the nodes it has."""


@record(frozen=True, slots=True)
class FreeNodes:
    """Where a job may get more."""

    ledger: Ledger
    nodes: Collection[str]
    """Those that the job can use."""
    under: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The nodes under each switch of the site."""
    companions: CompanionLimits | None = None
    """What Slurm's limits say of companions as jobs; None: nothing."""


@record(frozen=True, slots=True)
class Placement:
    """What a job keeps and what is added. `later` says why it cannot begin now; empty when it can."""

    keep: tuple[Piece, ...]
    add: tuple[Shape, ...] = ()
    later: str = ""


@dataclass(frozen=True, slots=True)
class ChosenWay:
    """How a resize is done, for the mechanisms that were passed over."""

    gpus: int
    by: tuple[Mechanism, ...]
    cost_s: float
    elsewhere: bool = False


class Mechanism(ABC):
    """One way to change an allocation. What a mechanism does not say is answered here for one that does nothing."""

    name: ClassVar[str]
    """As in `via=`: one of protocol.request.MECHANISMS."""
    drops: ClassVar[DropRule | None] = None
    """The pieces that it gives up; None: it gives up nothing."""
    adds: ClassVar[bool] = False
    """It adds shapes to what the job keeps."""
    restarts: ClassVar[bool] = False
    """It keeps nothing: the whole job starts again in one shape."""
    asks: ClassVar[tuple[EventKind, ...]] = ()
    """What Slurm must not refuse for it to be used at all."""

    def fits(self, job: ResizableJob, site: Site) -> str:
        """Why it can't be used for this job on this site; empty when it can."""
        via = job.job.request.via
        if self.name not in via:
            return f"its request does not name it (via={'+'.join(via)})"
        return next((job.refused[kind].words for kind in self.asks if kind in job.refused), "")

    def cost_s(self, job: ResizableJob, settings: ResizeSettings) -> float:
        """Seconds that the training is expected to stand still."""
        return pause_s(job, settings)

    def why_not(self, job: ResizableJob, site: Site, chosen: ChosenWay, settings: ResizeSettings) -> str:
        """Why it has no part in a resize."""
        if chosen.elsewhere:
            return "one of its own nodes is to become empty: the base itself has to leave it"
        return self.fits(job, site) or self.unsuited(job, chosen, settings)

    def unsuited(self, job: ResizableJob, chosen: ChosenWay, settings: ResizeSettings) -> str:
        """Why it has no part in a resize of a job that it fits. Here: for one that only gives up nodes."""
        if chosen.gpus > job.gpus:
            return "it only gives up nodes"
        if any(mechanism.restarts for mechanism in chosen.by):
            return f"whole nodes given up do not come to {chosen.gpus} GPUs"
        return "others give up enough"

    def reaches(self, wanted: WantedSize) -> bool:
        """Whether it leads to that size where there is room."""
        return False

    def place(self, job: ResizableJob, keep: tuple[Piece, ...], gpus: int, free: FreeNodes) -> Placement | None:
        """The job with `gpus` GPUs in all, `keep` among them where it adds; None when there is no room.

        What it places is taken from the ledger.
        """
        return None

    def carries(self, resize: Resize) -> bool:
        """Whether it leads the open resize: `next_actions`, `awaits` and `undo` are asked of the one that does."""
        return False

    def next_actions(
        self, job: ElasticJob | None, use: InUse | None, resize: ResizeRow, now: float, bounds: Bounds
    ) -> list[Action]:
        """What to do now about an open resize that it leads; releases come on top, unless it restarts the job."""
        if job is not None and job.running:
            return []
        return [Close(resize.job_id, resize.id, ResizeState.WITHDRAWN, "the job does not run any more")]

    def release(self, job: ElasticJob, held: RunningPiece, due: Collection[Unit], why: str) -> Action | None:
        """How the due units of a piece of its kind are given up; None when none of them can go."""
        if self.drops is None:
            return None
        nodes, slurm_job_id = held.piece.nodes, held.piece.slurm_job_id
        kept = tuple(node for node in nodes if (slurm_job_id, node) not in due)
        if kept or not self.drops.whole:
            stays = self.drops.staying(held.piece, {(slurm_job_id, held.job.batch_host)})
            kept = tuple(node for node in nodes if node in kept or node == stays)
        if not kept:
            return Cancel(job.job_id, slurm_job_id, why)
        return None if kept == nodes else Shrink(job.job_id, slurm_job_id, kept, why)

    def awaits(self, job: ElasticJob, resize: ResizeRow) -> tuple[Shape, ...]:
        """The shapes of an open resize whose nodes nobody holds for it yet."""
        return ()

    def undo(self, job_id: int, left: Iterable[int], why: str) -> list[Action]:
        """What takes back a resize that it led. `left`: Slurm jobs left behind. Nodes given up do not come back."""
        return []


def pause_s(job: ResizableJob, settings: ResizeSettings) -> float:
    """The pause to expect of a resize that is no requeue."""
    return first_known(job.pause_s, job.likely_pause_s, settings.assumed_pause_s)


def first_known(measured: float | None, likely: float | None, assumed: float) -> float:
    """A cost in seconds: the job's own, else what others' say, else what the settings assume."""
    return measured if measured is not None else likely if likely is not None else assumed
