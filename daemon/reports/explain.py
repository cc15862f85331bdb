"""Why a job has what it has: the facts of `selastic explain`, gathered; the words are the command line's.

Promise: outcome, cause, evidence, cost and what is under way, each as recorded; None or an empty list where nothing
was. Limit: the last decisions only; `events` has the whole story.
"""

import re
from itertools import pairwise
from typing import TypeVar

from slurm_elastic.db.rows import DecisionRow, JobRow, ObservationRow, ResizeRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers import explain as answers
from slurm_elastic.protocol.answers.record import made_from, read, read_all, reason_text
from slurm_elastic.protocol.codes import EventKind, ResizeState

from ..capacity.constraints import apart, left_out_until
from .common import Viewer, seen, visible_job
from .status import job_row

R = TypeVar("R")


EVENTS = 200
"""How far back a refusal is looked for."""


OF_TRAINING = (
    *(EventKind.STALLED, EventKind.STEPS_AGAIN, EventKind.RUNNING, EventKind.RESIZE_RUNNING),
    *(EventKind.FINISHED, EventKind.ENDED),
)
"""Events that say whether a training goes on."""


DECISIONS = 50
"""How far back the decision behind the last resize is looked for."""


def explain(store: Store, job_id: int, viewer: Viewer, now: float) -> answers.Explain:
    """The facts. Raises NotFound for an unknown job and NotAllowed for another user's."""
    job = visible_job(store, job_id, viewer)
    rows = sorted(store.decisions.of(job_id, DECISIONS), key=lambda row: -row.at)
    decisions = _Decisions(store, viewer, rows)
    opened = store.resizes.of(job_id)
    if opened is not None and opened.state == ResizeState.RUNNING:
        opened = None  # the training has switched; what is left is to give back what it no longer uses
    closed = store.resizes.last_closed(job_id)
    return answers.Explain(
        now=now,
        job=made_from(answers.ExplainedJob, job_row(store, job, viewer.uid == job.uid, now), record_reason=job.reason),
        sizes=tuple(row.gpus for row in sorted(store.allocations.rows(job_id), key=lambda row: row.start)),
        last_resize=_last_resize(store, job_id, decisions),
        decision=decisions.seen(rows[0]) if rows else None,
        resize=None if opened is None else _resize(answers.OpenResize, opened, cause=_behind(opened, decisions)),
        last_closed_resize=None if closed is None else _resize(answers.ResizeProgress, closed),
        refused=_refused(store, job_id, now),
        not_understood=_not_understood(store, job_id),
        policy_failed=_policy_failed(store),
        stalled=_stalled(store, job_id, now),
        too_large=tuple(sorted(store.resizes.too_large(job_id))),
        hosts_apart=_hosts_apart(store, job, now),
        observations=observed(store.reports.observations(job_id)),
        mean_pause_s=store.allocations.mean_pause(job_id),
        checkpoints=_checkpoints(store, job),
    )


def _checkpoints(store: Store, job: JobRow) -> answers.Checkpoints | None:
    row = store.outcomes.checkpoint_of(job.job_id) if job.end_time is None else None
    return made_from(answers.Checkpoints, row) if row is not None else None


def observed(rows: list[ObservationRow]) -> tuple[answers.Measurement, ...]:
    """Rows of the store as records."""
    return tuple(made_from(answers.Measurement, row) for row in rows)


class _Decisions:
    """A job's last decisions, youngest first, as a viewer may see them."""

    def __init__(self, store: Store, viewer: Viewer, rows: list[DecisionRow]) -> None:
        self._store, self._viewer, self._rows = store, viewer, rows

    def cause(self, gpus: int, batch: int, reason: str, until: float) -> answers.Decision | None:
        """The youngest for this change and this reason; rounds during a resize repeat its target, for another."""
        for row in self._rows:
            if row.at <= until and (row.gpus_to, row.batch_to) == (gpus, batch) and row.reason == reason:
                return self.seen(row)
        return None

    def seen(self, row: DecisionRow) -> answers.Decision:
        known = read(answers.Evidence, row.evidence), read_all(answers.Alternative, row.alternatives)
        evidence, alternatives = seen(self._store, self._viewer, *known)
        words = reason_text(row.reason)
        return made_from(answers.Decision, row, reason_text=words, evidence=evidence, alternatives=alternatives)


def _last_resize(store: Store, job_id: int, decisions: _Decisions) -> answers.PastResize | None:
    """The latest change of GPUs or batch between two rows of the history; None for a job that never changed."""
    rows = sorted(store.allocations.rows(job_id), key=lambda row: row.start)
    for before, after in reversed(list(pairwise(rows))):
        if (before.gpus, before.batch) == (after.gpus, after.batch):
            continue
        return made_from(
            answers.PastResize,
            after,
            at=after.start,
            gpus_from=before.gpus,
            gpus_to=after.gpus,
            batch_from=before.batch,
            batch_to=after.batch,
            reason_text=reason_text(after.reason),
            id=after.resize,
            cause=decisions.cause(after.gpus, after.batch, after.reason, after.start),
        )
    return None


def _refused(store: Store, job_id: int, now: float) -> answers.Refused | None:
    """The last refusal, as long as the same is not asked again."""
    refusals = (event for event in store.events.of(job_id, limit=EVENTS) if event.kind == EventKind.REFUSED)
    last = max(refusals, key=lambda event: event.id, default=None)
    if last is None:
        return None
    again_at = last.at + float(str(last.detail.get("again_in_s", 0.0)))
    return (
        answers.Refused(at=last.at, error=str(last.detail.get("error", "")), again_at=again_at)
        if again_at > now
        else None
    )


def _not_understood(store: Store, job_id: int) -> str:
    """The sentence that stands; of a job that could not register, the last one."""
    use = store.allocations.in_use(job_id)
    if use is not None:
        return use.refusal
    last = store.events.of(job_id, limit=1)
    return str(last[0].detail.get("detail", "")) if last and last[0].kind == EventKind.NOT_UNDERSTOOD else ""


def _policy_failed(store: Store) -> str:
    """What selasticd said of its policy, unless the policy has planned since, or another daemon has begun."""
    of_policy = (EventKind.POLICY_FAILED, EventKind.POLICY_WORKS, EventKind.STARTED)
    told = (event for event in store.events.of(0, limit=EVENTS) if event.kind in of_policy)
    last = max(told, key=lambda event: event.id, default=None)
    failed = last is not None and last.kind == EventKind.POLICY_FAILED
    return str(last.detail.get("detail", "")) if last is not None and failed else ""


def _stalled(store: Store, job_id: int, now: float) -> str:
    """What its supervisor said, if it has said nothing of the training since; with the time that it is by now."""
    told = (event for event in store.events.of(job_id, limit=EVENTS) if event.kind in OF_TRAINING)
    last = max(told, key=lambda event: event.id, default=None)
    if last is None or last.kind != EventKind.STALLED:
        return ""
    said, use = str(last.detail.get("detail", "")), store.allocations.in_use(job_id)
    since = (use.stalled_since if use is not None else 0.0) or now
    # A supervisor of 0.2.0 says the time in its words alone.
    return re.sub(r"(?<=^no step for )\d+", lambda found: f"{max(int(found[0]), now - since):.0f}", said)


def _hosts_apart(store: Store, job: JobRow, now: float) -> tuple[answers.HostsApart, ...]:
    use, pairs = store.allocations.in_use(job.job_id), store.host_pairs.all()
    own = {node for piece in use.pieces for node in piece.nodes} if use is not None else set()
    out = {both for both in apart(pairs, job.user, now) if not own.isdisjoint(both)} if pairs else set()
    rows = {(pair.host, pair.other): pair for pair in sorted(pairs, key=lambda pair: pair.user == job.user)}
    return tuple(made_from(answers.HostsApart, rows[both], again_at=left_out_until(rows[both])) for both in sorted(out))


def _behind(resize: ResizeRow, decisions: _Decisions) -> answers.Decision | None:
    # The resize is written down in the same round as its decision, a moment later or earlier.
    return decisions.cause(resize.gpus, resize.batch, resize.reason, resize.created + 1)


def _resize(kind: type[R], row: ResizeRow, **more: object) -> R:
    adds = tuple(made_from(answers.AddedNodes, shape) for shape in row.add)
    return made_from(kind, row, adds=adds, reason_text=reason_text(row.reason), **more)
