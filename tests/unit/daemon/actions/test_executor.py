"""How actions are carried out: an event before each, and memory of what Slurm refused or took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest

from slurm_elastic.daemon.actions.action import NODE, Act, Cancel, Close, Shrink, Subject
from slurm_elastic.daemon.actions.executor import ROUND_ASKS, ROUND_ASKS_S, Executor
from slurm_elastic.daemon.slurm.model import Job, SlurmClient
from slurm_elastic.db.rows import ResizeRow
from slurm_elastic.protocol.codes import EventKind, ResizeState
from slurm_elastic.protocol.errors import SlurmRefused, SlurmUnreachable
from slurm_elastic.protocol.messages import Resize

NOW = 1000.0


class Script:
    """A Slurm that answers as told, and a store that remembers the order of things."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.log: list[str] = []
        self.details: list[tuple[int, dict[str, object]]] = []
        self.now = NOW
        self.events = self.resizes = self

    def shrink(self, job_id: int, nodes: Sequence[str]) -> None:
        self._answer(f"shrink {job_id} {','.join(nodes)}")

    def cancel(self, job_id: int) -> None:
        self._answer(f"cancel {job_id}")

    def _answer(self, what: str) -> None:
        self.log.append(what)
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer

    def add(self, job_id: int, kind: str, who: str, detail: dict[str, object], at: float) -> None:
        self.log.append(f"event {kind}")
        self.details.append((job_id, detail))

    def advance(self, number: int, state: str, detail: str = "", at: float | None = None) -> None:
        self.log.append(f"resize {number} {state}")

    def executor(self, **more: object) -> Executor:
        return Executor(self, self, lambda: self.now, **more)  # type: ignore[arg-type]

    def add_all(self, details: dict[int, dict[str, object]], kind: str, who: str, at: float) -> None:
        self.log += [f"event {kind}"] if details else []

    def begin_all(self, resizes: Sequence[Resize], at: float) -> tuple[list[ResizeRow], dict[int, str]]:
        self.log.append("resizes begin")
        return [ResizeRow.issued(resize, at) for resize in resizes], {}


CANCEL = Cancel(1, 5, "why")


def test_the_event_is_stored_before_the_act() -> None:
    """What was about to be done is known even if the daemon dies doing it."""
    script = Script()
    assert len(script.executor().run([CANCEL, Shrink(1, 1, ("n1",), "why")], act=True)) == 2
    assert script.log == ["event cancel", "cancel 5", "event shrink", "shrink 1 n1"]


def test_who_waits_hears_of_a_resize_before_slurm_is_asked_for_more() -> None:
    """And only once it is stored: what follows may take Slurm long, or fail."""
    script = Script()
    executor = script.executor(notify=lambda job_id: script.log.append(f"job {job_id} hears"))
    executor.run([Resize(3, 2, (), (), 4, 8, "grow", 60.0), CANCEL, Close(2, 7, ResizeState.DONE, "")], act=True)
    begun = ["resizes begin", "event resize_issued", "job 2 hears"]
    assert script.log[:3] == begun and script.log[3:5] == ["event cancel", "cancel 5"]
    assert script.log[-2:] == ["resize 7 done", "job 2 hears"]


@dataclass(frozen=True)
class PowerDown(Act):
    """An action about a node."""

    kind = EventKind.FREE
    node: str

    @property
    def subject(self) -> Subject:
        return Subject(NODE, self.node)

    def ask(self, client: SlurmClient) -> None:
        client.cancel(0)

    def sentence(self) -> str:
        return f"power down {self.node}"


def test_an_action_about_a_node_has_its_own_event_backoff_and_rest(caplog: pytest.LogCaptureFixture) -> None:
    """Its event is the daemon's, with the node in its detail. One node refused rests alone; several, every node; jobs
    go on."""
    script = Script(*[SlurmRefused("no")] * 3)
    executor = script.executor(trip_after=3)
    assert not executor.run([PowerDown("n1"), PowerDown("n1"), PowerDown("n2")], act=True)
    assert script.details[0] == (0, {"node": "n1"}) and len(script.details) == 4
    assert "node n1: refused (power down n1)" in caplog.text
    assert not executor.run([PowerDown("n3")], act=True) and "every node" in caplog.text
    assert not executor.run([PowerDown("n4")], act=True) and script.log.count("event free") == 3
    assert len(executor.run([CANCEL], act=True)) == 1 and not executor.tripped


def test_a_refused_action_is_not_hammered() -> None:
    """It is asked again after its backoff, which doubles."""
    script = Script(SlurmRefused("no"), SlurmRefused("no"))
    executor = script.executor(backoff_s=60.0)
    executor.run([CANCEL], act=True)
    executor.run([CANCEL], act=True)
    assert script.log == ["event cancel", "cancel 5", "event refused"]
    script.now += 61
    executor.run([CANCEL], act=True)
    script.now += 61
    executor.run([CANCEL], act=True)
    assert script.log.count("cancel 5") == 2
    script.now += 61
    assert len(executor.run([CANCEL], act=True)) == 1


def test_an_unreachable_slurm_proves_nothing() -> None:
    """No backoff, no failure counted: the next round looks again."""
    script = Script(SlurmUnreachable("no answer"), None)
    executor = script.executor(trip_after=1)
    assert len(executor.run([CANCEL], act=True)) == 0
    assert executor.tripped == ""
    executor.begin_round()
    assert len(executor.run([CANCEL], act=True)) == 1


def test_after_one_without_an_answer_the_rest_waits_for_the_next_round() -> None:
    """slurmctld hangs in the middle of a round with many releases due: one call waits for it, resizes are closed all
    the same, and the next round asks again."""
    script = Script(SlurmUnreachable("no answer"))
    executor = script.executor()
    actions = [Cancel(1, number, "why") for number in range(1, 17)]
    executor.begin_round()
    assert len(executor.run([*actions, Close(2, 7, ResizeState.DONE, "")], act=True)) == 1
    assert len(executor.run(actions, act=True)) == 0
    assert [entry for entry in script.log if entry.startswith("cancel")] == ["cancel 1"]
    executor.begin_round()
    assert len(executor.run(actions, act=True)) == 16


def test_a_round_asks_slurm_for_a_bounded_time() -> None:
    """Every call is answered, but slowly: what is left is done in the next rounds, in its order."""
    script, now = Script(), [0.0]
    executor = script.executor(ticks=lambda: now[0])
    actions = [Cancel(1, number, "why") for number in range(1, 17)]
    asked = script.cancel
    script.cancel = lambda job_id: (asked(job_id), now.__setitem__(0, now[0] + 9.0))  # type: ignore[method-assign]
    done = []
    while sum(done) < 16:
        began = now[0]
        executor.begin_round()
        done.append(len(executor.run(actions[sum(done) :], act=True)))
        assert now[0] - began <= ROUND_ASKS_S + 9.0
    assert len(done) > 1 and all(done)


def test_a_round_asks_slurm_a_bounded_number_of_times() -> None:
    """300 jobs give something back at once: no round asks more than so often, each job is asked about once, and what
    was put off is done in the rounds that follow."""
    script = Script()
    executor = script.executor()
    due = [Cancel(number, 1000 + number, "why") for number in range(1, 301)]
    rounds = 0
    while due:
        executor.begin_round()
        before = len([entry for entry in script.log if entry.startswith("cancel")])
        executor.run(due, act=True)
        asked = [entry for entry in script.log if entry.startswith("cancel")]
        assert 0 < len(asked) - before <= ROUND_ASKS
        due = [action for action in due if f"cancel {action.slurm_job_id}" not in asked]
        rounds += 1
    assert len(asked) == len(set(asked)) == 300 and rounds == -(-300 // ROUND_ASKS)


def test_what_slurm_took_without_effect_is_not_hammered() -> None:
    """Rounds may follow each other ten times a second: the same act is asked again ever less often, at last once a
    minute; after a quiet time it is another occasion, and at once."""
    script = Script()
    executor = script.executor()
    asked = []
    for tenth in range(6000):
        if executor.run([CANCEL], act=True):
            asked.append(tenth / 10)
        script.now += 0.1
    gaps = [round(b - a, 1) for a, b in pairwise(asked)]
    assert len(asked) < 20 and gaps == sorted(gaps) and 50 <= gaps[-1] <= 61
    assert len(executor.run([Cancel(1, 6, "another")], act=True)) == 1
    script.now += 300
    assert len(executor.run([CANCEL], act=True)) == 1
    script.now += 1
    assert len(executor.run([CANCEL], act=True)) == 1


def cancels(*numbers: int) -> list[Cancel]:
    return [Cancel(number, number, "why") for number in numbers]


def listed(*numbers: int, partition: str = "") -> dict[int, Job]:
    """Jobs of a user, an account and a partition each, or of a partition in common."""
    return {n: Job(n, "RUNNING", f"u{n}", n, account=f"a{n}", partition=partition or f"p{n}") for n in numbers}


def test_refusals_that_concern_all_trip_it() -> None:
    """Jobs of several accounts and partitions in a row: it changes nothing more, and says why."""
    script = Script(*[SlurmRefused(f"no {n}") for n in range(3)])
    executor = script.executor(trip_after=3)
    executor.run(cancels(5, 6, 7, 8), True, listed(5, 6, 7, 8))
    assert "no 2" in executor.tripped
    assert "cancel 8" not in script.log


def test_refusals_of_one_partition_rest_that_partition() -> None:
    """Three jobs of one partition are refused: a fourth of it is not asked for, one of another is."""
    script = Script(*[SlurmRefused(f"no {n}") for n in range(3)])
    executor = script.executor(trip_after=3)
    jobs = {**listed(5, 6, 7, 8, partition="low"), **listed(9)}
    assert len(executor.run(cancels(5, 6, 7, 8, 9), True, jobs)) == 1
    assert executor.tripped == "" and script.log.count("event rests") == 1
    assert "cancel 8" not in script.log and "cancel 9" in script.log


def test_one_job_refused_again_and_again_concerns_that_job() -> None:
    """An array task whose shrink is always refused: nobody else notices."""
    script = Script(*[SlurmRefused("no")] * 6)
    executor = script.executor(trip_after=3)
    for number in range(6):
        executor.run([Shrink(1, 1, (f"n{number}",), "why")], True, listed(1))
    assert executor.tripped == "" and "event rests" not in script.log
    assert len(executor.run(cancels(2), True, listed(2))) == 1


def test_jobs_that_have_ended_count_for_nothing() -> None:
    """They end between the look at Slurm and the action: that says nothing of other jobs."""
    script = Script(*[SlurmRefused(f"Job has already finished for job {n}") for n in range(6)])
    executor = script.executor(trip_after=3)
    executor.run(cancels(1, 2, 3, 4, 5, 6), True, listed(1, 2, 3, 4, 5, 6))
    assert executor.tripped == ""


def test_it_tries_again_after_a_while_and_longer_after_each_refusal() -> None:
    """Two users' actions are tried; refused, everything rests for twice the time; taken, all is as before."""
    script = Script(*[SlurmRefused(f"no {n}") for n in range(5)])
    executor = script.executor(trip_after=3, trip_s=100.0)
    executor.run(cancels(5, 6, 7), True, listed(5, 6, 7))
    assert not executor.recover()
    script.now += 101
    assert executor.recover() and executor.tripped == ""
    executor.run(cancels(8, 9, 11), True, listed(8, 9, 11))
    assert "no 4" in executor.tripped and "cancel 11" not in script.log
    script.now += 101
    assert not executor.recover()
    script.now += 100
    assert executor.recover()
    assert len(executor.run(cancels(10), True, listed(10))) == 1


def test_without_acting_slurm_is_left_alone() -> None:
    """In advisory mode resizes are closed, and nothing is asked of Slurm."""
    script = Script()
    assert len(script.executor().run([CANCEL, Close(1, 7, "withdrawn", "why")], act=False)) == 1
    assert script.log == ["event resize_withdrawn", "resize 7 withdrawn"]
