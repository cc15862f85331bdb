"""Why a job has what it has: the facts of `selastic explain`, gathered; the words are the command line's.

Promise: outcome, cause, evidence, cost and what is under way, each as recorded; None or an empty list where nothing
was. Limit: the last decisions only; `events` has the whole story.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from .common import Viewer, reason_text, visible_job
from .evidence import Alternative, Evidence
from .record import about, extended, read, read_all
from .status import JobStatus, job_row
from .visibility import seen

if TYPE_CHECKING:
    from slurm_elastic.db.rows import DecisionRow, ObservationRow, ResizeRow
    from slurm_elastic.db.store import Store

DECISIONS = 50
"""How far back the decision behind the last resize is looked for."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a round decided for the job. Of a cause without its decision only the reason is known."""

    job_id: int | None = None
    at: float | None = None
    gpus_from: int | None = None
    gpus_to: int | None = None
    batch_from: int | None = None
    batch_to: int | None = None
    reason: str
    reason_text: str
    value: float | None = field(default=None, metadata=about("value of the target in the objective's unit"))
    gain: float | None = field(default=None, metadata=about("gain of the move against staying, same unit"))
    evidence: Evidence = field(default_factory=Evidence)
    alternatives: tuple[Alternative, ...] = ()
    mechanism: str = field(default="", metadata=about("how it gets there"))
    mode: str = ""

    @property
    def moves(self) -> bool:
        """Whether it is for another size or batch than the job had."""
        return bool(self.gpus_from) and (self.gpus_from, self.batch_from) != (self.gpus_to, self.batch_to)


@dataclass(frozen=True, kw_only=True)
class PastResize:
    """How the job came to its present size."""

    at: float
    gpus_from: int
    gpus_to: int
    batch_from: int
    batch_to: int
    pause_s: float
    reason: str
    reason_text: str
    id: int = field(metadata=about("its id; 0: the supervisor changed by itself"))
    cause: Decision | None = field(metadata=about("the decision behind it"))


@dataclass(frozen=True, kw_only=True)
class AddedNodes:
    """A companion that a resize asks for."""

    nodes: int
    gpus: int


@dataclass(frozen=True, kw_only=True)
class Resize:
    """A resize, and how far it has come."""

    id: int
    gpus: int
    batch: int
    adds: tuple[AddedNodes, ...]
    reason: str
    reason_text: str
    wait_s: float
    state: str
    detail: str
    created: float
    updated: float


@dataclass(frozen=True, kw_only=True)
class OpenResize(Resize):
    """One that is under way."""

    cause: Decision | None = field(metadata=about("the decision behind it"))


@dataclass(frozen=True, kw_only=True)
class Observation:
    """All reports of the job at one configuration."""

    gpus: int
    nodes: int
    batch: int
    micro_batch: int
    accumulation: int
    count: int = field(metadata=about("reports"))
    step_time: float = field(metadata=about("median step time, in seconds"))
    samples_per_s: float = field(metadata=about("median over the reports, whole job"))
    last_at: float
    noise_scale: float = field(metadata=about("gradient noise scale in samples; 0: not measured"))


@dataclass(frozen=True, kw_only=True)
class ExplainedJob(JobStatus):
    """The job's status, and why it is or is not managed."""

    record_reason: str


@dataclass(frozen=True, kw_only=True)
class Explain:
    """Everything that explains why a job has what it has."""

    now: float
    job: ExplainedJob
    sizes: tuple[int, ...] = field(metadata=about("GPUs of every size that it has had, in order"))
    last_resize: PastResize | None
    decision: Decision | None = field(metadata=about("the last one"))
    resize: OpenResize | None = field(metadata=about("the resize under way"))
    last_closed_resize: Resize | None = field(metadata=about("the last one that ended"))
    observations: tuple[Observation, ...]
    mean_pause_s: float | None


def explain(store: Store, job_id: int, viewer: Viewer, now: float) -> Explain:
    """The facts. Raises NotFound for an unknown job and NotAllowed for another user's."""
    job = visible_job(store, job_id, viewer)
    rows = sorted(store.decisions(job_id, DECISIONS), key=lambda row: -row.at)
    decisions = _Decisions(store, viewer, rows)
    opened = store.resize_of(job_id)
    if opened is not None and opened.state == "running":
        opened = None  # the training has switched; what is left is to give back what it no longer uses
    closed = store.last_closed_resize(job_id)
    return Explain(
        now=now,
        job=extended(ExplainedJob, job_row(store, job, viewer, now), record_reason=job.reason),
        sizes=tuple(row.gpus for row in sorted(store.allocations(job_id), key=lambda row: row.start)),
        last_resize=_last_resize(store, job_id, decisions),
        decision=decisions.seen(rows[0]) if rows else None,
        resize=None if opened is None else extended(OpenResize, _resize(opened), cause=_behind(opened, decisions)),
        last_closed_resize=None if closed is None else _resize(closed),
        observations=observed(store.observations(job_id)),
        mean_pause_s=store.mean_pause(job_id),
    )


def observed(rows: list[ObservationRow]) -> tuple[Observation, ...]:
    """Rows of the store as records."""
    return tuple(Observation(**asdict(row)) for row in rows)


class _Decisions:
    """A job's last decisions, youngest first, as a viewer may see them."""

    def __init__(self, store: Store, viewer: Viewer, rows: list[DecisionRow]) -> None:
        self._store, self._viewer, self._rows = store, viewer, rows

    def cause(self, gpus: int, batch: int, reason: str, until: float) -> Decision | None:
        """The youngest for this change and this reason; rounds during a resize repeat its target, for another."""
        for row in self._rows:
            if row.at <= until and (row.gpus_to, row.batch_to) == (gpus, batch) and row.reason == reason:
                return self.seen(row)
        return None

    def seen(self, row: DecisionRow) -> Decision:
        """One of them."""
        known = read(Evidence, row.evidence), read_all(Alternative, row.alternatives)
        evidence, alternatives = seen(self._store, self._viewer, *known)
        return Decision(
            job_id=row.job_id,
            at=row.at,
            gpus_from=row.gpus_from,
            gpus_to=row.gpus_to,
            batch_from=row.batch_from,
            batch_to=row.batch_to,
            reason=row.reason,
            reason_text=reason_text(row.reason),
            value=row.value,
            gain=row.gain,
            evidence=evidence,
            alternatives=alternatives,
            mechanism=row.mechanism,
            mode=row.mode,
        )


def _last_resize(store: Store, job_id: int, decisions: _Decisions) -> PastResize | None:
    """The latest change of GPUs or batch between two rows of the history; None for a job that never changed."""
    rows = sorted(store.allocations(job_id), key=lambda row: row.start)
    for before, after in reversed(list(pairwise(rows))):
        if (before.gpus, before.batch) == (after.gpus, after.batch):
            continue
        return PastResize(
            at=after.start,
            gpus_from=before.gpus,
            gpus_to=after.gpus,
            batch_from=before.batch,
            batch_to=after.batch,
            pause_s=after.pause_s,
            reason=after.reason,
            reason_text=reason_text(after.reason),
            id=after.resize,
            cause=decisions.cause(after.gpus, after.batch, after.reason, after.start),
        )
    return None


def _behind(resize: ResizeRow, decisions: _Decisions) -> Decision | None:
    # The resize is written down in the same round as its decision, a moment later or earlier.
    return decisions.cause(resize.gpus, resize.batch, resize.reason, resize.created + 1)


def _resize(resize: ResizeRow) -> Resize:
    return Resize(
        id=resize.id,
        gpus=resize.gpus,
        batch=resize.batch,
        adds=tuple(AddedNodes(nodes=shape.nodes, gpus=shape.gpus) for shape in resize.add),
        reason=resize.reason,
        reason_text=reason_text(resize.reason),
        wait_s=resize.wait_s,
        state=resize.state,
        detail=resize.detail,
        created=resize.created,
        updated=resize.updated,
    )
