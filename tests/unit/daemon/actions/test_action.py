"""What each action asks of Slurm, in a call and in words, and what follows when Slurm refuses it."""

from __future__ import annotations

import pytest

from slurm_elastic.daemon.actions.action import Act, Cancel, Close, Free, Requeue, Resume, Shrink
from slurm_elastic.daemon.slurm.model import Size
from slurm_elastic.protocol.errors import SlurmRefused

SHRINK, CANCEL, FREE = Shrink(1, 2, ("n1", "n2"), "why"), Cancel(1, 2, "why"), Free(1, 1, "why")
REQUEUE = Requeue(1, 1, 7, ("n1",), "alice", "why")
RESUME = Resume(1, 1, 7, Size(2, 4), "why")


class Slurm:
    """Takes everything but what it is told to refuse, and remembers what it was asked for."""

    def __init__(self, *refuses: str) -> None:
        self.refuses = refuses
        self.asked: list[str] = []

    def _ask(self, verb: str, *about: object) -> None:
        self.asked.append(" ".join(str(word) for word in (verb, *about) if word != ""))
        if verb in self.refuses:
            raise SlurmRefused("no")

    def shrink(self, job_id: int, nodes: tuple[str, ...]) -> None:
        self._ask("shrink", job_id, ",".join(nodes))

    def cancel(self, job_id: int) -> None:
        self._ask("cancel", job_id)

    def requeue(self, job_id: int) -> None:
        self._ask("requeue", job_id)

    def resize_waiting(self, job_id: int, size: Size, reservation: str = "") -> None:
        self._ask("resize", job_id, size.gpus, reservation)

    def reserve(self, name: str, nodes: tuple[str, ...], user: str, minutes: int) -> None:
        self._ask("reserve", name, ",".join(nodes), user)

    def unreserve(self, name: str, job_id: int = 0) -> None:
        self._ask("unreserve", name, job_id)


@pytest.mark.parametrize(("action", "asked", "sentence"), [
    (SHRINK, ["shrink 2 n1,n2"], "shrink 2 to n1,n2: why"),
    (CANCEL, ["cancel 2"], "cancel 2: why"),
    (FREE, ["unreserve selastic-1 1"], "free the nodes of 1: why"),
    (REQUEUE, ["reserve selastic-1 n1 alice", "requeue 1"], "requeue 1: why"),
    (RESUME, ["resize 1 8 selastic-1"], "resume 1 at 2 x 4 GPUs: why"),
])  # fmt: skip
def test_each_asks_slurm_for_one_thing_and_says_so(action: Act, asked: list[str], sentence: str) -> None:
    """The call and the line of the log are the action's own."""
    slurm = Slurm()
    action.ask(slurm)
    assert (slurm.asked, action.sentence()) == (asked, sentence)


def test_a_job_that_came_back_by_itself_gets_no_reservation() -> None:
    """Nothing was reserved for it: no resize of ours put it back."""
    slurm = Slurm()
    Resume(1, 1, 0, Size(1, 4), "why").ask(slurm)
    assert slurm.asked == ["resize 1 4"]


def test_a_site_without_reservations_still_requeues() -> None:
    """Keeping nodes is help, not a condition, and where there is none, none has to end."""
    slurm = Slurm("reserve", "unreserve")
    REQUEUE.ask(slurm)
    FREE.ask(slurm)
    assert slurm.asked == ["reserve selastic-1 n1 alice", "requeue 1", "unreserve selastic-1 1"]


def test_what_slurm_refuses_of_anything_else_is_raised() -> None:
    """The executor counts it."""
    for action, verb in ((SHRINK, "shrink"), (CANCEL, "cancel"), (REQUEUE, "requeue"), (RESUME, "resize")):
        with pytest.raises(SlurmRefused):
            action.ask(Slurm(verb))


def test_a_refused_step_of_a_requeue_ends_it() -> None:
    """The nodes kept for it are freed; a shrink or a cancellation is asked for again instead."""
    free, close = REQUEUE.if_refused("no")
    assert isinstance(free, Free) and close == Close(1, 7, "failed", "no")
    assert RESUME.if_refused("no") == (free, close)
    assert Resume(1, 1, 0, Size(1, 4), "why").if_refused("no") == ()
    assert SHRINK.if_refused("no") == CANCEL.if_refused("no") == FREE.if_refused("no") == ()


def test_one_question_is_asked_about_one_thing() -> None:
    """Another reason does not make it another question; other nodes, or another size, do."""
    assert SHRINK.question() == Shrink(1, 2, ("n1", "n2"), "another reason").question()
    assert SHRINK.question() != Shrink(1, 2, ("n1",), "why").question() != CANCEL.question()
    assert RESUME.question() != Resume(1, 1, 7, Size(1, 4), "why").question()
