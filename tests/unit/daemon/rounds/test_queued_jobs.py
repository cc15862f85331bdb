"""First sizes of waiting jobs in the whole daemon: written down before Slurm is asked, and known after its death."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from daemon_harness import USER, World
from fake_slurm import Component

from slurm_elastic.daemon.optimizer.models.throughput import ThroughputModel
from slurm_elastic.daemon.planner.waiting.first_sizes import BACK_S
from slurm_elastic.daemon.rounds.facts import ANEW_S
from slurm_elastic.daemon.slurm.model import Size
from slurm_elastic.protocol.codec import VERSION
from slurm_elastic.protocol.errors import SlurmUnreachable
from slurm_elastic.protocol.messages import Registration

REQUEST = "elastic:gpus=4-16,step=4,batch=240-3840"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, first_size="smallest")
    yield made
    made.store.close()


def asks(world: World, job_id: int) -> tuple[int, int]:
    job = world.snapshot().jobs[job_id]
    return job.num_nodes, job.gpus_per_node


def test_a_job_starts_small_grows_and_its_event_says_what_its_script_asked_for(world: World) -> None:
    """Six of eight nodes are taken and four asked for; when they are free it has what it accepts."""
    rigid = world.rigid(6)
    job = world.elastic(4, comment=REQUEST)
    world.settle()
    assert world.snapshot().jobs[job.job_id].num_nodes == 1 and job.gpus == 8
    (event,) = [event for event in world.store.events.of(job.job_id) if event.kind == "resume"]
    assert event.detail["size"]["nodes"] == 1 and event.detail["script"]["nodes"] == 4
    assert "accepts less" in event.detail["why"]
    world.slurm.finish(rigid)
    world.settle()
    assert job.gpus == 16


def test_supervisors_hear_what_their_scripts_ask_for(world: World) -> None:
    """Of a job that started smaller, and of one that gave up nodes since: they get that back if the daemon dies."""
    whole, rigid = world.elastic(4, comment=REQUEST), world.rigid(2)
    world.settle()
    small = world.elastic(4, comment=REQUEST)
    world.settle()
    base = world.snapshot().jobs[small.job_id]
    assert (base.num_nodes, base.gpus_per_node) == (1, 4) and whole.gpus < 16
    world.slurm.finish(rigid)
    for job in (whole, small):
        grant = world.register(job.job_id, Registration(VERSION, 1, job.pieces, 240, "train.py"))
        [script] = grant.script
        assert (script.nodes, script.gpus_per_node, script.cpus_per_node) == (4, 4, base.cpus // base.num_nodes)
        assert (script.partition, script.node_list, grant.alone_after_s) == (base.partition, (), 600.0)


@pytest.mark.parametrize("dies", [False, True])
def test_a_job_whose_gpus_are_gone_asks_for_its_scripts_size_again(world: World, dies: bool) -> None:
    """Somebody takes the two free nodes at the moment at which Slurm hears of the size, whether or not the daemon dies
    then: the job waits for what its script asks for, as if there were no daemon, and starts with that."""
    rigid = world.rigid(6)
    job = world.elastic(4, comment=REQUEST)
    hear = world.jobs.resize_waiting
    others = list[int]()

    def too_late(job_id: int, size: Size, reservation: str = "") -> None:
        world.slurm.model.reservations["taken"] = ()  # so that what comes later starts
        if not others:
            others.append(world.rigid(2))
        hear(job_id, size, reservation)

    world.jobs.resize_waiting = too_late  # type: ignore[method-assign]
    world.round()
    world.slurm.model.reservations.clear()
    assert others and asks(world, job.job_id) == (1, 4) and world.snapshot().jobs[job.job_id].pending
    if dies:
        world.boot()
    for _ in range(int(BACK_S // 5) + 1):
        world.round()
    assert asks(world, job.job_id) == (4, 4)
    why = [event.detail["why"] for event in world.store.events.of(job.job_id) if event.kind == "resume"]
    assert len(why) == 2 and "did not start" in why[-1]
    world.slurm.finish(rigid)
    world.settle()
    assert world.snapshot().jobs[job.job_id].num_nodes == 4


def test_in_review_no_waiting_job_is_touched(tmp_path: Path) -> None:
    """`explain` says what would be done."""
    world = World(tmp_path, first_size="smallest", mode="review")
    world.rigid(6)
    job = world.elastic(4, comment=REQUEST)
    world.round()
    assert asks(world, job.job_id) == (4, 4)
    decision = world.store.decisions.last(job.job_id)
    assert decision is not None and "starts with 4 GPUs" in decision.evidence["next"]
    world.store.close()


def test_what_slurm_did_not_hear_is_asked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """slurmctld is away in the middle: the event is there, the size is not, and the next rounds see the size."""
    world.rigid(6)
    job = world.elastic(4, comment=REQUEST)

    def away(*args: object) -> None:
        raise SlurmUnreachable("away")

    monkeypatch.setattr(world.jobs, "resize_waiting", away)
    world.round()
    monkeypatch.undo()
    assert asks(world, job.job_id) == (4, 4)
    world.boot()
    world.settle()
    assert job.gpus == 8


def test_a_waiting_job_is_taken_to_scale_as_the_last_one_of_its_name(world: World) -> None:
    """Its owner's job of that name is measured; another user's and another name's are not its own."""
    done = world.elastic()
    world.settle()
    facts = world.rounds_from_scratch().facts
    world.slurm.submit(Component(4, 4), user=USER, name="train", comment=REQUEST)
    world.slurm.submit(Component(4, 4), user=USER, name="another", comment=REQUEST)
    world.slurm.submit(Component(4, 4), user="nobody", name="train", comment=REQUEST)
    roster = world.registry.sort(world.snapshot())
    now, later = (SimpleNamespace(roster=roster, now=at) for at in (0.0, ANEW_S - 1))
    models = list(facts.waiting_models(now).values())  # type: ignore[arg-type]  # it looks at no more of it
    assert all(isinstance(model, ThroughputModel) for model in models) and len(models) == 3
    own, other, foreign = models
    assert {4, 24} <= set(own.sizes_seen) and other is foreign and other.sizes_seen == (1,)
    assert facts.waiting_models(later) == facts.waiting_models(now)  # type: ignore[arg-type]
    assert done.job_id == world.store.programs.youngest_named(USER, "train")
    assert world.store.programs.youngest_named(USER, "another") is None


def test_plan_sizes_come_from_what_the_program_was_measured_to_do(tmp_path: Path) -> None:
    """A run of the same name was measured: the next one that finds no room for eight nodes starts at more than the
    smallest size."""
    world = World(tmp_path, first_size="plan")
    first = world.elastic(comment="elastic:gpus=4-32,step=4,batch=240-3840")
    world.settle()
    first.end()
    world.rigid(4)
    job = world.elastic(8, comment="elastic:gpus=4-32,step=4,batch=240-3840")
    world.round()
    nodes, gpus = asks(world, job.job_id)
    assert (nodes, gpus) == (4, 4) and world.snapshot().jobs[job.job_id].running
    world.store.close()
