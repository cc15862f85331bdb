"""What the supervisor makes of its workers' reports, without any process."""

from __future__ import annotations

from typing import Any

from supervisor_harness import COMPANION, Drive

from slurm_elastic.protocol.messages import Grant
from slurm_elastic.trainer_shim.allocation.pieces.events import Registered
from slurm_elastic.trainer_shim.supervisor.state_machine.actions import ForwardReport, Send


def pace(rank: int, busy: float, comm: float, **other: Any) -> dict[str, Any]:
    return {"rank": rank, "step_s": 1.0, "busy_s": busy, "samples": 8, "input_share": 0.0, "comm_share": comm, **other}


def test_reports_are_forwarded_with_the_size_of_the_world() -> None:
    """The worker knows its steps, the supervisor knows how many GPUs and nodes did them."""
    drive = Drive().up().grown()
    drive.say("10.n1.0", "report", generation=2, batch=64)
    [report] = drive.new(ForwardReport)
    assert (report.gpus, report.nodes) == (6, 3)


def test_a_slow_rank_is_named_once_every_rank_has_said_how_it_fares() -> None:
    """Rank 3 of 6, on the second node of the base: the report says so; nothing is said while ranks are missing."""
    drive = Drive().up().grown()
    generation = drive.context.generation
    for rank, worker in enumerate(drive.members()[1:-1], start=1):
        slow = rank == 3
        drive.say(worker, "pace", generation=generation, pace=pace(rank, 0.9 if slow else 0.4, 0.05 if slow else 0.55))
    drive.say("10.n1.0", "report", generation=generation, batch=64, pace=pace(0, 0.4, 0.55))
    assert "bottleneck" not in drive.new(ForwardReport)[0].report
    drive.say(drive.members()[-1], "pace", generation=generation, pace=pace(5, 0.4, 0.55))
    drive.say("10.n1.0", "report", generation=generation, batch=64, pace=pace(0, 0.4, 0.55))
    report = drive.new(ForwardReport)[0].report
    assert (report["bottleneck"], report["bottleneck_rank"], report["bottleneck_node"]) == ("slow_rank", 3, "n2")
    assert report["bottleneck_share"] == 0.5 and report["comm_share"] == 0.05
    assert "pace" not in report


def test_the_job_waits_for_its_input_as_long_as_the_rank_that_waits_longest() -> None:
    """All others wait for that rank in the all-reduce; until all have spoken it is what rank 0 says of itself."""
    drive = Drive().up().grown()
    generation, (first, *others) = drive.context.generation, drive.members()
    own = {"generation": generation, "batch": 64, "input_wait_share": 0.1}
    drive.say(first, "report", **own, pace=pace(0, 0.5, 0.4, input_share=0.1))
    assert drive.new(ForwardReport)[0].report["input_wait_share"] == 0.1
    for rank, worker in enumerate(others, start=1):
        said = pace(rank, 0.5, 0.0, input_share=0.5) if rank == 2 else pace(rank, 0.5, 0.5)
        drive.say(worker, "pace", generation=generation, pace=said)
    drive.say(first, "report", **own, pace=pace(0, 0.5, 0.4, input_share=0.1))
    [report] = drive.new(ForwardReport)
    assert (report.report["input_wait_share"], report.report["comm_share"]) == (0.5, 0.0)


def test_what_ranks_said_in_another_world_does_not_count() -> None:
    """After a resize nothing is compared before all have spoken again, and late words of the old world are left out."""
    drive = Drive().up()
    for rank, worker in enumerate(drive.members()):
        drive.say(worker, "pace", generation=1, pace=pace(rank, 0.4, 0.5))
    drive.grown()
    drive.say(drive.members()[1], "pace", generation=1, pace=pace(1, 0.4, 0.5))
    assert all(worker.pace is None for worker in drive.context.members())


def test_a_pace_that_is_none_is_left_out() -> None:
    """What a worker sends is not trusted to be numbers; the report itself goes on."""
    drive = Drive().up()
    for nonsense in (None, 7, {}, pace(0, float("nan"), 0.1), pace(0, -1.0, 0.1), pace(0, 1.0, 0.1, step_s="x")):
        drive.say("10.n1.0", "report", generation=1, batch=64, pace=nonsense)
        [forward] = drive.new(ForwardReport)
        assert "comm_share" not in forward.report
        assert drive.context.members()[0].pace is None


def test_workers_report_as_often_as_the_daemon_asks() -> None:
    """Those that train are told at once, those that join later with their world; the same again is not told again."""
    drive = Drive().up()
    drive(Registered(Grant("t", managed=True, report_interval_s=0.5)))
    assert {send.worker for send in drive.new(Send)} == set(drive.members())
    assert drive.new(Send)[0].message == {"type": "report_every", "seconds": 0.5}
    assert not drive(Registered(Grant("t", managed=True, report_interval_s=0.5)))
    drive.grown()
    worlds = drive.worlds(drive.context.generation)
    assert {message["report_s"] for message in worlds.values()} == {0.5}
    assert any(worker.startswith(str(COMPANION.slurm_job_id)) for worker in worlds)
