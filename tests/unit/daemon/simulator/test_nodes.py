"""Where simulated jobs sit: no GPU is held twice, shapes are kept, and a spread job is as slow as its nodes."""

from __future__ import annotations

import math
from dataclasses import replace

from simulations import QUIET, outcome, trace_of

from slurm_elastic.daemon.simulator.jobs import SimulationSettings
from slurm_elastic.daemon.simulator.metrics import summary
from slurm_elastic.daemon.simulator.programs import Program
from slurm_elastic.daemon.simulator.replay import simulate
from slurm_elastic.daemon.simulator.traces.formats import TraceJob

APART = Program("apart", lambda gpus, nodes, micro: micro / (100.0 if nodes == 1 else 50.0), 60, 60, (1, 64))
"""100 samples/s a GPU on one node, half of that on several."""


def test_a_job_spread_over_nodes_is_as_fast_as_its_nodes_let_it_be() -> None:
    """What is left on two nodes holds a three-GPU job at the speed of two nodes, and the figures say so."""
    rows = [TraceJob("a", 0.0, "x", 2, duration_s=50.0), TraceJob("b", 0.0, "x", 3, duration_s=50.0)]
    rows.append(TraceJob("c", 1.0, "apart", 1, 60, 600.0, min_gpus=1, max_gpus=3))
    result = simulate(rows, {"apart": APART}, "throughput", QUIET)[0]
    c = result.jobs[2]
    assert c.start_s == 1.0 and c.nodes == 2 and c.moves == 1
    assert math.isclose(c.end_s - c.start_s, 600.0 / 150.0)
    assert 0.0 < summary(result).spread < 1.0


def test_what_a_job_started_with_on_a_node_stays_its_own() -> None:
    """A whole node is wanted while two GPUs are idle on each of two: the others' bases cannot be put elsewhere."""
    rows = [
        TraceJob("short", 0.0, "x", 2, duration_s=5.0),
        TraceJob("first", 0.0, "linear", 2, 64, 4000.0, min_gpus=2, max_gpus=2),
        TraceJob("second", 0.0, "linear", 2, 64, 4000.0, min_gpus=2, max_gpus=2),
        TraceJob("brief", 0.0, "x", 2, duration_s=5.0),
        TraceJob("node", 6.0, "x", 4, duration_s=5.0),
    ]
    result = outcome(rows, settings=replace(QUIET, pause_s=2.0))
    assert [one.moves for one in result.jobs] == [0] * 5
    assert result.jobs[-1].start_s == 20.0  # when one of them has ended


def test_static_jobs_wait_for_their_shape_in_order() -> None:
    """Without elasticity nobody moves over: a pair waits for two GPUs of one node, and nobody overtakes it."""
    rows = [TraceJob(f"r{i}", 0.0, "x", 3, duration_s=50.0 + i) for i in range(2)]
    rows += [TraceJob("pair", 1.0, "x", 2, duration_s=5.0), TraceJob("one", 2.0, "x", 1, duration_s=5.0)]
    result = outcome(rows, "static")
    pair, one = result.jobs[2:]
    assert pair.start_s == 50.0 and one.start_s == 50.0


def test_spread_jobs_do_not_chase_a_compactness_that_no_resize_brings() -> None:
    """With a decision at every event jobs that growth has spread over nodes are not moved to and fro for it."""
    result = outcome(trace_of(150, spacing=12.0), "auto", SimulationSettings(gpus=64, gpus_per_node=8, interval_s=0.0))
    row = summary(result)
    assert row.spread > 0.0 and row.restarts < 4.0
