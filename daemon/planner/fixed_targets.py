"""Jobs whose size is not the optimizer's to choose: pinned by their owner, on a draining node, or not measured (well).

Promise: each gets one target_size with the reason for it, within the limits; for a job that the optimizer is to decide
on, and for a frozen one, there is none.
Limit: an unmeasured job never grows here; what it might gain is not guessed.
"""

from dataclasses import replace

from slurm_elastic.protocol.codes import Reason, ResizeState

from ..capacity.placement import reservation_of
from ..capacity.shrink_options import shrinks
from ..mechanisms import registry
from ..mechanisms.base import WantedSize
from .context import RoundContext
from .moves import TargetSize, nearest_batch
from .pools.candidate import rests
from .running.job import RunningJob


def fixed_target(context: RoundContext, running: RunningJob) -> TargetSize | None:
    """What becomes of a job whose size is not the optimizer's to choose; None for any other."""
    if running.frozen is not None:
        return None
    forced, pinned = context.forced(running), running.state.pinned
    taken_back = take_back(running) if running.stuck and not forced and not failed_lately(running) else None
    if taken_back is not None:
        return taken_back
    if pinned is not None and pinned > running.gpus and (nothing := running.state.given_nothing):
        return TargetSize(running, running.gpus, running.batch, nothing, 0.0)
    if pinned is not None and failed_lately(running) and (pinned > running.gpus or _by_requeue(running)):
        return TargetSize(running, running.gpus, running.batch, Reason.KEEP_FAILED, 0.0)
    if pinned is not None and pinned > running.gpus + context.more(running, pinned):
        context.limiting_reasons[running.job_id] = (
            f"it is pinned to {pinned} GPUs, and {context.limits.label(running.job_id)} in all"
        )
        return TargetSize(running, running.gpus, running.batch, Reason.KEEP_LIMIT, 0.0)
    if pinned is not None and (why := out_of_reach(running, pinned)):
        context.limiting_reasons[running.job_id] = f"it is pinned to {pinned} GPUs, and {why}"
        return TargetSize(running, running.gpus, running.batch, Reason.KEEP_PINNED, 0.0)
    if pinned is not None:
        # An owner's word does not wait for a cooldown.
        batch = nearest_batch(running.job.request.batches(pinned), running.batch)
        return TargetSize(running, pinned, batch, Reason.KEEP_PINNED, float("inf"))
    if not forced and _leaves(context, running):
        return TargetSize(running, running.gpus, running.batch, Reason.SHRINK_CAPACITY, 0.0, elsewhere=True)
    if running.measured:
        return None
    if not forced:
        why = Reason.KEEP_UNFITTED if running.state.unfitted else Reason.KEEP_UNMEASURED
        return TargetSize(running, running.gpus, running.batch, why, 0.0)
    rest = max(rests(running, forced))
    batch = nearest_batch(running.job.request.batches(rest), running.batch)
    return TargetSize(running, rest, batch, context.why_forced(running), 0.0, forced)


def out_of_reach(running: RunningJob, gpus: int) -> str:
    """Why nothing that Slurm can do to the job leads to an accepted size; empty when something does."""
    kept = shrinks(running.shrinkable)

    def reached(size: int) -> bool:
        wanted = WantedSize(size, max(kept, default=0))
        return size == running.gpus or size in kept or registry.cheapest(running, running.site, wanted) is not None

    if reached(gpus):
        return ""
    near = sorted(
        (size for size in running.accepted.every if reached(size)), key=lambda size: (abs(size - gpus), size)
    )[:3]
    within = ", ".join(map(str, sorted(near)))
    return f"from the {running.gpus} that it has, on its nodes, it can't come to that; sizes in reach: {within}"


def take_back(running: RunningJob) -> TargetSize | None:
    """Train again on what Slurm does not take, as far as that makes a size that the job accepts."""
    found = shrinks(replace(running.shrinkable, pieces=running.stuck))
    size = max(found.keys() & running.accepted.every, default=0)
    if size <= running.gpus:
        return None
    batch = nearest_batch(running.job.request.batches(size), running.batch)
    return TargetSize(running, size, batch, Reason.TAKE_BACK, float("inf"), keep=found[size])


def failed_lately(running: RunningJob) -> bool:
    """Whether it may not grow because its last resize did not come about."""
    last = running.state.last
    held = not running.may_grow or running.most is not None
    return held and last is not None and last.state != ResizeState.DONE


def _by_requeue(running: RunningJob) -> bool:
    return running.state.last is not None and running.state.last.requeues


def _leaves(context: RoundContext, running: RunningJob) -> bool:
    """Whether one of its base's nodes is to become empty, and it may be requeued elsewhere."""
    base = running.job.base
    drained = not context.draining.isdisjoint(base.nodes) and base.reservation in ("", reservation_of(base.job_id))
    return drained and running.may_grow and running.may_shrink and running.may_restart
