"""What simulated jobs do with GPUs: batches, sizes, phases, and what a sample is worth."""

from __future__ import annotations

import math

import pytest
from simulations import LINEAR, QUIET, job, outcome

from slurm_elastic.daemon.simulator.programs import BatchLadder, Program, size_ladder
from slurm_elastic.daemon.simulator.replay import simulate
from slurm_elastic.daemon.simulator.traces.formats import TraceJob


def test_efficiency_falls_with_the_batch_and_rises_with_the_noise() -> None:
    """A sample is worth 1 at the base batch, less above it, and more of it is kept where gradients are noisy."""
    noisy = replace_noise(5000.0)
    quiet = replace_noise(50.0)
    assert noisy.efficiency(64, 0.5) == 1.0
    assert quiet.efficiency(640, 0.5) < noisy.efficiency(640, 0.5) < 1.0


def replace_noise(phi: float) -> Program:
    return Program("p", LINEAR.law, 64, 640, (1, 64), noise=lambda done, batch: phi)


def test_phases_change_the_rate_on_the_way() -> None:
    """When the noise scale grows in the second half of the training, the second half is faster: by the formula."""
    law = LINEAR.law
    program = Program("p", law, 64, 512, (64, 64), 8000.0, lambda done, batch: 100.0 if done < 0.5 else 1e9, 2)
    rows = [TraceJob("a", 0.0, "p", 8, 512, min_gpus=8, max_gpus=8, min_batch=512)]
    result = simulate(rows, {"p": program}, "throughput", QUIET)[0]
    first = 4000 / (800.0 * (100 + 64) / (100 + 512))
    assert math.isclose(result.jobs[0].end_s, first + 4000 / 800.0, rel_tol=1e-6)


def test_accumulation_keeps_large_batches_feasible() -> None:
    """A slice larger than the largest micro batch is accumulated: the step takes as many computes."""
    assert LINEAR.split(1, 256) == (64.0, 4)
    assert math.isclose(LINEAR.throughput(1, 1, 256), 100.0)


def test_ladders_hold_only_what_packs() -> None:
    """Sizes are powers of two inside a node and whole nodes above; batches are multiples of the GPUs in range."""
    assert size_ladder(1, 24, 8, 3) == ((1, 1), (2, 1), (3, 1), (4, 1), (8, 1), (16, 2), (24, 3))
    assert BatchLadder(64, 1000)(8) == (64, 128, 256, 512, 1000)
    assert BatchLadder(64, 100)(128) == ()


def test_a_job_starts_at_the_batch_that_it_asked_for() -> None:
    """Between the steps of the planner's ladder, too, as near as its GPUs share it out; never beyond its bounds."""
    batches = BatchLadder(60, 640)
    assert 400 not in batches(4) and batches.as_asked(4, 400) == 400
    assert batches.as_asked(6, 320) == 324 and batches.as_asked(7, 639) == 637 and batches.as_asked(8, 8) == 64
    rows = [TraceJob("a", 0.0, "linear", 4, 400, 4000.0, min_batch=60, max_batch=640)]
    assert outcome(rows, "static").changes[0] == (0.0, "a", 4, 400)


def test_a_batch_that_no_size_shares_out_evenly_is_rounded_up() -> None:
    """A trace with three GPUs and a batch of 64 runs, at 66."""
    rows = [job("a", 0.0, 3, 660.0, min_gpus=3, max_gpus=3)]
    assert outcome(rows).jobs[0].end_s == pytest.approx(660.0 / 300.0)


def test_a_job_with_a_declared_curve_is_as_fast_as_it_says() -> None:
    """1.8 times as fast for each doubling; one that scales better is given more of the cluster."""
    rows = [
        TraceJob(name, 0.0, "held", 1, duration_s=1000.0, min_gpus=1, max_gpus=7, speedup=speedup)
        for name, speedup in (("a", 0.9), ("b", 0.6))
    ]
    grown = outcome([TraceJob("c", 0.0, "held", 4, duration_s=1000.0, min_gpus=4, max_gpus=8, speedup=0.9)])
    assert math.isclose(grown.jobs[0].end_s, 1000.0 / 1.8)
    first = {job_id: gpus for at, job_id, gpus, _ in outcome(rows).changes if at == 0.0}
    assert first["a"] > first["b"]
