"""What is written down about a decision: the row that `selastic explain` reads. Pure.

The keys are those of daemon/reports/evidence.py. Nothing here decides; what is not known is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import islice
from typing import Any

from slurm_elastic.db.rows import DecisionRow, Mark

from ..capacity.make_room import Met
from ..capacity.roster import ElasticJob
from ..config.settings import Settings
from ..mechanisms.base import pause_s
from ..optimizer.job_view import nodes_at
from ..optimizer.targets import Target
from ..text.reasons import Reason
from .eligibility import Standing, batches, weight_of
from .moves import Move, nearest_batch
from .optimizer_inputs import Member, Shared, rests

MOST_OTHERS = 16
"""Most other jobs that one row names."""
MOST_NAMED = 3
"""Most waiting jobs that one alternative names."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a decision was taken on, beside the job itself."""

    now: float
    settings: Settings
    idle: int
    capacity: int
    pool: str = ""
    member: Member | None = None
    shared: Shared | None = None
    target: Target | None = None
    met: tuple[Met, ...] = ()
    """Waiting jobs that this one makes room for."""
    moved: Callable[[], Sequence[dict[str, Any]]] = tuple
    """Who moves, as `others` gives it."""
    limit: str = ""
    """The limit that keeps it from more, in words."""
    stands: Mark | None = None
    """Of the job's last decision: one like that is made without evidence."""


def row(move: Move, begun: bool, context: Context) -> DecisionRow:
    """The decision on a job that could be moved."""
    standing, wish, target = move.wish.standing, move.wish, context.target
    changes, gpus = move.changes, move.gpus
    # A size that is only tried is no part of the optimizer's plan, and so has none of its gain.
    planned = target is not None and target.gpus == gpus
    gain = context.shared.progress if context.shared is not None and changes and planned else None
    made = DecisionRow(
        job_id=standing.job_id,
        at=context.now,
        gpus_from=standing.gpus,
        gpus_to=gpus,
        batch_from=standing.batch,
        batch_to=wish.batch,
        reason=wish.reason.value,
        value=target.value if target and planned else None,
        gain=gain,
        mechanism=move.mechanism if changes else "",
        mode=context.settings.mode,
    )
    if made.mark == context.stands:
        return made
    alternatives = _alternatives(target, context.member) or _kept_more(move, context.met)
    return replace(made, evidence=_evidence(move, begun, planned, context), alternatives=alternatives)


def _evidence(move: Move, begun: bool, planned: bool, context: Context) -> dict[str, Any]:
    """What a row says beside its numbers. `planned`: the size is the optimizer's."""
    standing, wish = move.wish.standing, move.wish
    found = _common(standing, context) | _speeds(standing, move.gpus, wish.batch, context.member)
    if move.changes:
        among = (entry for entry in context.moved() if entry["job_id"] != standing.job_id)
        others = list(islice(among, MOST_OTHERS))
        found |= ({"others": others} if others else {}) | {"starts": "now" if begun else "later"}
        found |= {"passed_over": move.passed_over(context.settings), "pause_s": move.cost_s(context.settings)}
        if any(mechanism.restarts for mechanism in move.by):
            found["pause_measured"] = standing.state.requeue_s is not None
        if not planned and wish.reason is Reason.GROW_IDLE:
            found["tried"] = True
    if move.changes and not begun:
        found["next"] = f"it is resized as soon as it can be: {move.later or 'enough resizes were begun in this round'}"
    if context.shared is not None and context.shared.held_back and not move.changes:
        found["next"] = (
            f"the best other plan gains {context.shared.gain:.3f}, below the least worth moving for "
            f"({context.settings.min_gain:g})"
        )
    if context.limit:
        found["limit"] = context.limit
        found.setdefault("next", context.limit)
    return found


def row_of_frozen(standing: Standing, context: Context) -> DecisionRow:
    """The decision on a job that is left as it is."""
    intent = standing.state.intent
    reason = standing.frozen or Reason.KEEP_BEST
    made = DecisionRow(
        job_id=standing.job_id,
        at=context.now,
        gpus_from=standing.gpus,
        gpus_to=intent.directive.gpus if intent else standing.gpus,
        batch_from=standing.batch,
        batch_to=intent.directive.batch if intent else standing.batch,
        reason=reason.value,
        value=None,
        gain=None,
        mode=context.settings.mode,
    )
    return made if made.mark == context.stands else replace(made, evidence=_common(standing, context))


def row_of_waiting(job: ElasticJob, met: Met | None, now: float, settings: Settings) -> DecisionRow:
    """The decision on an elastic job in Slurm's queue."""
    gpus = job.base.gpus + sum(part.gpus for part in job.components)
    found: dict[str, Any] = {"for_gpus": gpus, "slurm_reason": job.base.reason}
    if met is not None:
        found["next"] = (
            f"elastic jobs give up {sum(met.givers.values())} GPUs for it" if met.givers else "there is room for it"
        )
    return DecisionRow(
        job_id=job.job_id,
        at=now,
        gpus_from=0,
        gpus_to=gpus if met is not None else 0,
        batch_from=0,
        batch_to=0,
        reason=Reason.WAITING.value,
        value=None,
        gain=None,
        evidence=found,
        mode=settings.mode,
    )


def _common(standing: Standing, context: Context) -> dict[str, Any]:
    state, settings = standing.state, context.settings
    found: dict[str, Any] = {
        "idle_gpus": context.idle,
        "capacity_gpus": context.capacity,
        "pool": context.pool,
        "pause_s": pause_s(standing, settings),
        "pause_measured": state.pause_s is not None,
        "horizon_s": context.member.view.horizon_s if context.member else settings.horizon_s,
    }
    if state.prior_words and standing.measured:
        found["prior"] = state.prior_words
    if state.unfitted:
        found["unfitted"] = state.unfitted
    if state.reported_at is not None:
        found["last_report_age_s"] = max(0.0, round(context.now - state.reported_at, 3))
    if state.pinned is not None:
        found["pinned"] = state.pinned
    if standing.until is not None and standing.until > context.now:
        failed = state.last is not None and state.last.state != "done"
        found["blocked_until" if failed else "cooldown_until"] = standing.until
    if len(state.resized) >= settings.max_resizes_per_job_hour:
        found["resizes_in_hour"] = len(state.resized)
    weight = standing.job.request.weight
    if weight_of(standing.job.request, settings) < weight:
        found |= {"weight_asked": weight, "weight_counts": settings.max_weight}
    if state.intent is not None:
        found["resize"] = state.intent.directive.id
    if context.met:
        first = context.met[0]
        found |= {"for_job": first.need.job_id, "for_gpus": first.need.gpus}
        found["for_jobs"] = [
            {"job_id": met.need.job_id, "gpus": met.need.gpus, "given": met.givers[standing.job_id]}
            for met in context.met
        ]
    return found


def _speeds(standing: Standing, gpus: int, batch: int, member: Member | None) -> dict[str, Any]:
    """Throughput and progress before and after, with the reports behind them."""
    counts: dict[int, int] = {}
    for seen in standing.state.observations:
        counts[seen.gpus] = counts.get(seen.gpus, 0) + seen.count
    found: dict[str, Any] = {"reports_from": counts.get(standing.gpus, 0), "reports_to": counts.get(gpus, 0)}
    model, speed = member.view.model if member else None, _throughput(member)
    if member is None or model is None or speed is None:
        return found
    least = standing.job.request.min_gpus
    least_batch = max(standing.job.request.batches(least), default=batch)
    before, after, unit = speed(standing.gpus, standing.batch), speed(gpus, batch), speed(least, least_batch)
    found |= {"samples_per_s_from": before, "samples_per_s_to": after, "modelled": gpus not in counts}
    if gpus not in counts:
        found["doubt"] = round(model.uncertainties([(gpus, nodes_at(member.view, gpus))])[0], 3)
    return found | {"speedup_from": before / unit, "speedup_to": after / unit}


def _throughput(member: Member | None) -> Callable[[int, int], float] | None:
    """Samples/s of the member's model at so many GPUs and a global batch; None without a model."""
    model = member.view.model if member else None
    if member is None or model is None:
        return None
    nodes = dict(member.view.choices)
    dense = max((k / n for k, n in nodes.items() if n), default=1.0)
    return lambda k, b: model.throughput(k, nodes.get(k) or max(1, round(k / dense)), max(1, b))


def others(moves: Sequence[Move], members: Mapping[int, Member]) -> list[dict[str, Any]]:
    """Those who move, the largest changes first, as many as a row names beside its own job."""
    found = []
    for move in nsmallest(MOST_OTHERS + 1, moves, key=_by_change):
        standing = move.wish.standing
        job_id = standing.job_id
        entry: dict[str, Any] = {"job_id": job_id, "gpus_from": standing.gpus, "gpus_to": move.gpus}
        speeds = _speeds(standing, move.gpus, move.wish.batch, members.get(job_id))
        if speeds.get("samples_per_s_from"):
            entry["change"] = speeds["samples_per_s_to"] / speeds["samples_per_s_from"] - 1.0
        found.append(entry)
    return found


def _by_change(move: Move) -> tuple[int, int]:
    standing = move.wish.standing
    return -abs(move.gpus - standing.gpus), standing.job_id


def _alternatives(target: Target | None, member: Member | None) -> list[dict[str, Any]]:
    if target is None:
        return []
    speed = _throughput(member)
    return [
        {"gpus": gpus, "batch": batch, "value": value}
        | ({"samples_per_s": round(speed(gpus, batch), 3)} if speed else {})
        for gpus, batch, value in target.alternatives
    ]


def _kept_more(move: Move, met: Sequence[Met]) -> list[dict[str, Any]]:
    """The next size above the one that is left to a job which makes room, and why it was not left that one."""
    standing = move.wish.standing
    if not met or not move.wish.forced:
        return []
    size = min((k for k in rests(standing, frozenset()) if move.gpus < k <= standing.gpus), default=standing.gpus)
    names = ", ".join(str(entry.need.job_id) for entry in met[:MOST_NAMED])
    return [
        {
            "gpus": size,
            "batch": nearest_batch(batches(standing.job.request, size), standing.batch),
            "why": f"too few would be left for {names} to start",
        }
    ]
