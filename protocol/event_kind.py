"""What `selastic events` lists: every kind of event that selasticd stores."""

from __future__ import annotations

from .resize_state import Explained, ResizeState


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
