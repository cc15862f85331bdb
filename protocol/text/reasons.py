"""Why a job has what it has: one enumeration for `selastic explain`, the metrics' labels and the documentation."""

from __future__ import annotations

from enum import Enum

from slurm_elastic.protocol.bottleneck import COMMUNICATION, SLOW_RANK, STARVED_INPUT


class Reason(str, Enum):
    """The value is the machine-readable code; `text` completes the sentence "because ..."."""

    text: str

    def __new__(cls, code: str, text: str = "") -> Reason:
        """A member: its code, and its words."""
        made = str.__new__(cls, code)
        made._value_, made.text = code, text
        return made

    GROW_IDLE = "grow_idle", "GPUs were idle and no waiting job could use them"
    GROW_SHARE = "grow_share", "the GPUs bring more progress here than where they were"
    SHRINK_FOR_JOB = "shrink_for_job", "an ordinary job waits for GPUs"
    SHRINK_FOR_ELASTIC = "shrink_for_elastic", "an elastic job waits for its starting size"
    SHRINK_SHARE = "shrink_share", "the GPUs bring more progress in another job"
    SHRINK_CAPACITY = "shrink_capacity", "the cluster has fewer usable GPUs than before"
    SHRINK_LIMIT = "shrink_limit", "its user or account holds more GPUs than it may"
    SHRINK_NO_GAIN = "shrink_no_gain", "the GPUs it gives up brought it no progress"
    COMPANION_ENDS = "companion_ends", "the time that Slurm gave a companion of it is nearly over"
    SHRINK_SUBMITS = "shrink_submits", "its user may submit few more jobs (MaxSubmitJobs), and a companion is one"
    SHRINK_DRAIN = "shrink_drain", "a node of a companion is to become empty (drained, failing, rebooted or reserved)"
    TAKE_BACK = "take_back", "Slurm did not take GPUs that it had left, and it trains on them again"
    BATCH = "batch", "another global batch is faster at this size"
    KEEP_BEST = "keep_best", "no other size is worth a resize"
    KEEP_ASLEEP = "keep_asleep", "the GPUs that are left are asleep, to save power"
    KEEP_LIMIT = "keep_limit", "its user or account may hold no more GPUs"
    KEEP_REQUEST = "keep_request", "nothing can be added that is what its Slurm job asked for"
    KEEP_COOLDOWN = "keep_cooldown", "it was resized a short while ago"
    KEEP_STALLED = "keep_stalled", "its training does no step, so that it is given nothing, and gives first"
    KEEP_ENDING = "keep_ending", "it was told that Slurm is about to end it, so that it is given nothing"
    KEEP_PINNED = "keep_pinned", "it is pinned"
    KEEP_RESIZING = "keep_resizing", "a resize is under way"
    KEEP_NOT_UNDERSTOOD = (
        "keep_not_understood",
        "its supervisor (selastic run) and selasticd do not understand each other",
    )
    KEEP_UNREGISTERED = "keep_unregistered", "its supervisor (selastic run) has not reported yet"
    KEEP_UNMEASURED = "keep_unmeasured", "its throughput has not been measured yet"
    KEEP_UNFITTED = "keep_unfitted", "no throughput model can be made of its reports"
    KEEP_FAILED = "keep_failed", "its last resize did not come about, and is not tried again for a while"
    WAITING = "waiting", "it waits in Slurm's queue"
    NOT_ELASTIC = "not_elastic", "it has no elastic request"
    MALFORMED = "malformed", "its elastic request cannot be used as it stands"
    IMPOSSIBLE = "impossible", "its elastic request cannot be met on this cluster"
    NOT_ALLOWED = "not_allowed", "its partition or account is not open to elastic jobs"


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


def model_text(line_share: float) -> str:
    """What a job's throughput model is, by the straight line's share of what it predicts."""
    if line_share > 0.5:
        return f"{line_share:.0%} a straight line, which predicted the reports better than the step-time form"
    return f"{1 - line_share:.0%} the step-time form, {line_share:.0%} a straight line"


def bottleneck_remedy(kind: str) -> str:
    """What its user can do about it; empty where nothing is known."""
    return _REMEDY.get(kind, "")


_REMEDY = {
    SLOW_RANK: "look at that node: its clock, its temperature, what else runs there",
    STARVED_INPUT: "more num_workers in job.loader(), with more CPUs per GPU where they have none (--cpus-per-gpu), "
    "faster storage, or less work per sample",
    COMMUNICATION: "a larger global batch or more accumulation, fewer nodes, or a faster network",
}
