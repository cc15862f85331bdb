"""A training that gets no further: when it is said, what is said, and that a real one says it and goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from local_run import Start
from supervisor_harness import Drive

from slurm_elastic.protocol.messages import Piece
from slurm_elastic.trainer_shim.allocation.pieces.actions import Print, QuitAgent, Tell
from slurm_elastic.trainer_shim.node import stack_dump
from slurm_elastic.trainer_shim.numerics.patience import FIRST_STEPS_S, LONGEST_PATIENCE_S, patience
from slurm_elastic.trainer_shim.supervisor.hang_detection import Place, never_goes_on, place, ranges, sentence
from slurm_elastic.trainer_shim.supervisor.state_machine.actions import AskStacks, Kill, Send
from slurm_elastic.trainer_shim.supervisor.state_machine.context import Mode, RunLimits
from slurm_elastic.trainer_shim.supervisor.state_machine.events import HangTimer, StackSeen, WorkerExit
from slurm_elastic.trainer_shim.supervisor.state_machine.worker_messages import ANSWER_S, STALLED_SAVE_S

TORCH = "/venv/lib/python3.11/site-packages/torch"
IN_BACKWARD = (f"{TORCH}/autograd/graph.py:979 _engine_run_backward", "/home/a/train.py:15 <module>")
ONCE = "/x/slurm_elastic/trainer_shim/loops/once.py"
IN_ONCE = ("/home/a/train.py:7 evaluate", f"{ONCE}:130 _quietly", "/home/a/train.py:14 <module>")
FOR_RANK_0 = (
    "/x/slurm_elastic/trainer_shim/world/objects.py:50 share",
    f"{ONCE}:46 on_rank_0",
    "/home/a/train.py:14 <module>",
)
IN_LOAD = ("/home/a/data.py:7 load", "/home/a/train.py:12 <module>")


@pytest.mark.parametrize(
    ("usual", "longest", "expected"),
    [
        (0.0, 0.0, FIRST_STEPS_S),  # the first step compiles
        (0.1, 0.0, 300.0),
        (60.0, 0.0, 30 * 60.0),
        (0.1, 400.0, 800.0),  # an evaluation between two steps comes again
        (0.1, 9000.0, LONGEST_PATIENCE_S),
    ],
)
def test_how_long_a_training_may_do_no_step(usual: float, longest: float, expected: float) -> None:
    """A multiple of the usual step, with a floor."""
    assert patience(300.0, usual, longest) == expected


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (IN_LOAD, Place("is", "data.py line 7 in load()", False)),
        (IN_BACKWARD, Place("is in backward(), where gradients are exchanged,", "train.py line 15", True)),
        (
            (
                f"{TORCH}/distributed/distributed_c10d.py:4800 barrier",
                f"{TORCH}/distributed/c10d_logger.py:83 wrapper",
                "/home/a/train.py:9 main",
            ),
            Place("waits in barrier()", "train.py line 9 in main()", True),
        ),
        (
            (
                "/usr/lib/python3.11/selectors.py:415 select",
                f"{TORCH}/utils/data/dataloader.py:1234 _try_get_data",
                "/home/a/train.py:9 main",
            ),
            Place("waits for a batch of its DataLoader", "train.py line 9 in main()", False),
        ),
        (
            ("/x/slurm_elastic/trainer_shim/world/objects.py:50 share", "/home/a/train.py:9 main"),
            Place("waits for the other ranks", "train.py line 9 in main()", True),
        ),
        (
            (f"{TORCH}/nn/modules/linear.py:125 forward", "/home/a/m.py:3 forward"),
            Place("is", "m.py line 3 in forward()", False),
        ),
        (IN_ONCE, Place("is in job.once()", "train.py line 7 in evaluate()", False)),
    ],
)
def test_where_a_rank_is(frames: tuple[str, ...], expected: Place) -> None:
    """From its frames, innermost first."""
    assert place(frames) == expected


def test_one_sentence_says_who_waits_for_whom() -> None:
    """Who is in no collective comes first; ranks at one place are told together."""
    waiting, loading = place(IN_BACKWARD), place(IN_LOAD)
    nodes = {rank: f"n{rank // 2}" for rank in range(6)}
    said = sentence(63.2, 0.21, {rank: loading if rank == 3 else waiting for rank in range(6)}, nodes)
    assert said == (
        "no step for 63 s (one takes 0.21 s): rank 3 on n1 is at data.py line 7 in load(); "
        "ranks 0-2, 4-5 are in backward(), where gradients are exchanged, at train.py line 15"
    )
    said = sentence(63.2, 0.0, {0: waiting, 1: place((), "is stopped by a signal")}, nodes)
    assert "rank 1 on n0 is stopped by a signal; rank 0" in said
    barrier = place((f"{TORCH}/distributed/distributed_c10d.py:48 barrier", "/home/a/train.py:9 main"))
    assert sentence(63.2, 0.0, {0: waiting, 1: barrier}, nodes).endswith("; all wait, and not in the same call")
    assert never_goes_on({0: waiting, 1: barrier}) and not never_goes_on({0: waiting, 1: waiting, 2: waiting})
    assert not never_goes_on({0: loading, 1: barrier})
    alone = "; nobody else has come to the barrier() at train.py line 9 in main(), which needs every rank"
    assert sentence(63.2, 0.0, {0: loading, 1: barrier}, nodes).endswith(alone)
    assert ranges([7, 1, 2, 3]) == "1-3, 7"


def test_the_scripts_own_thread_is_found_in_a_dump() -> None:
    """The one that took the signal; without the frames that the script is run from."""
    dump = (
        'Thread 0x00007f (most recent call first):\n  File "a.py", line 1 in work\n\n'
        'Current thread 0x00007e (most recent call first):\n  File "b.py", line 2 in sleep\n'
        '  File "t.py", line 9 in <module>\n'
        '  File "/x/trainer_shim/node/worker_process.py", line 104 in _run_script\n'
    )
    assert stack_dump.main_thread(dump) == ("b.py:2 sleep", "t.py:9 <module>")
    assert stack_dump.main_thread("") == ()


def beat(drive: Drive, step: int, usual_s: float = 0.1, away: bool = False) -> None:
    drive.say("10.n1.0", "beat", generation=1, step=step, usual_s=usual_s, away=away)


def answer(drive: Drive, rank_2: tuple[str, ...] = IN_LOAD) -> None:
    for rank, worker in enumerate(drive.members()):
        drive(StackSeen(worker, rank_2 if rank == 2 else IN_BACKWARD))


def test_a_hang_is_told_once_and_nothing_is_ended() -> None:
    """All ranks are asked; the sentence goes to the output and to selasticd; so does that steps are done again."""
    drive = Drive().up()
    beat(drive, 5)
    drive.wait(299.0)
    assert not drive.every(AskStacks)
    drive.wait(2.0)
    assert [len(ask.workers) for ask in drive.new(AskStacks)] == [2, 2]
    answer(drive)
    [told] = [action.said for action in drive.every(Tell) if action.said.what == "stalled"]
    assert "rank 2 on n2 is at data.py line 7 in load(); ranks 0-1, 3 are in backward()" in told.detail
    assert any(told.detail in line.text for line in drive.every(Print))
    drive.wait(5000.0)
    assert len(drive.every(AskStacks)) == 2 and not drive.every(Kill)
    beat(drive, 6)
    assert drive.phases(0)[-2:] == ["stalled", "steps_again"]


def test_ranks_that_do_not_answer_are_named() -> None:
    """Their node may be gone; the others' answers are told in bounded time."""
    drive = Drive().up()
    beat(drive, 5)
    drive.wait(301.0)
    for worker in drive.members()[:3]:
        drive(StackSeen(worker, IN_BACKWARD))
    assert drive.phases(0)[-1] == "running"
    drive.wait(ANSWER_S)
    assert drive.phases(0)[-1] == "stalled"
    assert any("rank 3 on n2 does not answer" in line.text for line in drive.every(Print))


def stalled(drive: Drive) -> str:
    """What was said last of a hang; nothing if nothing was."""
    told = [action.said for action in drive.every(Tell) if action.said.what == "stalled"]
    return told[-1].detail if told else ""


def ask(drive: Drive, *places: tuple[str, ...]) -> None:
    """The ranks are asked, and answer where they are: the last place is that of all others."""
    assert drive.new(AskStacks)
    for rank, worker in enumerate(drive.members()):
        drive(StackSeen(worker, places[min(rank, len(places) - 1)]))


def test_what_takes_its_time_is_no_hang() -> None:
    """First steps, an end, and a supervisor that was stopped itself."""
    drive = Drive().up()
    beat(drive, 6, usual_s=0.0)
    drive.wait(FIRST_STEPS_S - 1)
    beat(drive, 7)
    drive.wait(2000.0)  # stopped: its timer comes far too late
    assert not drive.every(AskStacks)
    drive = Drive().up()
    beat(drive, 5)
    drive.say("10.n1.0", "done", step=5, finished=True)
    drive.wait(301.0)
    assert not drive.every(AskStacks)


def test_a_function_of_rank_0_is_no_hang_for_an_hour() -> None:
    """As long as all others wait for it in job.once(); the ranks are asked once in each call, and not where the
    last one took as long."""
    drive = Drive().up()
    beat(drive, 5)
    beat(drive, 5, away=True)
    drive.wait(301.0)
    ask(drive, IN_ONCE, FOR_RANK_0)
    drive.wait(3000.0)
    assert len(drive.every(AskStacks)) == 2 and not stalled(drive)
    beat(drive, 5)
    beat(drive, 6)
    beat(drive, 6, away=True)
    drive.wait(3301.0)
    assert len(drive.every(AskStacks)) == 2
    drive.wait(300.0)
    ask(drive, IN_ONCE, FOR_RANK_0)
    assert "rank 0 on n1 is in job.once() at train.py line 7 in evaluate()" in stalled(drive)


def test_who_does_not_come_to_the_function_of_rank_0_is_told() -> None:
    """While it runs, and once it is over and rank 0 waits with its result."""
    drive = Drive().up()
    beat(drive, 5)
    beat(drive, 5, away=True)
    drive.wait(301.0)
    ask(drive, IN_ONCE, FOR_RANK_0, IN_LOAD)
    assert "ranks 2-3 on n2 are at data.py line 7 in load()" in stalled(drive)
    drive = Drive().up()
    beat(drive, 5)
    beat(drive, 5, away=True)
    drive.wait(200.0)
    beat(drive, 5)
    drive.wait(301.0)
    ask(drive, FOR_RANK_0, FOR_RANK_0, IN_LOAD)
    assert "ranks 2-3 on n2 are at data.py line 7 in load()" in stalled(drive)


def test_a_script_that_does_not_end_behind_its_loop_is_told() -> None:
    """After an hour, and nothing is ended: what it does there may take as long as it likes."""
    drive = Drive(limits=RunLimits(hang_end_s=400.0)).up()
    beat(drive, 5)
    drive.say("10.n1.0", "done", step=5, finished=True)
    drive.wait(3601.0)
    ask(drive, IN_ONCE, IN_LOAD)
    assert stalled(drive).startswith("the script has not ended, and its loop has for 3601 s: rank 0 on n1 is in job")
    drive.wait(9000.0)
    assert not drive.every(Kill)


AT_BARRIER = (f"{TORCH}/distributed/distributed_c10d.py:48 barrier", "/home/a/train.py:9 main")


def apart(hang_end_s: float) -> Drive:
    """A job whose ranks were seen to wait at several lines."""
    drive = Drive(limits=RunLimits(hang_end_s=hang_end_s)).up()
    beat(drive, 5)
    drive.wait(301.0)
    ask(drive, IN_BACKWARD, AT_BARRIER)
    return drive


def test_ranks_that_wait_at_other_lines_end_the_job_after_twenty_minutes() -> None:
    """A network that is back before ends nothing. Where the user has such worlds ended, that is done in its place."""
    drive = apart(0.0)
    drive.wait(890.0)
    assert drive.context.mode is Mode.RUNNING
    drive.wait(10.0)
    assert drive.context.mode is Mode.ENDED
    back = apart(0.0)
    beat(back, 6)
    back.wait(900.0)
    assert back.context.mode is Mode.RUNNING and not back.context.stalled
    ends = apart(400.0)
    ends.wait(100.0)
    assert [send for send in ends.every(Send) if send.message["type"] == "stalled"]
    ends.wait(900.0)
    assert ends.context.mode is not Mode.ENDED


def test_a_hang_is_ended_where_the_user_says_so_and_three_times_a_day() -> None:
    """Rank 0 writes what it has first, if it can; the world begins again from that. Not before it was told, and not
    where steps are done again."""
    drive = Drive(limits=RunLimits(hang_end_s=400.0, failures=9)).up()
    beat(drive, 5)
    drive.wait(301.0)
    ask(drive, IN_BACKWARD)
    beat(drive, 6)
    drive.wait(590.0)
    assert not [send for send in drive.every(Send) if send.message["type"] == "stalled"]
    drive = Drive(limits=RunLimits(hang_end_s=400.0, failures=9)).up()
    for number in range(4):
        generation, first = drive.context.generation, drive.members()[0]
        drive.say(first, "beat", generation=generation, step=7 + number, usual_s=0.1)
        drive.wait(301.0)
        ask(drive, IN_BACKWARD)
        drive.wait(99.0)
        if number == 3:
            break
        assert Send(first, {"type": "stalled"}) in drive.fresh
        if number:
            drive.wait(STALLED_SAVE_S)
        else:
            drive.say(first, "saved", step=7)
        assert drive.context.mode is Mode.RESTARTING
        drive.settle()
    assert drive.context.mode is Mode.RUNNING
    assert "no step for 400 s (--hang-end); starting again from the checkpoint of step 7" in [
        line.text for line in drive.every(Print)
    ]
    assert any("the world is not ended: 3 were within a day" in line.text for line in drive.every(Print))


def test_a_hang_gives_what_is_asked_of_it() -> None:
    """A world that does no step agrees on no change: it is ended, and begins again with fewer GPUs."""
    drive = Drive().up()
    beat(drive, 5)
    drive.wait(301.0)
    ask(drive, IN_BACKWARD)
    drive.order(3, (Piece(10, "base", ("n1",), 2),), batch=32)
    drive.say("10.n1.0", "saved", step=5)
    assert drive.context.mode is Mode.RESTARTING and QuitAgent((10, "n2")) in drive.done
    drive.settle()
    assert len(drive.members()) == 2 and drive.context.batch == 32
    assert drive.phases(3) == ["accepted", "running"] and not drive.context.stalled


def test_a_rank_killed_after_a_hang_ends_the_watch() -> None:
    """A restart begins anew: its first steps have their time."""
    drive = Drive().up()
    beat(drive, 5)
    drive.wait(301.0)
    drive.say(drive.members()[1], "failed", error="gone")
    drive(WorkerExit(drive.members()[1], 1, raised=True, error="E at f:1"))
    assert HangTimer() not in drive.context.timers
    drive.wait(ANSWER_S)
    assert "stalled" not in drive.phases(0)


SCRIPT = """
import os, sys, time, torch
import slurm_elastic.trainer_shim as elastic
job = elastic.join(batch=16, lr="none")
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(64000, 4), torch.randint(0, 3, (64000,)))
model = torch.nn.Linear(4, 3)
net = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
def load():
    while os.path.exists("hang"):
        time.sleep(0.05)
for epoch in job.epochs(1):
    for x, y in job.loader(data):
        if job.rank == 1:
            load()
        job.step(torch.nn.functional.cross_entropy(net(x), y))
        time.sleep(0.02)
"""


def test_a_real_hang_says_where_each_rank_is_and_goes_on(start: Start, tmp_path: Path) -> None:
    """One rank sleeps, the other waits for it in backward; stacks are in the logs; then the first is stopped."""
    (tmp_path / "train.py").write_text(SCRIPT)
    run = start("--nproc 2 --hang-after 3")
    run.wait_for(lambda: run.daemon.reports)
    with run.there_is("hang"):
        told = run.daemon.wait_phase(0, "stalled").detail
        assert "in load(); rank 0 on" in told and "is in backward(), where gradients are exchanged, at train.py" in told
        assert told in run.text() and "rank 1| train.py:" in run.text()
        logs = [path.read_text() for path in sorted((run.job_dir / "logs").glob("0.*.log"))]
        assert "in _engine_run_backward" in logs[0] and "in load" in logs[1], logs
    run.daemon.wait_phase(0, "steps_again")
    run.daemon.happenings.clear()
    worker = run.worker_pids()[1]
    os.kill(worker, signal.SIGSTOP)
    assert "rank 1 on" in (told := run.daemon.wait_phase(0, "stalled").detail) and "is stopped by a signal" in told
    os.kill(worker, signal.SIGCONT)
    run.daemon.wait_phase(0, "steps_again")
    assert "starting again" not in run.text()


def test_a_real_hang_is_ended_and_nothing_is_lost(start: Start, tmp_path: Path) -> None:
    """--hang-end: rank 0 writes the last step that it has done, though it waits in backward; all go on there."""
    hangs_once = "if job.rank == 1 and job.generation == 1 and job.global_step == 99:"
    (tmp_path / "train.py").write_text(SCRIPT.replace("if job.rank == 1:", hangs_once))
    (tmp_path / "hang").touch()
    run = start("--nproc 2 --hang-after 2 --hang-end 2 --checkpoint-every 3000", alone=True)
    run.says("generation 2: 2 workers")
    assert "(--hang-end); starting again from the checkpoint of step 99" in run.text()
    assert "the state of step 99 is written" in run.text()
