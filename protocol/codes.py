"""The codes that users see, each an enumeration with its meaning, for messages, database, command line, metrics' labels
and documentation: how far a resize has come, what `selastic events` lists, and why a job has what it has.
"""

from __future__ import annotations

from enum import Enum

from slurm_elastic.protocol.bottleneck import COMMUNICATION, SLOW_RANK, STARVED_INPUT


class Explained(str, Enum):
    """Words that users see, each with its meaning."""

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Explained:
        member = str.__new__(cls, value)
        member._value_, member.meaning = value, meaning
        return member

    def __str__(self) -> str:
        return str(self.value)


class ResizeState(Explained):
    """In the order in which a resize comes to them; a mechanism may leave some out."""

    ISSUED = "issued", "'selastic run' is to take the resize; training goes on meanwhile"
    ACCEPTED = "accepted", "'selastic run' carries it out; training goes on meanwhile"
    SAVED = "saved", "by requeue: the checkpoint is written, the job goes back into Slurm's queue"
    SUBMITTED = "submitted", "Slurm is to grant what was asked for; training goes on meanwhile"
    GRANTED = "granted", "the new workers start and warm up; training goes on meanwhile"
    READY = "ready", "the new workers are ready; training switches at a step that all agree on"
    RUNNING = "running", "the new size trains; what was given up is still to be released"
    DONE = "done", "the new size trains, and what was given up is released"
    FAILED = "failed", "it went wrong; the job goes on as before"
    WITHDRAWN = "withdrawn", "given up before the training switched"
    OVERTAKEN = "overtaken", "given up because another job took, or waits for, the nodes that it was to get"

    @property
    def closed(self) -> bool:
        """The resize is over, and never changes again."""
        return self in _CLOSED

    def comes_before(self, other: ResizeState) -> bool:
        """Whether a resize in this state may come to the other one."""
        return not self.closed and (other.closed or _ORDER.index(self) < _ORDER.index(other))


_ORDER = tuple(ResizeState)
_CLOSED = (ResizeState.DONE, ResizeState.FAILED, ResizeState.WITHDRAWN, ResizeState.OVERTAKEN)


def _of_state(state: ResizeState) -> tuple[str, str]:
    return f"resize_{state}", state.meaning


class EventKind(Explained):
    """Those of a resize are its states, whoever reports them: selasticd or the job's supervisor."""

    MANAGED = "managed", "the job is resized from now on"
    NOT_MANAGED = "not_managed", "the job is not resized; the detail says why"
    REQUEST = "request", "the elastic request is another one from now on; the detail has the one before"
    REGISTERED = "registered", "the job's supervisor has registered"
    NOT_UNDERSTOOD = (
        "not_understood",
        "'selastic run' and selasticd do not understand each other; the job is not resized, and they try again",
    )
    PINNED = "pinned", "a user holds the job at a size"
    UNPINNED = "unpinned", "a user lets the job be resized again"
    HOSTS_CLEARED = "hosts_cleared", "a user says that hosts reach each other again (job 0)"
    PROBED = "probed", "a user has tried what Slurm does in a partition (job 0)"
    RESIZE_ISSUED = _of_state(ResizeState.ISSUED)
    RESIZE_ACCEPTED = _of_state(ResizeState.ACCEPTED)
    RESIZE_SAVED = _of_state(ResizeState.SAVED)
    RESIZE_SUBMITTED = _of_state(ResizeState.SUBMITTED)
    RESIZE_GRANTED = _of_state(ResizeState.GRANTED)
    RESIZE_READY = _of_state(ResizeState.READY)
    RESIZE_RUNNING = _of_state(ResizeState.RUNNING)
    RESIZE_DONE = _of_state(ResizeState.DONE)
    RESIZE_FAILED = _of_state(ResizeState.FAILED)
    RESIZE_WITHDRAWN = _of_state(ResizeState.WITHDRAWN)
    RESIZE_OVERTAKEN = _of_state(ResizeState.OVERTAKEN)
    NOT_BEGUN = "not_begun", "the database refused a resize before it began; the detail says why"
    RUNNING = "running", "the training runs, and not because of a resize: at the start and after a restart"
    STALLED = "stalled", "no step has been done for long; the detail says where the ranks wait"
    STEPS_AGAIN = "steps_again", "steps are done again"
    ENDING = "ending", "the job was told that Slurm is about to end it; it grows no more"
    SHRINK = "shrink", "Slurm is asked to take nodes from a Slurm job"
    CANCEL = "cancel", "Slurm is asked to end a companion or a component"
    REQUEUE = "requeue", "Slurm is asked to put the job back into the queue"
    RESUME = "resume", "Slurm is asked to start a waiting job at another size"
    FREE = "free", "Slurm is asked to end the reservation that kept nodes for the job"
    PRIORITIZE = "prioritize", "Slurm is asked for another site factor in the priority of a waiting job"
    POWER = "power", "Slurm is asked to let an idle node sleep, or to wake it (job 0)"
    REFUSED = "refused", "Slurm has refused; the detail has its words"
    FINISHED = "finished", "the training has ended; the detail has the exit code"
    ENDED = "ended", "the Slurm job has ended"
    STARTED = "started", "selasticd leads from now on (job 0)"
    RESTS = (
        "rests",
        "Slurm refused several jobs of one user, or of several users in an account or a partition: no more of them are "
        "asked for a while (job 0)",
    )
    TRIPPED = "tripped", "jobs of several users, accounts and partitions were refused: selasticd only reviews (job 0)"
    POLICY_FAILED = "policy_failed", "the site's policy gave no plan: the built-in one plans in its place (job 0)"
    POLICY_WORKS = "policy_works", "the site's policy plans again (job 0)"
    SERVICE = "service", "a service of selasticd says what it decided; the detail has which service, and about what"
    TRIES_AGAIN = "tries_again", "selasticd acts again (job 0)"

    @classmethod
    def of(cls, state: ResizeState) -> EventKind:
        """The event that a resize has come to this state."""
        return cls(f"resize_{state}")


class Reason(Explained):
    """The meaning completes the sentence "because ..."."""

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
    KEEP_STALLED = "keep_stalled", "it does no step, or nothing waits for it: it is given nothing, and gives first"
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
