"""Whole rounds on an in-memory Slurm with the real store: the story of the demo, and what can go wrong in it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pytest
from daemon_harness import REQUEST, Supervisor, World
from fake_slurm import Component, FakeClient

from slurm_elastic.client.explanation.command import render
from slurm_elastic.daemon import reports
from slurm_elastic.daemon.optimizer.errors import PolicyFailed
from slurm_elastic.daemon.optimizer.policies import POLICIES, Policy
from slurm_elastic.daemon.reports.common import Viewer
from slurm_elastic.daemon.slurm.model import Job, Snapshot
from slurm_elastic.db.rows import ProbeRow
from slurm_elastic.protocol.codes import Reason
from slurm_elastic.protocol.errors import SlurmRefused
from slurm_elastic.protocol.messages import Report, Tried


def kinds(world: World, job_id: int) -> list[str]:
    return [event.kind for event in world.store.events.of(job_id)]


def test_one_job_grows_on_idle_gpus(world: World) -> None:
    """A job on one node of eight ends up with all that it accepts."""
    job = world.elastic()
    world.settle()
    assert job.gpus == 24
    assert world.store.resizes.last_closed(job.job_id) is not None
    assert "resize_issued" in kinds(world, job.job_id)


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
    assert kinds(world, first.job_id).count("not_begun") == 1 and "not_begun" not in kinds(world, second.job_id)
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
    assert kinds(world, job_id) == ["not_managed"]
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


def test_an_unreachable_slurm_stops_nothing_and_starts_nothing(world: World) -> None:
    """A round without an observation does nothing at all; the next one goes on."""
    job = world.elastic()
    world.settle()
    world.rigid(nodes=2)
    world.slurm.reachable = False
    stored = len(world.store.events.of(job.job_id))
    for _ in range(5):
        world.slurm.now += 5
        world.rounds.run()
    assert "could not be observed" in world.rounds.trouble
    assert world.controller.health().failing == "Slurm"
    assert len(world.store.events.of(job.job_id)) == stored
    world.slurm.reachable = True
    world.settle()
    assert world.rounds.trouble == "" == world.controller.health().failing


def test_a_database_that_takes_nothing_is_in_health(world: World) -> None:
    """Also while rounds succeed, for those that change nothing write nothing."""
    world.settle()
    world.store._db.trouble = "the disk is full"
    health = world.controller.health()
    assert (health.trouble, health.failing) == (True, "database")
    world.store.events.add(0, "test", "selasticd", {}, 1.0)
    assert world.controller.health().trouble is False


def test_a_failing_round_does_not_end_the_service(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong is logged, and the next round starts from what is there."""
    job = world.elastic()
    with monkeypatch.context() as patch:
        patch.setattr(world.store.decisions, "save", lambda *_: 1 / 0)
        world.round()
        assert "ZeroDivisionError" in world.rounds.trouble
    world.settle()
    assert job.gpus == 24


@pytest.mark.parametrize("mode", ["observe", "review"])
def test_without_acting_nothing_is_changed(tmp_path: Path, mode: str) -> None:
    """Observing remembers; advising also decides, and marks its decisions as advice."""
    world = World(tmp_path, mode=mode)
    job = world.elastic()
    for _ in range(10):
        world.round()
    assert job.gpus == 4 and world.store.resizes.under_way() == []
    decision = world.store.decisions.last(job.job_id)
    if mode == "review":
        assert decision is not None and decision.gpus_to == 24 and decision.mode == "review"
    else:
        assert decision is None and world.store.reports.observations(job.job_id)
    world.store.close()


def test_refusals_in_a_row_make_it_review(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """When Slurm refuses everything, the daemon stops acting, and says so."""

    def refuse(*_: object) -> None:
        raise SlurmRefused("Slurm refused to change the job: Access/permission denied")

    monkeypatch.setattr(world.jobs, "cancel", refuse)
    for number in range(6):
        comment = f"selastic:companion-of=900{number};resize=1"
        whose = {"account": f"a{number}", "partition": f"p{number}"}
        name = f"selastic-900{number}"
        world.slurm.submit(Component(1, 1), user=f"u{number}", name=name, comment=comment, batch=False, **whose)
    world.round()
    assert world.rounds.mode == "review"
    assert [event.kind for event in world.store.events.of(0)] == ["tripped"]
    assert world.controller.health().tripped is True
    monkeypatch.undo()
    world.slurm.now += world.settings.trip_s
    world.round()
    assert world.rounds.mode == "act" and not world.companions()
    assert [event.kind for event in world.store.events.of(0)] == ["tripped", "tries_again"]


class Failing(Policy):
    """As a policy of another package that has gone wrong: it gives no utility while it is broken."""

    broken: ClassVar[bool] = True

    def utilities(self, progress: Sequence[float]) -> list[float]:
        if self.broken:
            raise PolicyFailed("gave no answer: nothing within 2 s")
        return super().utilities(progress)


def test_a_round_goes_on_with_the_built_in_policy_where_the_sites_own_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Jobs grow all the same. The log says it once, not in each round, and once that it is over; so do the events, and
    `explain` as long as it lasts."""
    monkeypatch.setitem(POLICIES, "theirs", Failing("theirs", math.log, 0.01, relative=True))
    monkeypatch.setattr(Failing, "broken", True)
    world = World(tmp_path, policy="theirs")
    job = world.elastic()
    world.settle()
    said = "policy theirs gave no answer: nothing within 2 s; auto plans in its place"
    assert job.gpus == 24
    assert len([record for record in caplog.records if said in record.getMessage()]) == 1
    assert [event.kind for event in world.store.events.of(0)] == ["policy_failed"]
    explained = reports.explain(world.store, job.job_id, Viewer(0, admin=True), world.slurm.now)
    assert any(said in line for line in render(explained, 1000))
    monkeypatch.setattr(Failing, "broken", False)
    other = world.elastic()
    world.settle(100)
    assert other.gpus > 4
    assert [event.kind for event in world.store.events.of(0)] == ["policy_failed", "policy_works"]
    explained = reports.explain(world.store, job.job_id, Viewer(0, admin=True), world.slurm.now)
    assert not any("theirs" in line for line in render(explained, 1000))
    world.store.close()


def test_one_users_refusals_concern_nobody_else(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that one user has named like companions, in as many accounts and partitions as there are, cannot be
    cancelled: everybody else's jobs are resized, and what is left of them is cancelled."""
    cancel = world.jobs.cancel
    fakes: set[int] = set()

    def refuse_fakes(job_id: int) -> None:
        if job_id in fakes:
            raise SlurmRefused("Slurm refused to change the job: Access/permission denied")
        cancel(job_id)

    monkeypatch.setattr(world.jobs, "cancel", refuse_fakes)
    for number in range(12):
        name, comment = f"selastic-900{number}", f"selastic:companion-of=900{number};resize=1"
        whose = {"account": f"a{number}", "partition": f"p{number}", "name": name, "comment": comment}
        fakes.add(world.slurm.submit(Component(1, 1), user="nobody", batch=False, **whose))
    job = world.elastic()
    world.settle()
    assert world.rounds.mode == "act" and job.gpus > 4
    assert "tripped" not in [event.kind for event in world.store.events.of(0)]
    rests = [event.detail["scope"] for event in world.store.events.of(0) if event.kind == "rests"]
    assert rests and set(rests) == {"user nobody's jobs"}
    job.crash()
    world.round()
    assert not set(world.companions()) - fakes


def test_what_slurm_does_not_take_is_trained_on_again(world: World) -> None:
    """A vetoed shrink: the job trains on all that it holds, nobody waits for what it keeps, and it is tried again
    ever less often, until the veto is gone."""
    job = world.elastic(2, 4, "elastic:gpus=4-8,step=4,batch=240-3840")
    world.settle()
    world.slurm.vetoed = {"main"}
    rigid = world.rigid(7)
    tried = []
    for number in range(400):
        world.round()
        asked = kinds(world, job.job_id).count("refused")
        if asked > len(tried):
            tried.append(number * 5.0)
        gaps = [after - before for before, after in pairwise(tried)]
        if len(gaps) >= 2 and gaps[-1] >= 2 * gaps[0]:
            break
    assert len(tried) >= 3 and gaps == sorted(gaps) and gaps[-1] >= 2 * gaps[0]
    world.settle()
    assert job.gpus == 8 and not world.snapshot().jobs[rigid].running and world.rounds.mode == "act"
    reasons = [row.reason for row in world.store.allocations.rows(job.job_id)]
    assert reasons[-1] == Reason.TAKE_BACK.value and reasons.count(Reason.TAKE_BACK.value) == len(tried)
    closed = [event.detail for event in world.store.events.of(job.job_id) if event.kind == "resize_done"]
    assert sum("Unspecified error" in str(detail["detail"]) for detail in closed) == len(tried)
    world.slurm.vetoed = ()
    for _ in range(800):
        world.round()
        if world.snapshot().jobs[rigid].running:
            break
    world.settle()
    assert world.snapshot().jobs[rigid].running and job.gpus == 4


def test_vetoes_in_one_partition_concern_nobody_else(tmp_path: Path) -> None:
    """Jobs that may not be shrunk keep what they have; one of another partition still gives way."""
    world = World(tmp_path, nodes=16)
    low = [world.elastic(2, 4, "elastic:gpus=4-8,step=4,batch=240-3840", partition="low") for _ in range(6)]
    other = world.elastic(2, 4, "elastic:gpus=4-8,step=4,batch=240-3840")
    world.settle()
    world.slurm.vetoed = {"low"}
    for job in low:
        world.store.jobs.pin(job.job_id, 4)
    for _ in range(20):
        world.round()
    assert [event.kind for event in world.store.events.of(0)] == ["rests"]
    rigid = world.rigid(3)
    world.settle(80)
    assert world.snapshot().jobs[rigid].running and other.gpus == 4 and world.rounds.mode == "act"
    assert [job.gpus for job in low] == [8] * 6
    world.store.close()


def test_a_site_may_have_whole_slurm_jobs_given_back_only(tmp_path: Path) -> None:
    """Companions of one node each come and go; no Slurm job is ever shrunk, and the base keeps what it began with."""
    world = World(tmp_path, release_by="job")
    job = world.elastic(2, 4, "elastic:gpus=4-24,step=4,batch=240-3840")
    world.settle()
    assert job.gpus == 24
    assert [len(piece.nodes) for piece in job.pieces] == [2, 1, 1, 1, 1]
    small, large = world.rigid(3), world.rigid(4)
    world.settle()
    assert world.snapshot().jobs[small].running and not world.snapshot().jobs[large].running
    assert job.gpus >= 8 and "shrink" not in kinds(world, job.job_id)
    world.store.close()


def test_health_tells_when_a_round_is_late(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round hangs, or none begins: whoever watches /v1/health sees it; a round that ends makes it well."""
    world.round()
    health = world.controller.health()
    assert (health.status, health.late) == ("ok", False)
    ticks = time.monotonic
    monkeypatch.setattr("slurm_elastic.daemon.rounds.loop.time.monotonic", lambda: ticks() + 3600.0)
    health = world.controller.health()
    assert (health.status, health.late) == ("late", True)
    world.round()
    assert world.controller.health().late is False


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
    assert job.gpus == 20 and "shrink" not in kinds(world, job.job_id)
    world.store.close()


@pytest.mark.parametrize(("gpus", "size"), [("refused", 6), ("works", 10), ("not tried", 10)])
def test_a_job_grows_onto_no_node_in_use_where_two_jobs_see_the_same_gpus(tmp_path: Path, gpus: str, size: int) -> None:
    """Of three nodes its own is half free, another one is half in use, and one is idle."""
    world = World(tmp_path, nodes=3)
    world.store.probes.save(ProbeRow("", "main", 1.0, (Tried("gpus", gpus, "both see 0"),)))
    world.slurm.submit(Component(1, 2), required_nodes=("n2",))
    job = world.elastic(1, 2, "elastic:gpus=2-24,batch=240-3840")
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
