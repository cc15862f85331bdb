"""What `selastic events` lists: every kind of event that selasticd stores."""

from __future__ import annotations

from .resize_state import Explained, ResizeState


class EventKind(Explained):
    """Those of a resize are its states, whoever reports them: selasticd or the job's supervisor."""

    MANAGED = "managed", "the job is resized from now on"
    NOT_MANAGED = "not_managed", "the job is not resized; the detail says why"
    REGISTERED = "registered", "the job's supervisor has registered"
    PINNED = "pinned", "a user holds the job at a size"
    UNPINNED = "unpinned", "a user lets the job be resized again"
    RESIZE_ISSUED = "resize_issued", "a resize begins: it is stored for the supervisor to take"
    RESIZE_ACCEPTED = "resize_accepted", "the supervisor has taken it"
    RESIZE_SAVED = "resize_saved", "by requeue: the checkpoint is written"
    RESIZE_SUBMITTED = "resize_submitted", "what it adds is asked of Slurm"
    RESIZE_GRANTED = "resize_granted", "Slurm has granted it; the new workers start and warm up"
    RESIZE_READY = "resize_ready", "the new workers are ready"
    RESIZE_RUNNING = "resize_running", "the new size trains"
    RESIZE_DONE = "resize_done", "what was given up is released"
    RESIZE_FAILED = "resize_failed", "it went wrong; the job goes on as before"
    RESIZE_WITHDRAWN = "resize_withdrawn", "given up before the training switched"
    RESIZE_OVERTAKEN = "resize_overtaken", "given up because another job took the nodes that it waited for"
    RUNNING = "running", "the training runs, and not because of a resize: at the start and after a restart"
    SHRINK = "shrink", "Slurm is asked to take nodes from a Slurm job"
    CANCEL = "cancel", "Slurm is asked to end a companion or a component"
    REQUEUE = "requeue", "Slurm is asked to put the job back into the queue"
    RESUME = "resume", "Slurm is asked to start a requeued job at its new size"
    FREE = "free", "Slurm is asked to end the reservation that kept nodes for the job"
    REFUSED = "refused", "Slurm has refused; the detail has its words"
    FINISHED = "finished", "the training has ended; the detail has the exit code"
    ENDED = "ended", "the Slurm job has ended"
    STARTED = "started", "selasticd leads from now on (job 0)"
    TRIPPED = "tripped", "several requests in a row were refused: selasticd only advises for a while (job 0)"
    TRIES_AGAIN = "tries_again", "selasticd acts again (job 0)"

    @classmethod
    def of(cls, state: ResizeState) -> EventKind:
        """The event that a resize has come to this state."""
        return cls(f"resize_{state}")
