"""Small simulations for tests: one linear program, quiet settings, random traces."""

from __future__ import annotations

import random

from slurm_elastic.daemon.simulator.engine import Outcome
from slurm_elastic.daemon.simulator.jobs import SimulationSettings
from slurm_elastic.daemon.simulator.programs import Program, builtin
from slurm_elastic.daemon.simulator.replay import simulate
from slurm_elastic.daemon.simulator.traces.formats import TraceJob

LINEAR = Program("linear", lambda gpus, nodes, micro: micro / 100.0, 64, 64, (1, 64), note="100 samples/s a GPU")
QUIET = SimulationSettings(gpus=8, gpus_per_node=4, interval_s=0.0, pause_s=0.0, cooldown_s=0.0)


def job(name: str, at: float, gpus: int = 1, samples: float = 1000.0, **more: float) -> TraceJob:
    return TraceJob(name, at, "linear", gpus, 64, samples, **more)  # type: ignore[arg-type]


def outcome(rows: list[TraceJob], policy: str = "throughput", settings: SimulationSettings = QUIET) -> Outcome:
    return simulate(rows, {"linear": LINEAR, **builtin()}, policy, settings)[0]


def trace_of(count: int, seed: int = 0, spacing: float = 60.0) -> list[TraceJob]:
    """Jobs of the three built-in classes at random times."""
    rng, at, rows = random.Random(seed), 0.0, []
    for i in range(count):
        at += rng.expovariate(1 / spacing)
        program = rng.choice(sorted(builtin()))
        rows.append(TraceJob(str(i), at, program, rng.choice([1, 2, 4]), 64, duration_s=rng.lognormvariate(6, 0.8)))
    return rows


def held_at_most(result: Outcome) -> int:
    """The most GPUs ever held at once, from the changes alone."""
    holds, most = dict[str, int](), 0
    times = sorted({at for at, *_ in result.changes})
    by_time = {at: [c for c in result.changes if c[0] == at] for at in times}
    for at in times:
        for _, name, gpus, _ in by_time[at]:
            holds[name] = gpus
        most = max(most, sum(holds.values()))
    return most
