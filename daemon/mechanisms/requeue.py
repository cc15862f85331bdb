"""Requeue at another size, step by step: what to do next for a job that a resize puts back into the queue. Pure.

    issued     its supervisor takes the resize                      -> accepted (its word)
    accepted   it writes a checkpoint                               -> saved (its word)
    saved      keep its new nodes, put it back; it ends, waits      -> submitted
    submitted  it waits: give it its size; it starts                -> granted
    granted    its supervisor trains on                             -> done

Level-triggered, one idempotent step a call. Nothing is put back whose supervisor has not said that a checkpoint is on
disk, however long writing one takes: the one that SIGTERM brings has to fit into Slurm's KillWait. Slurm starts a job
that was put back no sooner than two minutes later: the size is set in that time. So a daemon that dies at any step
leaves no job held: it starts again by itself, at the size it was submitted with. Limit: when the new size is refused,
the job comes back at what fits, as after a preemption.
"""

from collections.abc import Collection, Iterable, Mapping

from slurm_elastic.db.rows import EventRow, InUse, ResizeRow
from slurm_elastic.protocol.codes import EventKind, ResizeState
from slurm_elastic.protocol.messages import Piece, Resize, Shape

from ..actions.action import Action, Advance, Close, Free, Requeue, Resume
from ..capacity.ledger import Amount
from ..capacity.pending_jobs import SOON_S
from ..capacity.placement import SETTLE_S, ShapeTemplate, can_restart, place_restart, reservation_of, take
from ..capacity.roster import ElasticJob
from ..capacity.shrink_options import units_of
from ..slurm.model import Job, Size
from ..slurm.site import Site
from .base import ChosenWay, FreeNodes, Mechanism, Placement, ResizableJob, WantedSize, first_known
from .settings import Bounds, ResizeSettings


class RequeueResized(Mechanism):
    name = "requeue"
    restarts = True
    asks = (EventKind.REQUEUE, EventKind.RESUME)

    def fits(self, job: ResizableJob, site: Site) -> str:
        missing = super().fits(job, site)
        if missing or can_restart(job.job):
            return missing
        return "only an ordinary batch job that asked for its GPUs per node can get another size in the queue"

    def cost_s(self, job: ResizableJob, settings: ResizeSettings) -> float:
        return first_known(job.requeue_s, job.likely_requeue_s, settings.assumed_requeue_s)

    def unsuited(self, job: ResizableJob, chosen: ChosenWay, settings: ResizeSettings) -> str:
        return f"it would cost {self.cost_s(job, settings):.3g} s where this costs {chosen.cost_s:.3g} s"

    def reaches(self, wanted: WantedSize) -> bool:
        return not wanted.forced

    def place(self, job: ResizableJob, keep: tuple[Piece, ...], gpus: int, free: FreeNodes) -> Placement | None:
        """On its own nodes and what is free."""
        own, ledger = _own_nodes(job), free.ledger
        usable = [name for name in free.nodes if ledger.usable(name)]
        most = max((ledger.now[name].gpus + own.get(name, Amount()).gpus for name in usable), default=1)
        shape = place_restart(ledger, own, gpus, ShapeTemplate.of(job.job.base), free.nodes, most)
        if shape is None:
            return None
        for name, amount in own.items():
            ledger.release(name, amount)
        take(ledger, (shape,))
        return Placement((), (shape,))

    def carries(self, resize: Resize) -> bool:
        return resize.requeues

    def next_actions(
        self, job: ElasticJob | None, use: InUse | None, resize: ResizeRow, now: float, bounds: Bounds
    ) -> list[Action]:
        number, quiet = resize.id, now - resize.updated
        if job is None:
            why, gone = "the job has ended", resize.job_id
            return [*self.undo(gone, (), why), Close(gone, number, ResizeState.WITHDRAWN, why)]
        if resize.state == ResizeState.ISSUED:
            missing = "its supervisor has not taken it"
            return _until_told(job.base, resize, quiet, bounds.issued_s, ResizeState.WITHDRAWN, missing)
        if resize.state == ResizeState.ACCEPTED:
            return _until_told(job.base, resize, quiet, bounds.stop_s, ResizeState.FAILED, "no checkpoint was written")
        step = {ResizeState.SAVED: _saved, ResizeState.SUBMITTED: _submitted, ResizeState.GRANTED: _granted}.get(
            resize.state
        )
        if step is None:
            return _close(job.base, resize, ResizeState.FAILED, f"state {resize.state} is none of a requeue")
        return step(job, use, resize, quiet, bounds)

    def awaits(self, job: ElasticJob, resize: ResizeRow) -> tuple[Shape, ...]:
        return resize.add if resize.state.comes_before(ResizeState.SUBMITTED) else ()

    def undo(self, job_id: int, left: Iterable[int], why: str) -> list[Action]:
        """Its nodes may be kept already where nobody heard whether it was put back."""
        return [Free(job_id, job_id, why)]


def _own_nodes(job: ResizableJob) -> dict[str, Amount]:
    """What the job gives back on each of its nodes."""
    own: dict[str, Amount] = {}
    for slurm_job_id, node in units_of(job.pieces):
        own[node] = own.get(node, Amount()) + job.shrinkable.share[slurm_job_id]
    return own


COMES_BACK = "it was put back, and comes back at what fits"
STARTS_SMALLER = "what its script asks for is not idle, and it accepts less (first_size)"
ASKS_AGAIN = "it did not start at another size, and asks for its script's again"


def resumes(shapes: Mapping[int, Shape], why: str, bound: Collection[int] = ()) -> list[Action]:
    """Steps for waiting jobs that are to start at these sizes, by job id.

    `bound`: those that a shrink of ours has bound to their nodes.
    """
    return [
        Resume(job_id, job_id, 0, Size(shape.nodes, shape.gpus_per_node, job_id in bound), why)
        for job_id, shape in shapes.items()
    ]


def first_size_steps(starts: Mapping[int, Size], back: Mapping[int, Size], scripts: Mapping[int, Size]) -> list[Action]:
    """Steps for waiting jobs that have never run: those that are to start at other sizes than their scripts', and those
    that did not, by job id. `scripts`: what their scripts ask for; nothing is done about a job of which that is not
    known."""
    first = [Resume(i, i, 0, size, STARTS_SMALLER, scripts[i]) for i, size in starts.items() if i in scripts]
    return [*(Resume(i, i, 0, size, ASKS_AGAIN, size) for i, size in back.items()), *first]


def bound_by_a_shrink(job: Job, shrinks: Iterable[EventRow]) -> bool:
    """Whether a waiting job must get just the nodes that a shrink of ours left it.

    It was put back at the moment of the shrink: Slurm takes the nodes that a running job is to keep for those that a
    waiting one must get, and it would wait for them for ever, whoever has them. Its owner's own list is left alone.
    """
    required = set(job.required_nodes)
    asked = (event.detail for event in shrinks if event.kind == EventKind.SHRINK)
    return bool(required) and any(
        detail.get("slurm_job_id") == job.job_id and set(detail.get("nodes", ())) == required for detail in asked
    )


def _until_told(
    base: Job, resize: ResizeRow, quiet: float, most_s: float, end: ResizeState, missing: str
) -> list[Action]:
    """Wait for the supervisor's word as long as the job runs, `most_s` seconds at most."""
    if not base.running:
        return _close(base, resize, ResizeState.WITHDRAWN, "the job does not run any more")
    return _close(base, resize, end, f"{missing} within {quiet:.0f} s") if quiet >= most_s else []


def _saved(job: ElasticJob, use: InUse | None, resize: ResizeRow, quiet: float, bounds: Bounds) -> list[Action]:
    base, number = job.base, resize.id
    if base.pending:
        return [Advance(job.job_id, number, ResizeState.SUBMITTED)]
    if base.running and base.start_time is not None and base.start_time > resize.updated:
        return _close(base, resize, ResizeState.FAILED, "it started again before its new size was set")
    if quiet >= bounds.stop_s:
        return _close(base, resize, ResizeState.FAILED, f"it had not ended {quiet:.0f} s after it was put back")
    # Again where it is not known whether Slurm has heard: putting back what is ending is refused, and harmless.
    return [_requeue(base, resize)] if base.running else []


def _submitted(job: ElasticJob, use: InUse | None, resize: ResizeRow, quiet: float, bounds: Bounds) -> list[Action]:
    base, number = job.base, resize.id
    if base.running:
        return [Advance(job.job_id, number, ResizeState.GRANTED), _free(base)]
    if not base.pending:
        return []  # it starts, or has failed to
    if quiet >= bounds.restart_s:
        return _close(
            base, resize, ResizeState.FAILED, f"it waits in Slurm's queue ({base.reason or 'no reason given'})"
        )
    size = size_of(resize)
    if quiet < SETTLE_S or _has(base, size, quiet + resize.updated):
        return []
    return [Resume(job.job_id, base.job_id, number, size, f"requeued at another size by resize {number}")]


def _granted(job: ElasticJob, use: InUse | None, resize: ResizeRow, quiet: float, bounds: Bounds) -> list[Action]:
    base, number = job.base, resize.id
    if not base.running:
        return _close(base, resize, ResizeState.FAILED, "it ended again before it trained")
    if use is not None and use.registered_at > resize.created and units_of(use.pieces) & units_of(job.pieces):
        return [Close(job.job_id, number, ResizeState.DONE, "")]
    if quiet >= bounds.switch_s:
        return _close(base, resize, ResizeState.FAILED, f"its supervisor has not registered within {quiet:.0f} s")
    return []


def size_of(resize: ResizeRow) -> Size:
    """The size that a resize by requeue leads to."""
    shape = resize.add[0]
    return Size(shape.nodes, shape.gpus_per_node)


def _has(base: Job, size: Size, now: float) -> bool:
    """Whether it waits with this size already, free to start."""
    return (base.num_nodes, base.asked_per_node) == (size.nodes, size.gpus_per_node) and (
        base.eligible_time <= now + SOON_S
    )


def _requeue(base: Job, resize: ResizeRow) -> Requeue:
    shape, number = resize.add[0], resize.id
    return Requeue(base.job_id, base.job_id, number, shape.node_list, base.user, f"another size by resize {number}")


def _free(base: Job) -> Free:
    return Free(base.job_id, base.job_id, f"it has its nodes ({reservation_of(base.job_id)})")


def _close(base: Job, resize: ResizeRow, state: ResizeState, detail: str) -> list[Action]:
    return [_free(base), Close(base.job_id, resize.id, state, detail)]
