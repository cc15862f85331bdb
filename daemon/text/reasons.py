"""Why a job has what it has: one enumeration for `selastic explain`, the metrics' labels and the documentation."""

from __future__ import annotations

from enum import Enum

from slurm_elastic.protocol.bottleneck import COMMUNICATION, SLOW_RANK, STARVED_INPUT


class Reason(str, Enum):
    """The value is the machine-readable code; `text` completes the sentence "because ..."."""

    GROW_IDLE = "grow_idle"
    GROW_SHARE = "grow_share"
    SHRINK_FOR_JOB = "shrink_for_job"
    SHRINK_FOR_ELASTIC = "shrink_for_elastic"
    SHRINK_SHARE = "shrink_share"
    SHRINK_CAPACITY = "shrink_capacity"
    SHRINK_LIMIT = "shrink_limit"
    SHRINK_NO_GAIN = "shrink_no_gain"
    BATCH = "batch"
    KEEP_BEST = "keep_best"
    KEEP_LIMIT = "keep_limit"
    KEEP_COOLDOWN = "keep_cooldown"
    KEEP_PINNED = "keep_pinned"
    KEEP_RESIZING = "keep_resizing"
    KEEP_UNREGISTERED = "keep_unregistered"
    KEEP_UNMEASURED = "keep_unmeasured"
    KEEP_UNFITTED = "keep_unfitted"
    KEEP_FAILED = "keep_failed"
    WAITING = "waiting"
    NOT_ELASTIC = "not_elastic"
    MALFORMED = "malformed"
    IMPOSSIBLE = "impossible"
    NOT_ALLOWED = "not_allowed"

    @property
    def text(self) -> str:
        return _TEXT[self]


def bottleneck_text(kind: str, share: float, rank: int, node: str) -> str:
    """What holds a job's steps back, as its last report has it; empty for nothing. share: of every step."""
    where = f"rank {rank}" + (f" on {node}" if node else "")
    cost = f"{share:.0%} of every step"
    if kind == SLOW_RANK:
        return f"{where} is slower than the others, which costs {cost}"
    if kind == STARVED_INPUT:
        return f"{where} waits for its input for {cost}"
    if kind == COMMUNICATION:
        return f"gradients travel for {cost} while nothing is computed"
    return kind


def bottleneck_remedy(kind: str) -> str:
    """What its user can do about it; empty where nothing is known."""
    return _REMEDY.get(kind, "")


_REMEDY = {
    SLOW_RANK: "look at that node: its clock, its temperature, what else runs there",
    STARVED_INPUT: "more num_workers in job.loader(), faster storage, or less work per sample",
    COMMUNICATION: "a larger global batch or more accumulation, fewer nodes, or a faster network",
}
_TEXT = {
    Reason.GROW_IDLE: "GPUs were idle and no waiting job could use them",
    Reason.GROW_SHARE: "the GPUs bring more progress here than where they were",
    Reason.SHRINK_FOR_JOB: "an ordinary job waits for GPUs",
    Reason.SHRINK_FOR_ELASTIC: "an elastic job waits for its starting size",
    Reason.SHRINK_SHARE: "the GPUs bring more progress in another job",
    Reason.SHRINK_CAPACITY: "the cluster has fewer usable GPUs than before",
    Reason.SHRINK_LIMIT: "its user or account holds more GPUs than it may",
    Reason.SHRINK_NO_GAIN: "the GPUs it gives up brought it no progress",
    Reason.BATCH: "another global batch is faster at this size",
    Reason.KEEP_BEST: "no other size is worth a resize",
    Reason.KEEP_LIMIT: "its user or account may hold no more GPUs",
    Reason.KEEP_COOLDOWN: "it was resized a short while ago",
    Reason.KEEP_PINNED: "it is pinned",
    Reason.KEEP_RESIZING: "a resize is under way",
    Reason.KEEP_UNREGISTERED: "its supervisor (selastic run) has not reported yet",
    Reason.KEEP_UNMEASURED: "its throughput has not been measured yet",
    Reason.KEEP_UNFITTED: "no throughput model can be made of its reports",
    Reason.KEEP_FAILED: "its last resize failed, and it is left alone for a while",
    Reason.WAITING: "it waits in Slurm's queue",
    Reason.NOT_ELASTIC: "it has no elastic request",
    Reason.MALFORMED: "its elastic request cannot be used as it stands",
    Reason.IMPOSSIBLE: "its elastic request cannot be met on this cluster",
    Reason.NOT_ALLOWED: "its partition or account is not open to elastic jobs",
}
