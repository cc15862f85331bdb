"""The service `power` in a daemon on a Slurm in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from daemon_harness import World, settings

from slurm_elastic.daemon.services.power.decide import STEP_S
from slurm_elastic.protocol.answers.site import Power
from slurm_elastic.protocol.codes import EventKind
from slurm_elastic.protocol.errors import NotFound

ASLEEP = ("IDLE", "POWERED_DOWN")


def world(tmp_path: Path, told: str = "power=act", saves_power: bool = True, **more: object) -> World:
    """Eight nodes, one of them never to sleep; the buffer is two."""
    found = World(tmp_path, services=(told,), site_interval_s=1.0, power_buffer=0.25, **more)
    found.slurm.saves_power, found.slurm.never_sleep = saves_power, ("n8",)
    return found


def report(world: World) -> Power:
    return world.controller.power()


def states(world: World) -> dict[str, str]:
    return {node.node: node.state for node in report(world).nodes}


def test_idle_nodes_sleep_but_for_the_buffer_and_wake_when_it_is_off(tmp_path: Path) -> None:
    """Nodes that Slurm is not to put to sleep stay, and after a restart nothing is asked for again."""
    acts = world(tmp_path)
    acts.rigid(1)
    acts.round()
    asked = [("n7", False), ("n6", False), ("n5", False), ("n4", False), ("n3", False)]
    assert acts.slurm.power_asked == asked
    acts.round()
    assert states(acts) == {"n1": "busy", "n2": "idle", "n8": "idle", **{f"n{i}": "asleep" for i in range(3, 8)}}
    assert {node.node: node.why for node in report(acts).nodes}["n8"] == "in SuspendExcNodes or SuspendExcParts"
    acts.boot()
    for _ in range(3):
        acts.round()
    assert acts.slurm.power_asked == asked and report(acts).mode == "act"
    acts.slurm.saves_power = False
    for _ in range(3):
        acts.round()
    assert acts.slurm.power_asked == asked and report(acts).mode == "review"
    acts.settings = settings()
    acts.boot()
    acts.round()
    assert acts.slurm.power_asked[5:] == [(f"n{i}", True) for i in range(7, 2, -1)]
    acts.round(60)
    assert len(acts.slurm.power_asked) == 10
    with pytest.raises(NotFound, match="service power is off"):
        report(acts)


@pytest.mark.parametrize(("told", "saves"), [("power=review", True), ("power=act", False)])
def test_a_review_asks_for_nothing(tmp_path: Path, told: str, saves: bool) -> None:
    """So it is where the site lacks what it needs; what would have been done is said each step."""
    reviews = world(tmp_path, told, saves)
    for _ in range(3):
        reviews.round(STEP_S)
    assert not reviews.slurm.power_asked
    said = [event.detail for event in reviews.store.events.of(0) if event.detail.get("service") == "power"]
    assert [one["needed"] for one in said] == [{"main/a100": 0}] * 2
    assert "would do: 6 sleep, 0 wake" in reviews.controller.notes()[-1].text
    found = report(reviews)
    assert found.mode == "review" and any("could not act" in one for one in found.said) != saves


def test_what_it_would_have_brought_is_replayed(tmp_path: Path) -> None:
    reviews = world(tmp_path, "power=review")
    reviews.rigid(1)
    for _ in range(150):
        reviews.round(STEP_S)
    would = report(reviews).said[-1]
    assert "1.0 days as they were: 71% of idle hours asleep, 0 wake-ups" in would


def test_the_record_of_demand_outlives_the_daemon(tmp_path: Path) -> None:
    acts = world(tmp_path)
    acts.rigid(3)
    for _ in range(5):
        acts.round(STEP_S)
    before = acts.rounds.services.power._history
    acts.boot()
    acts.round()
    after = acts.rounds.services.power._history
    assert before is not None and after is not None
    steps = before.demand["main/a100"].steps
    assert len(steps) >= 3 and after.demand["main/a100"].steps == steps
    assert after.asleep == before.asleep and after.asleep


def test_what_an_elastic_job_is_given_does_not_sleep(tmp_path: Path) -> None:
    """It grows from one node to three: these are not idle from the round in which that is decided."""
    acts = world(tmp_path)
    acts.elastic(comment="elastic:gpus=4-12,step=4,batch=240-3840", measured=True)
    acts.round()
    acts.round()
    assert acts.slurm.power_asked == [("n7", False), ("n6", False), ("n5", False)]
    assert states(acts)["n2"] in ("offered", "busy")


@pytest.mark.parametrize(("reason", "keeps"), [("Resources", True), ("JobHeldUser", False)])
def test_what_a_waiting_job_needs_is_kept_awake(tmp_path: Path, reason: str, keeps: bool) -> None:
    """Six nodes for one that other nodes would start; none for one that is held."""
    acts = world(tmp_path)
    acts.rigid(1)
    acts.rigid(8, reason="Dependency")
    acts.rigid(6, reason=reason)
    acts.round()
    assert bool(acts.slurm.power_asked) != keeps


def test_who_waits_for_a_boot_and_what_does_not_boot_are_counted(tmp_path: Path) -> None:
    """A job that Slurm starts on a sleeping node wakes it. After the second failure the node is left alone."""
    acts = world(tmp_path, power_watts=500.0)
    acts.rigid(1)
    acts.round()
    job = acts.rigid(1, required_nodes=("n3",), num_nodes=1)
    boots, configuring = ("ALLOCATED", "POWERING_UP"), {"nodes": ("n3",), "state": "CONFIGURING"}
    acts.slurm.model.change(job, **configuring)
    acts.slurm.set_node_state("n3", *boots)
    acts.round(3600)
    acts.round(90)
    assert states(acts)["n3"] == "busy"
    acts.slurm.set_node_state("n3")
    acts.round(5)
    found = report(acts)
    assert (found.woken, found.wake_ups, found.waits_s) == (1, 1, (95,))
    assert found.asleep_h == pytest.approx(found.kwh / 0.5 if found.kwh else 0.0) and found.asleep_h > 5
    for again in (1, 2):
        acts.slurm.finish(job) if again == 1 else None
        acts.slurm.set_node_state("n3", *ASLEEP)
        acts.store.events.add(0, EventKind.POWER, "selasticd", {"node": "n3", "awake": False}, acts.slurm.now)
        acts.boot()
        acts.round()
        acts.slurm.set_node_state("n3", "DOWN")
        acts.round(200)
        known = acts.rounds.services.power._history
        assert known is not None and known.failures["n3"] == again
    acts.slurm.set_node_state("n3")
    acts.round(200)
    row = next(node for node in report(acts).nodes if node.node == "n3")
    assert (row.state, row.why) == ("idle", "did not boot 2 times")
