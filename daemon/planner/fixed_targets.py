"""Jobs whose size is not the optimizer's to choose: pinned by their owner, on a draining node, or not measured (well).

Promise: each gets one allotment with the reason for it, within the limits; for a job that the optimizer is to decide
on, and for a frozen one, there is none.
Limit: an unmeasured job never grows here; what it might gain is not guessed.
"""

from __future__ import annotations

from slurm_elastic.protocol.resize_state import ResizeState

from ..text.reasons import Reason
from .context import Situation
from .eligibility import Standing
from .moves import Allotment, nearest_batch
from .optimizer_inputs import rests


def settled(situation: Situation, standing: Standing) -> Allotment | None:
    """What becomes of a job whose size is not the optimizer's to choose; None for any other."""
    if standing.frozen is not None:
        return None
    forced, pinned = situation.forced(standing), standing.state.pinned
    if pinned is not None and pinned > standing.gpus and failed_lately(standing):
        return Allotment(standing, standing.gpus, standing.batch, Reason.KEEP_FAILED, 0.0)
    if pinned is not None and pinned > standing.gpus + situation.more(standing, pinned):
        situation.said[standing.job_id] = (
            f"it is pinned to {pinned} GPUs, and {situation.limits.label(standing.job_id)} in all"
        )
        return Allotment(standing, standing.gpus, standing.batch, Reason.KEEP_LIMIT, 0.0)
    if pinned is not None:
        # An owner's word does not wait for a cooldown.
        batch = nearest_batch(standing.job.request.batches(pinned), standing.batch)
        return Allotment(standing, pinned, batch, Reason.KEEP_PINNED, float("inf"))
    if not forced and _leaves(situation, standing):
        return Allotment(standing, standing.gpus, standing.batch, Reason.SHRINK_CAPACITY, 0.0, elsewhere=True)
    if standing.measured:
        return None
    if not forced:
        why = Reason.KEEP_UNFITTED if standing.state.unfitted else Reason.KEEP_UNMEASURED
        return Allotment(standing, standing.gpus, standing.batch, why, 0.0)
    rest = max(rests(standing, forced))
    batch = nearest_batch(standing.job.request.batches(rest), standing.batch)
    return Allotment(standing, rest, batch, situation.why_forced(standing), 0.0, forced)


def failed_lately(standing: Standing) -> bool:
    """Whether it may not grow because its last resize did not come about."""
    last = standing.state.last
    return not standing.may_grow and last is not None and last.state != ResizeState.DONE


def _leaves(situation: Situation, standing: Standing) -> bool:
    """Whether one of its base's nodes is being drained, and it may be requeued elsewhere."""
    nodes = situation.inputs.snapshot.nodes
    drained = [n for n in standing.job.base.nodes if n in nodes and not _DRAINING.isdisjoint(nodes[n].flags)]
    return bool(drained) and standing.may_grow and standing.may_shrink and standing.may_restart


_DRAINING = frozenset({"DRAIN", "DRAINING"})
