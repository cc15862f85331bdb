"""Whole rounds on an in-memory Slurm with the real store: the story of the demo, and what can go wrong in it."""

from __future__ import annotations

import gc
import logging
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_harness import REQUEST, Supervisor, World
from fake_slurm import Component, FakeClient

from slurm_elastic.daemon.planner.running.job import RunningJob
from slurm_elastic.daemon.rounds import loop
from slurm_elastic.daemon.slurm.model import Job, Snapshot
from slurm_elastic.db.rows import ProbeRow
from slurm_elastic.protocol.codes import Reason
from slurm_elastic.protocol.errors import SlurmRefused
from slurm_elastic.protocol.messages import Report, Tried


def test_one_job_grows_on_idle_gpus(world: World) -> None:
    """A job on one node of eight ends up with all that it accepts."""
    job = world.elastic()
    world.settle()
    assert job.gpus == 24
    assert world.store.resizes.last_closed(job.job_id) is not None
    assert "resize_issued" in world.kinds(job.job_id)


def test_a_resize_that_the_database_refuses_holds_up_no_other(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The other job of the round grows. The refused one is said once, in the log and as an event, not in each round; it
    grows as soon as the database takes its resize."""
    first, second = world.elastic(), world.elastic()
    with world.store._db.write() as connection:
        connection.exec_driver_sql(
            f"CREATE TRIGGER refuse BEFORE INSERT ON resizes WHEN NEW.job_id = {first.job_id} "
            "BEGIN SELECT RAISE(ABORT, 'CHECK constraint failed: refused here'); END"
        )
    world.settle()
    assert (first.gpus, second.gpus > 4) == (4, True)
    said = [record.getMessage() for record in caplog.records if "no resize begins" in record.getMessage()]
    assert len(said) == 1 and said[0].startswith(f"job {first.job_id}: ") and "refused here" in said[0]
    assert world.kinds(first.job_id).count("not_begun") == 1 and "not_begun" not in world.kinds(second.job_id)
    with world.store._db.write() as connection:
        connection.exec_driver_sql("DROP TRIGGER refuse")
    world.settle()
    assert first.gpus > 4


def test_every_line_about_a_resize_can_be_found_by_its_number(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`journalctl RESIZE=2` shows a resize from its beginning to its end: what its supervisor said, what Slurm was
    asked for and what it refused."""
    caplog.set_level(logging.INFO)
    world.elastic(comment="elastic:gpus=4-32,step=4,batch=240-3840")
    world.settle(100)
    shrink, refusals = world.jobs.shrink, iter([SlurmRefused("not now")])

    def refused_once(job_id: int, nodes: tuple[str, ...]) -> None:
        for refusal in refusals:
            raise refusal
        shrink(job_id, nodes)

    monkeypatch.setattr(world.jobs, "shrink", refused_once)
    world.rigid(nodes=2)
    world.settle(100)
    by_number: dict[int, list[str]] = {}
    for record in caplog.records:
        if number := getattr(record, "RESIZE", 0):
            by_number.setdefault(number, []).append(record.getMessage())
    assert len(by_number) >= 2
    for number, lines in by_number.items():
        assert f"resize {number} to " in lines[0] and f"resize {number} " in lines[-1], lines
    said = [line for lines in by_number.values() for line in lines]
    assert any("refused (shrink" in line for line in said)
    about = ("shrink", "refused", "running", "a resize is under way")
    loose = [record.getMessage() for record in caplog.records if not getattr(record, "RESIZE", 0)]
    assert not [line for line in loose if any(word in line for word in about)]


class Named:
    """Anything that can be in a cycle."""

    itself: object


def test_what_a_round_keeps_is_old_for_the_garbage_collector(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """At thousands of jobs it takes a fifth of a round to go through it as young. What is in a cycle is still found."""
    world.elastic()
    world.settle()
    kept = [one for one in gc.get_objects() if isinstance(one, RunningJob)]
    young = {id(one) for one in gc.get_objects(generation=0)}
    assert kept and not [one for one in kept if id(one) in young]
    assert gc.isenabled() and not gc.get_freeze_count()
    young, old = Named(), Named()
    young.itself, old.itself = young, old
    gone = weakref.ref(young)
    del young
    world.round()
    assert gone() is None  # left before a round
    gone = weakref.ref(old)
    del old
    monkeypatch.setattr(loop, "COLLECT_S", 0.0)
    world.round()
    assert gone() is None  # old when it was left


def test_what_one_job_measured_stops_no_round(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Numbers in the store of which no model can be made: that job keeps its size and is told why, another grows on."""
    bad = world.elastic()
    bad.measured = False
    world.settle()
    report = Report(0, 1.0, 4, 1, 240, 60, 1, 10, 1e-300, 1e-300, 1.0, 1, 1, 0)
    world.store.reports.submit(bad.job_id, [report], world.slurm.now).result()
    good = world.elastic()
    world.settle()
    assert good.gpus == 24 and bad.gpus == 4
    decision = world.store.decisions.last(bad.job_id)
    assert decision is not None and decision.reason == Reason.KEEP_UNFITTED.value
    assert "none has a step time" in decision.evidence["unfitted"]
    told = [r.getMessage() for r in caplog.records if "no throughput model can be made" in r.getMessage()]
    assert len(told) == 1 and f"job {bad.job_id} keeps its size" in told[0]


def test_arrivals_are_given_their_share(tmp_path: Path) -> None:
    """Two more arrive on a full cluster: the first gives them their start, and fairness gives them the rest."""
    world = World(tmp_path, policy="log-throughput")
    first = world.elastic(comment="elastic:gpus=4-32,step=4,batch=240-3840")
    world.settle()
    assert first.gpus == 32
    world.elastic()
    world.elastic()
    world.settle(200)
    sizes = world.sizes()
    assert len(sizes) == 3 and sum(sizes.values()) == 32
    assert min(sizes.values()) >= 8
    world.store.close()


def test_a_rigid_job_gets_room_exactly_and_it_is_taken_back(world: World) -> None:
    """The rigid job starts; when it ends the elastic ones have everything again."""
    first, second = world.elastic(), world.elastic()
    world.settle(100)
    held = first.gpus + second.gpus
    rigid = world.rigid(nodes=2)
    world.settle(100)
    assert world.snapshot().jobs[rigid].running
    assert first.gpus + second.gpus == min(held, 32 - 8)
    world.slurm.finish(rigid)
    world.settle(100)
    assert first.gpus + second.gpus == held


def test_a_rigid_job_is_not_kept_waiting_long(world: World) -> None:
    """From submission to start: one round to see it, a few steps to switch, one to release."""
    world.elastic(comment="elastic:gpus=4-32,step=4,batch=240-3840")
    world.settle()
    rigid = world.rigid(nodes=2)
    count = 0
    while not world.snapshot().jobs[rigid].running and count < 12:
        world.round()
        count += 1
    assert count <= 6


def test_nothing_moves_for_a_job_that_can_never_start(world: World) -> None:
    """More nodes than there are: nobody gives anything."""
    job = world.elastic()
    world.settle()
    world.rigid(nodes=9)
    before = job.gpus
    world.settle()
    assert job.gpus == before


def test_malformed_requests_are_told_once_and_left_alone(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The sentence is in the record, in one event and in one line of the log."""
    job_id = world.slurm.submit(Component(1, 4), user="games", comment="elastic:gpus=4-2,batch=256")
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            world.round()
    row = world.store.jobs.get(job_id)
    assert row is not None and not row.managed and row.reason == Reason.MALFORMED.value
    assert "minimum above its maximum" in row.detail
    assert world.kinds(job_id) == ["not_managed"]
    assert sum("minimum above" in line for line in caplog.messages) == 1
    assert world.store.decisions.last(job_id) is None


def test_an_ended_job_leaves_nothing_behind(world: World) -> None:
    """Companions go with their base, and its record says that it ended."""
    job = world.elastic()
    world.settle()
    assert world.companions()
    job.crash()
    world.settle()
    assert world.companions() == []
    row = world.store.jobs.get(job.job_id)
    assert row is not None and row.end_time is not None
    assert world.store.resizes.under_way() == []


def test_survivors_grow_when_one_finishes(world: World) -> None:
    """What a finished job held goes to the others."""
    first, second = world.elastic(), world.elastic()
    world.settle(100)
    before = second.gpus
    first.end()
    world.settle(100)
    assert second.gpus > before
    assert world.store.jobs.get(first.job_id).state == "COMPLETED"  # type: ignore[union-attr]


@pytest.mark.parametrize("steps", range(1, 8))
def test_a_daemon_that_dies_in_the_middle_of_a_resize_changes_nothing(world: World, steps: int) -> None:
    """Started again with nothing but its store, it ends where it would have ended."""
    job = world.elastic()
    world.round()
    for _ in range(steps):
        world.round()
        world.boot()
    world.settle()
    assert job.gpus == 24
    assert sum(p.gpus for p in job.pieces) == sum(j.gpus for j in world.snapshot().jobs.values())


def test_a_supervisor_that_falls_silent_is_given_up_on_and_its_companion_cancelled(world: World) -> None:
    """A granted companion that nobody uses is not held for ever."""
    job = world.elastic()
    while job.stage != "granted":
        world.round()
    job.silent = True
    while world.store.resizes.under_way() or world.companions():
        world.round()
    last = world.store.resizes.last_closed(job.job_id)
    assert last is not None and last.state == "withdrawn"


def test_a_withdrawn_resize_is_told_to_a_supervisor_that_comes_back(world: World) -> None:
    """It aborts what it was at, and goes on with what it has."""
    job = world.elastic()
    while job.stage != "submitted":
        world.round()
    job.silent = True
    while world.store.resizes.under_way():
        world.round()
    job.silent = False
    world.round()
    assert job.active is None and job.gpus == 4
    assert job.told[-1] in ("withdrawn", "failed")


def test_a_dry_plan_stores_nothing(world: World) -> None:
    """`selastic plan --dry-run` can be asked at any time."""
    job = world.elastic()
    world.slurm.now += 5
    job.step()
    decided = world.controller.dry_plan()
    assert [(row.job_id, row.gpus_to) for row in decided] == [(job.job_id, 24)]
    assert world.store.decisions.last(job.job_id) is None and world.store.resizes.under_way() == []


def test_a_waiting_job_that_does_not_take_its_room_is_passed_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is not kept for ever for a job that waits for something a snapshot does not show, such as a licence."""
    job = world.elastic()
    look = world.jobs._client.snapshot
    stuck = Job(
        999, "PENDING", "nobody", 65534, partition="main", reason="Resources", num_nodes=6, gpus=24, gpus_per_node=4
    )

    def snapshot() -> Snapshot:
        found = look()
        return replace(found, jobs={**found.jobs, 999: stuck})

    monkeypatch.setattr(world.jobs._client, "snapshot", snapshot)
    for _ in range(15):
        world.round()
    assert job.gpus == 8
    for _ in range(25):
        world.round()
    assert job.gpus == 24


def test_a_heterogeneous_job_gives_up_a_component(world: World) -> None:
    """A component is cancelled by its own id, and the rest of the job runs on."""
    job_id = world.slurm.submit(
        Component(1, 4), Component(1, 4), user="games", name="het", comment=REQUEST + ",via=component"
    )
    job = world.supervisors[job_id] = Supervisor(world, job_id)
    world.round()
    assert job.gpus == 8
    world.rigid(nodes=7)
    world.settle()
    assert job.gpus == 4 and job_id + 1 not in world.snapshot().jobs
    assert world.snapshot().jobs[job_id].running


def test_a_pinned_job_stays(world: World) -> None:
    """A pin holds against idle GPUs and waiting jobs alike; letting go lets it grow."""
    job = world.elastic()
    world.round()
    world.store.jobs.pin(job.job_id, 4)
    world.settle()
    assert job.gpus == 4
    world.store.jobs.pin(job.job_id, None)
    world.settle()
    assert job.gpus == 24


def test_jobs_that_slurm_hides_do_not_stop_giving_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """PrivateData hides another user's job, whose GPUs are in use all the same: the log names its node once, and a
    waiting job that it could be is given way to in the round after."""
    world = World(tmp_path, nodes=3)
    hidden = world.rigid()
    job = world.elastic(nodes=2)
    world.round()
    seen = FakeClient.snapshot

    def without_hidden(client: FakeClient) -> Snapshot:
        whole = seen(client)
        return replace(whole, jobs={job_id: one for job_id, one in whole.jobs.items() if job_id != hidden})

    monkeypatch.setattr(FakeClient, "snapshot", without_hidden)
    world.rigid()
    for _ in range(6):
        world.round()
    assert job.gpus == 4
    assert caplog.text.count("GPUs in use by no job that Slurm lists: 4 on n1") == 1


def test_gpus_that_slurm_calls_idle_under_a_running_job_are_named_once_and_given_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """sinfo has the node of an ordinary job as idle, round after round: an elastic job does not grow onto it."""
    world = World(tmp_path, nodes=3)
    rigid = world.rigid()
    job = world.elastic()
    world.round()
    seen = FakeClient.snapshot

    def without_its_use(client: FakeClient) -> Snapshot:
        whole = seen(client)
        (name,) = whole.jobs[rigid].nodes
        return replace(whole, nodes={**whole.nodes, name: replace(whole.nodes[name], gpus_used=0)})

    monkeypatch.setattr(FakeClient, "snapshot", without_its_use)
    world.settle()
    assert job.gpus == 8
    said = "Slurm contradicts itself: GPUs that a running job holds are idle by sinfo, and count as in use: 4 on n1"
    assert caplog.text.count(said) == 1


def test_a_job_whose_shrinks_fail_still_gives_way(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two shrinks for a waiting job come to nothing: the third is tried minutes later, not after the whole backoff."""
    job = world.elastic()
    world.settle()
    failed: list[float] = []

    def fail(supervisor: Supervisor) -> None:
        failed.append(world.slurm.now)
        supervisor._give_up("failed")

    rigid = world.rigid(nodes=3)
    with monkeypatch.context() as patch:
        patch.setattr(Supervisor, "_switch", fail)
        for _ in range(40):
            world.round()
            if len(failed) == 2:
                break
    backoff = world.settings.failed_backoff_s
    assert backoff / 10 <= failed[1] - failed[0] <= backoff / 5
    for _ in range(60):
        world.round()
        if world.snapshot().jobs[rigid].running:
            break
    assert backoff / 5 <= world.slurm.now - failed[1] <= backoff / 2
    assert world.snapshot().jobs[rigid].running and job.gpus == 20


NO_SHELL, NO_SCRIPT = Tried("salloc", "refused", "use sbatch"), Tried("sbatch", "refused", "not from nodes")
FIXED = Tried("shrink", "refused", "sizes are fixed")


def test_what_was_probed_decides_how_a_job_grows_and_shrinks(tmp_path: Path) -> None:
    """In the form that the site takes, and by companions of one node each where single nodes cannot be given back."""
    world = World(tmp_path)
    world.store.probes.save(ProbeRow("", "main", 1.0, (NO_SHELL, Tried("sbatch", "works"), FIXED)))
    job = world.elastic(2, 4, "elastic:gpus=4-24,step=4,batch=240-3840")
    world.slurm.now += 5
    job.step()
    world.rounds.run()
    [resize] = world.store.resizes.under_way()
    assert {shape.by for shape in resize.add} == {"sbatch"} and [shape.nodes for shape in resize.add] == [1] * 4
    world.settle()
    world.rigid(3)
    world.settle()
    assert job.gpus == 20 and "shrink" not in world.kinds(job.job_id)
    world.store.close()


@pytest.mark.parametrize(("gpus", "size"), [("refused", 6), ("works", 10), ("not tried", 10)])
def test_a_job_grows_onto_no_node_in_use_where_two_jobs_see_the_same_gpus(tmp_path: Path, gpus: str, size: int) -> None:
    """Of three nodes its own is half free, another one is half in use, and one is idle."""
    world = World(tmp_path, nodes=3)
    world.store.probes.save(ProbeRow("", "main", 1.0, (Tried("gpus", gpus, "both see 0"),)))
    job = world.elastic(1, 2, "elastic:gpus=2-24,batch=240-3840")
    world.slurm.submit(Component(1, 2), required_nodes=("n2",))
    world.settle()
    world.settle()
    assert job.gpus == size
    world.store.close()


def test_what_a_user_probed_counts_for_that_users_jobs(tmp_path: Path) -> None:
    """Whom companions are refused does not grow, and is told in the site's words; others do."""
    world = World(tmp_path)
    world.store.probes.save(ProbeRow("games", "main", 1.0, (NO_SHELL, NO_SCRIPT)))
    job = world.elastic(1, 4, "elastic:gpus=4-24,step=4,batch=240-3840")
    world.settle()
    assert job.gpus == 4
    why = world.store.decisions.last(job.job_id)
    assert why is not None and "selastic probe was refused it: not from nodes" in str(why.evidence)
    world.store.probes.save(ProbeRow("games", "main", 2.0, (Tried("salloc", "works"),)))
    world.store.probes.save(ProbeRow("ada", "main", 2.0, (NO_SHELL, NO_SCRIPT)))
    world.slurm.now += 120
    world.settle()
    assert job.gpus == 24
    world.store.close()
