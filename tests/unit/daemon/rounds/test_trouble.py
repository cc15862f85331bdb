"""What a round does where something fails: Slurm, the database, a policy, a site's rules."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pytest
from daemon_harness import Supervisor, World
from fake_slurm import Component

from slurm_elastic.client.explanation.command import render
from slurm_elastic.daemon import reports
from slurm_elastic.daemon.optimizer.errors import PolicyFailed
from slurm_elastic.daemon.optimizer.policies import POLICIES, Policy
from slurm_elastic.daemon.reports.common import Viewer
from slurm_elastic.protocol.codes import Reason
from slurm_elastic.protocol.errors import SlurmRefused
from slurm_elastic.protocol.messages import TOO_LARGE


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


def test_a_size_without_room_in_gpu_memory_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither after the backoff nor by the next daemon, nor once old resizes are thinned out: the job gets the largest
    size below, and gives way to that and to smaller ones. `explain` names the sizes."""
    world = World(tmp_path, failed_backoff_s=20.0)
    job, other = world.elastic(), world.elastic(comment="elastic:gpus=4-8,step=4,batch=240-3840")
    switch, tried = Supervisor._switch, []

    def fits(supervisor: Supervisor) -> None:
        assert supervisor.active is not None
        tried.append(supervisor.active.gpus)
        if supervisor is job and supervisor.active.gpus > 16:
            return supervisor._give_up("failed", f"{TOO_LARGE}: CUDA out of memory")
        return switch(supervisor)

    monkeypatch.setattr(Supervisor, "_switch", fits)
    world.settle(100)
    world.boot()
    assert world.store.thinning.thin(world.slurm.now)
    world.settle(100)
    assert (job.gpus, other.gpus) == (16, 8)
    assert [tried.count(size) for size in (24, 20, 16)] == [1, 1, 1]
    explained = reports.explain(world.store, job.job_id, Viewer(0, admin=True), world.slurm.now)
    assert any("not tried again: 20 or 24 GPUs" in line for line in render(explained, 1000))
    other.crash()
    world.rigid(6)
    world.settle(100)
    assert job.gpus == 8 and tried.count(24) + tried.count(20) == 2
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
        asked = world.kinds(job.job_id).count("refused")
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
    assert job.gpus >= 8 and "shrink" not in world.kinds(job.job_id)
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
