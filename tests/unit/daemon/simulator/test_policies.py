"""What comes of the policies and the disciplines that they are compared with."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from simulations import QUIET, held_at_most, outcome, trace_of

from slurm_elastic.daemon.optimizer.policies import POLICIES
from slurm_elastic.daemon.simulator.engine import Outcome
from slurm_elastic.daemon.simulator.jobs import SimulationSettings
from slurm_elastic.daemon.simulator.metrics import summary
from slurm_elastic.daemon.simulator.programs import builtin
from slurm_elastic.daemon.simulator.replay import simulate
from slurm_elastic.daemon.simulator.traces.formats import TraceJob


@pytest.mark.parametrize("policy", [*sorted(POLICIES), "backfill"])
def test_every_policy_keeps_the_books(policy: str) -> None:
    """All jobs end, capacity is never exceeded, work is done in full, nobody ends before it starts."""
    settings = SimulationSettings(gpus=16, gpus_per_node=4, pause_s=10.0)
    result = outcome(trace_of(60), policy, settings)
    assert held_at_most(result) <= 16
    for one in result.jobs:
        assert one.end_s > one.start_s >= one.trace.submit_s
        assert abs(one.left) <= 1e-6 * one.work
    row = summary(result)
    assert row.completed == 60 and 0 < row.gpus_used <= 1.0
    held = sum(one.gpu_seconds for one in result.jobs)
    assert math.isclose(held, sum_of_changes(result), rel_tol=1e-6)


def sum_of_changes(result: Outcome) -> float:
    """GPU-seconds from the log of changes: an account kept apart from the jobs' own."""
    since, total = dict[str, tuple[float, int]](), 0.0
    for at, name, gpus, _ in result.changes:
        start, had = since.get(name, (at, 0))
        total += (at - start) * had
        since[name] = at, gpus
    return total


def test_learned_curves_come_close_to_known_ones() -> None:
    """Planning from each job's own noisy reports costs less than half over knowing the true curves."""
    rows = trace_of(60)
    settings = SimulationSettings(gpus=16, pause_s=5.0)
    known, learned = (summary(outcome(rows, "log-goodput", replace(settings, learned=x))).mean_s for x in (False, True))
    assert learned < 1.5 * known


def test_elastic_batches_beat_fixed_ones_and_fixed_beat_static() -> None:
    """The claim of the whole product, in shape: mean completion time falls from static to elastic to batch-elastic."""
    rows = trace_of(120, spacing=30.0)
    settings = SimulationSettings(gpus=32, pause_s=10.0)
    policies = ("static", "fixed-batch", "log-goodput")
    static, fixed, elastic = (summary(outcome(rows, p, settings)).mean_s for p in policies)
    assert elastic < fixed < static


def ending(rows: list[TraceJob], how: str) -> list[TraceJob]:
    """The same jobs with what ends their training said: "epochs", "quality", or one in two each for "both"."""
    said = {"both": ("epochs", "quality")}.get(how, (how,))
    return [replace(row, until=said[i % len(said)]) for i, row in enumerate(rows)]


@pytest.mark.parametrize(("how", "other"), [("epochs", "log-throughput"), ("quality", "log-goodput")])
def test_the_default_is_the_better_measure_for_each_kind_of_job(how: str, other: str) -> None:
    """Where all jobs train epochs `auto` makes log-throughput's every decision, where all stop at a quality
    log-goodput's: it cannot be worse than either."""
    rows = ending(trace_of(60, spacing=20.0), how)
    settings = SimulationSettings(gpus=16, pause_s=10.0)
    assert outcome(rows, "auto", settings).changes == outcome(rows, other, settings).changes


def test_the_default_beats_both_measures_where_jobs_are_of_both_kinds() -> None:
    """One objective over both kinds of job: better than counting everybody's samples, and everybody's goodput."""
    rows = ending(trace_of(150, spacing=12.0), "both")
    settings = SimulationSettings(gpus=32, pause_s=10.0)
    auto, samples, goodput = (
        summary(outcome(rows, policy, settings)).mean_s for policy in ("auto", "log-throughput", "log-goodput")
    )
    assert auto < samples and auto < goodput


def test_jobs_that_do_not_say_what_ends_them_are_taken_as_told_and_counted() -> None:
    """The report says how many jobs were taken to stop at a quality, and how many to train epochs."""
    rows = [*ending(trace_of(4), "epochs")[:1], *trace_of(4)[1:]]
    for until, word in (("quality", "quality is reached"), ("epochs", "fixed number of samples")):
        _, notes = simulate(rows, builtin(), "auto", replace(QUIET, until=until))
        assert any(note.startswith("3 jobs") and word in note and "not said" in note for note in notes)


def test_unpriced_moves_cost_more() -> None:
    """Taking restarts for free makes more of them and longer completion times."""
    rows = trace_of(80, spacing=20.0)
    settings = SimulationSettings(gpus=32, pause_s=180.0, horizon_s=600.0, interval_s=30.0)
    priced, free = (summary(outcome(rows, "auto", replace(settings, price_moves=x))) for x in (True, False))
    assert priced.restarts < free.restarts and priced.mean_s < free.mean_s


def test_backfill_lets_pass_who_delays_nobody() -> None:
    """Behind a job that waits for the whole cluster one starts that is done before it could; a longer one waits."""
    rows = [
        TraceJob("runs", 0.0, "x", 6, duration_s=100.0),
        TraceJob("large", 1.0, "x", 8, duration_s=50.0),
        TraceJob("longer", 2.0, "x", 2, duration_s=200.0),
        TraceJob("short", 3.0, "x", 2, duration_s=90.0),
    ]
    settings = replace(QUIET, gpus=8, interval_s=60.0)
    ends = {j.trace.job_id: j.end_s for j in outcome(rows, "backfill", settings).jobs}
    assert ends == {"runs": 100.0, "short": 93.0, "large": 150.0, "longer": 350.0}
    beside = [*rows[:1], replace(rows[1], gpus=7), replace(rows[2], gpus=1)]
    ends = {j.trace.job_id: j.end_s for j in outcome(beside, "backfill", settings).jobs}
    assert ends == {"runs": 100.0, "large": 150.0, "longer": 202.0}
