"""What is simulated is what would run: simulator and daemon decide alike on the same inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_harness import World

from slurm_elastic.daemon.planner import Inputs, Plan, decide
from slurm_elastic.daemon.planner.tables import Tables
from slurm_elastic.daemon.services import elastic as elastic_jobs
from slurm_elastic.daemon.simulator.jobs import SimulationSettings, prepare
from slurm_elastic.daemon.simulator.programs import Program
from slurm_elastic.daemon.simulator.replay import Elastic
from slurm_elastic.daemon.simulator.traces.formats import TraceJob

NODES, GPUS, ELASTIC = 8, 4, 3
Resize = tuple[int, int, int, str, tuple[str, ...], tuple[tuple[str, ...], ...]]
"""(GPUs before, GPUs after, batch, reason, nodes kept, nodes of each shape added), nodes by their place."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, NODES, GPUS, cooldown_grow_s=0.0, cooldown_shrink_s=0.0)
    yield made
    made.store.close()


@pytest.fixture
def seen(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Inputs]:
    """What the daemon's rounds decide on."""
    found: list[Inputs] = []
    plan_round = elastic_jobs.plan_round

    def noted(inputs: Inputs, with_rows: bool) -> Plan:
        found.append(replace(inputs, tables=Tables()))
        return plan_round(inputs, with_rows)

    monkeypatch.setattr(elastic_jobs, "plan_round", noted)
    return found


def simulation() -> Elastic:
    """Three jobs as the harness's, a rigid one of two nodes behind them, and the same settings."""
    program = Program("as the harness's", lambda gpus, nodes, micro: 0.004 * micro, 240, 3840, (1, 3840))
    sizes = {"min_gpus": 4, "max_gpus": 24, "min_batch": 240, "max_batch": 3840}
    rows = [TraceJob(str(i), float(i), program.name, 4, 240, 1e9, until="epochs", **sizes) for i in range(ELASTIC)]
    rows.append(TraceJob("rigid", 10.0, "unknown", 8, duration_s=1e6))
    settings = SimulationSettings(NODES * GPUS, GPUS, cooldown_s=0.0, pause_s=0.1)
    return Elastic(prepare(rows, {program.name: program}, settings)[0], "auto", settings)


def inputs_of(simulated: Elastic) -> Inputs:
    """What the simulation's service plans from."""
    return simulated.services.elastic.inputs(simulated.observation())


def as_known(simulated: Inputs, daemon: Inputs) -> Inputs:
    """The simulation's inputs with what the daemon knows of the jobs: the same ones in the same order."""
    measured = [daemon.states[job_id] for job_id in sorted(daemon.states)]
    states = {
        job_id: replace(
            state, observations=own.observations, model=own.model, pause_s=own.pause_s, remaining=own.remaining
        )
        for (job_id, state), own in zip(sorted(simulated.states.items()), measured, strict=True)
    }
    return replace(simulated, states=states, settings=daemon.settings)


def resizes(inputs: Inputs) -> list[Resize]:
    """What is decided, by the places of jobs and nodes instead of their names."""
    place = {name: f"node {n}" for n, name in enumerate(sorted(inputs.snapshot.nodes))}
    found = []
    for move in decide(replace(inputs, tables=Tables())).begun:
        kept = tuple(sorted(place[name] for piece in move.keep for name in piece.nodes))
        added = tuple(tuple(place[name] for name in shape.node_list) for shape in move.add)
        wanted = move.target_size
        found.append((wanted.running.gpus, move.gpus, wanted.batch, wanted.reason.value, kept, added))
    return sorted(found)


def follow(simulated: Elastic, daemon: Inputs) -> list[Resize]:
    """What the daemon begins, which the simulation must begin, too, and does."""
    begun = resizes(daemon)
    if begun:
        context = as_known(inputs_of(simulated), daemon)
        assert resizes(context) == begun
        for move in decide(context).begun:
            simulated._resize(move.resize(60.0))
    return begun


def start(simulated: Elastic, count: int) -> None:
    """The next jobs of the trace are submitted, and Slurm starts those that it can."""
    first = len(simulated.running) + len(simulated.waiting)
    for i in range(first, first + count):
        simulated.cluster.submit(i)
    simulated._schedule()


def test_simulator_and_daemon_decide_alike(world: World, seen: list[Inputs]) -> None:
    """Idle GPUs are shared out alike, and room for a waiting job is made by the same jobs on the same nodes."""
    jobs = [world.elastic() for _ in range(ELASTIC)]
    simulated = simulation()
    start(simulated, ELASTIC)
    while not seen or any(not state.observations for state in seen[-1].states.values()) or len(seen[-1].states) < 3:
        world.round()
    assert follow(simulated, seen[-1])
    for _ in range(20):
        world.round()
        simulated.now += 1000.0
        follow(simulated, seen[-1])
    assert {job.gpus for job in jobs} >= {8} and sum(job.gpus for job in jobs) == NODES * GPUS
    world.rigid(2)
    world.rounds.run()
    start(simulated, 1)
    made_room = resizes(seen[-1])
    assert any(before > after for before, after, *_ in made_room) and all(row[0] >= row[1] for row in made_room)
    assert resizes(as_known(inputs_of(simulated), seen[-1])) == made_room
