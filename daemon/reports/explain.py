"""Why a job has what it has: the facts of `selastic explain`, gathered; the words are the command line's.

Promise: outcome, cause, evidence, cost and what is under way, each as recorded; None or an empty list where nothing
was. Limit: the last decisions only; `events` has the whole story.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from .common import Viewer, reason_text, visible_job
from .status import job_row
from .visibility import hidden

if TYPE_CHECKING:
    from slurm_elastic.db.rows import DecisionRow, IntentRow
    from slurm_elastic.db.store import Store

DECISIONS = 50
"""How far back the decision behind the last resize is looked for."""


def explain(store: Store, job_id: int, viewer: Viewer, now: float) -> dict[str, Any]:
    """The facts. Raises NotFound for an unknown job and NotAllowed for another user's.

    job: the row of `status`; last_resize: how it came to its present size, with the decision behind it as `cause`;
    decision: the last one; resize: an order under way; last_order: the last one that ended; observations: a row for
    each configuration measured.
    """
    job = visible_job(store, job_id, viewer)
    decisions = sorted(store.decisions(job_id, DECISIONS), key=lambda row: -row.at)
    opened = store.open_intent(job_id)
    if opened is not None and opened.state == "running":
        opened = None  # the training has switched; what is left is to give back what it no longer uses
    closed = store.last_closed_intent(job_id)
    facts: dict[str, Any] = {
        "now": now,
        "job": job_row(store, job, viewer, now) | {"record_reason": job.reason},
        "sizes": [row.gpus for row in sorted(store.allocations(job_id), key=lambda row: row.start)],
        "last_resize": _last_resize(store, job_id, decisions),
        "decision": _decision(decisions[0]) if decisions else None,
        "resize": None if opened is None else _order(opened) | {"cause": _behind(opened, decisions)},
        "last_order": None if closed is None else _order(closed),
        "observations": [asdict(seen) for seen in store.observations(job_id)],
        "mean_pause_s": store.mean_pause(job_id),
    }
    resized, ordered = facts["last_resize"], facts["resize"]
    for decision in (facts["decision"], resized and resized["cause"], ordered and ordered["cause"]):
        if decision is not None:
            decision |= hidden(store, viewer, decision)
    return facts


def _last_resize(store: Store, job_id: int, decisions: list[DecisionRow]) -> dict[str, Any] | None:
    """The latest change of GPUs or batch between two rows of the history; None for a job that never changed."""
    rows = sorted(store.allocations(job_id), key=lambda row: row.start)
    for before, after in reversed(list(pairwise(rows))):
        if (before.gpus, before.batch) == (after.gpus, after.batch):
            continue
        cause = _cause(decisions, after.gpus, after.batch, after.reason, after.start)
        return {
            "at": after.start,
            "gpus_from": before.gpus,
            "gpus_to": after.gpus,
            "batch_from": before.batch,
            "batch_to": after.batch,
            "pause_s": after.pause_s,
            "reason": after.reason,
            "reason_text": reason_text(after.reason),
            "directive": after.directive,
            "cause": cause,
        }
    return None


def _behind(intent: IntentRow, decisions: list[DecisionRow]) -> dict[str, Any] | None:
    order = intent.directive
    # The order is written down in the same round as its decision, a moment later or earlier.
    return _cause(decisions, order.gpus, order.batch, order.reason, intent.created + 1)


def _cause(decisions: list[DecisionRow], gpus: int, batch: int, reason: str, until: float) -> dict[str, Any] | None:
    """The youngest decision for this change and this reason; rounds during a resize repeat its target, for another."""
    for row in decisions:
        if row.at <= until and (row.gpus_to, row.batch_to) == (gpus, batch) and row.reason == reason:
            return _decision(row)
    return None


def _decision(row: DecisionRow) -> dict[str, Any]:
    return asdict(row) | {"reason_text": reason_text(row.reason)}


def _order(intent: IntentRow) -> dict[str, Any]:
    return {
        "id": intent.directive.id,
        "gpus": intent.directive.gpus,
        "batch": intent.directive.batch,
        "adds": [{"nodes": shape.nodes, "gpus": shape.gpus} for shape in intent.directive.add],
        "reason": intent.directive.reason,
        "reason_text": reason_text(intent.directive.reason),
        "wait_s": intent.directive.wait_s,
        "state": intent.state,
        "detail": intent.detail,
        "created": intent.created,
        "updated": intent.updated,
    }
