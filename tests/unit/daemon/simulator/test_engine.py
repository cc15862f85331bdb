"""The simulation: time and GPUs are accounted for exactly, costs are charged, and what it says is reproducible."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from simulations import LINEAR, QUIET, held_at_most, job, outcome, trace_of

from slurm_elastic.daemon.simulator import engine, replay
from slurm_elastic.daemon.simulator.engine import Outcome
from slurm_elastic.daemon.simulator.jobs import SimulationSettings
from slurm_elastic.daemon.simulator.metrics import summary
from slurm_elastic.daemon.simulator.programs import Program, builtin
from slurm_elastic.daemon.simulator.replay import simulate
from slurm_elastic.daemon.simulator.traces.formats import TraceJob


def test_one_job_alone_takes_what_arithmetic_says() -> None:
    """1000 samples at 100 samples/s a GPU on 8 GPUs end after 1.25 s; no restarts, all GPU-seconds counted."""
    result = outcome([job("a", 5.0, 8)])
    done = result.jobs[0]
    assert math.isclose(done.end_s - done.start_s, 1.25)
    assert math.isclose(done.gpu_seconds, 10.0)
    assert done.moves == 0


def test_static_is_first_come_first_served() -> None:
    """Without elasticity the third of three 4-GPU jobs waits for the first to end, in order."""
    rows = [job("a", 0, 4, 4000), job("b", 0, 4, 8000), job("c", 1, 4, 4000), job("d", 1, 1, 100)]
    result = outcome(rows, "static")
    a, b, c, d = result.jobs
    assert (a.start_s, b.start_s) == (0.0, 0.0)
    assert math.isclose(c.start_s, a.end_s) and math.isclose(a.end_s, 10.0)
    assert d.start_s >= c.start_s  # never overtakes, though it would have fitted
    assert b.moves == c.moves == 0


def test_a_pause_is_charged_to_the_job_that_moves() -> None:
    """A job that shrinks for another and grows again loses exactly its pauses."""
    settings = replace(QUIET, pause_s=2.0, horizon_s=1e6)
    rows = [job("a", 0, 8, 100_000), job("b", 10, 4, 1000, min_gpus=4, max_gpus=4)]
    result = outcome(rows, "log-goodput", settings)
    a = result.jobs[0]
    assert a.moves == 2 and a.paused_s == 4.0
    trained = a.gpu_seconds - sum(2.0 * k for k in (4, 8))  # it held 4, then 8 GPUs while it paused
    assert math.isclose(trained * 100.0, 100_000, rel_tol=1e-6)


def test_a_growing_job_trains_on_while_it_waits() -> None:
    """Until the added GPUs can be used the old size goes on; the new ones are held but idle."""
    settings = replace(QUIET, grow_wait_s=30.0, pause_s=1.0, horizon_s=1e6)
    rows = [job("a", 0, 4, 80_000), job("b", 0, 4, 4000, min_gpus=4, max_gpus=4)]
    result = outcome(rows, "log-goodput", settings)
    a, b = result.jobs
    assert a.moves == 1
    grown_at = b.end_s + 30.0
    done = 4 * 100.0 * grown_at
    assert math.isclose(a.end_s, grown_at + 1.0 + (80_000 - done) / 800.0, rel_tol=1e-6)


def test_the_cooldown_holds_a_job() -> None:
    """With a long cooldown a job grows less often than without, and never sooner; for a waiting job it gives way."""
    rows = trace_of(40)
    free, held = (outcome(rows, settings=replace(QUIET, gpus=16, pause_s=5.0, cooldown_s=c)) for c in (0.0, 3000.0))
    assert len(growths(held)) < len(growths(free)) / 2
    assert all(waited >= 3000.0 - 1e-6 for waited in growths(held))
    assert sum(j.moves for j in held.jobs) > len(growths(held))


def growths(result: Outcome) -> list[float]:
    """Of every growth but the first change of a job's size: the time since the change before."""
    found = []
    for one in result.jobs:
        held = [(at, gpus) for at, name, gpus, _ in result.changes if name == one.trace.job_id and gpus]
        changed = [(at, had, gpus) for (_, had), (at, gpus) in pairwise(held) if gpus != had]
        found += [at - before for (before, _, _), (at, had, gpus) in pairwise(changed) if gpus > had]
    return found


def test_a_cooldown_that_rounds_does_not_stop_time() -> None:
    """With odd times, cooldowns and waiting grows the simulation ends, with a decision per cause and not a loop."""
    rows = [replace(r, submit_s=r.submit_s + 1 / 3) for r in trace_of(40)]
    settings = replace(QUIET, gpus=16, pause_s=5.0, grow_wait_s=20.1, cooldown_s=120.3)
    for wait in (20.1, 200.7):  # shorter and longer than the cooldown
        result = outcome(rows, settings=replace(settings, grow_wait_s=wait))
        assert all(one.end_s > 0 for one in result.jobs)
        moved = sum(one.moves for one in result.jobs)
        assert result.decisions <= 2 * len(rows) + 2 * moved + result.end_s / 60.0


def test_a_grow_takes_effect_though_the_training_changes_phase_meanwhile() -> None:
    """A job that enters another phase of its training while it waits for GPUs still gets them."""
    program = Program("p", LINEAR.law, 64, 64, (1, 64), 100_000.0, lambda done, batch: 100.0 + done, 50)
    rows = [TraceJob("a", 0.0, "p", 4, 64), job("b", 0, 4, 4000, min_gpus=4, max_gpus=4)]
    settings = replace(QUIET, grow_wait_s=30.0, pause_s=1.0, horizon_s=1e6)
    result = simulate(rows, {"p": program, "linear": LINEAR}, "log-throughput", settings)[0]
    a, b = result.jobs
    assert a.moves == 1
    grown_at = b.end_s + 30.0
    assert math.isclose(a.end_s, grown_at + 1.0 + (100_000 - 400.0 * grown_at) / 800.0, rel_tol=1e-6)


def test_decisions_are_not_closer_than_the_interval() -> None:
    """With a 5 min interval there are far fewer decisions than events, and all jobs still end."""
    rows = trace_of(80, spacing=5.0)
    rare, often = (outcome(rows, settings=replace(QUIET, gpus=16, interval_s=s)) for s in (300.0, 0.0))
    assert rare.decisions < often.decisions / 2
    assert rare.decisions <= rare.end_s / 300.0 + 2


def test_drop_mode_turns_jobs_away() -> None:
    """A job that finds no room is dropped in drop mode and waits otherwise."""
    rows = [job("a", 0, 8, 80_000, min_gpus=8), job("b", 10, 8, 800, min_gpus=8)]
    dropped = outcome(rows, settings=replace(QUIET, drop=True))
    assert dropped.jobs[1].dropped and dropped.jobs[1].end_s < 0
    assert summary(dropped).completed == 1 and summary(dropped).dropped == 1
    assert outcome(rows).jobs[1].end_s > 0


@pytest.mark.parametrize("first_size", ["script", "smallest", "plan"])
def test_a_job_is_admitted_while_everyone_can_have_its_smallest_size(first_size: str) -> None:
    """As the core paper admits jobs, where first sizes are not the scripts': the first job gives one of its two nodes
    to the second, and the third is turned away, for no more fits. By the scripts' sizes the second has no room either.
    """
    rows = [job("a", 0, 8, 80_000, min_gpus=4, max_gpus=8), *(job(n, 10, 8, 800, min_gpus=4, max_gpus=8) for n in "bc")]
    settings = replace(QUIET, drop=True, first_size=first_size)
    found = outcome(rows, "log-throughput", settings).jobs
    assert [one.dropped for one in found] == [False, first_size == "script", True]
    assert found[1].first_gpus == (0 if first_size == "script" else 4)


def test_jobs_that_the_queue_never_showed_are_dropped_too() -> None:
    """The planner sees the head of the queue; behind it jobs are turned away as well."""
    dropped = outcome([job(name, 0.0, 8, min_gpus=8) for name in "abcd"], settings=replace(QUIET, drop=True))
    assert [one.dropped for one in dropped.jobs] == [False, True, True, True]


def test_rigid_jobs_run_as_recorded() -> None:
    """A job without a profile takes the size and time of the trace, and the assumption is stated."""
    rows = [TraceJob("r", 0.0, "unknown", 4, duration_s=100.0), TraceJob("s", 0.0, "unknown", 8, duration_s=50.0)]
    result, notes = simulate(rows, builtin(), "throughput", QUIET)
    assert [j.end_s for j in result.jobs] == [100.0, 150.0]
    assert any("2 jobs, no profile: rigid" in note for note in notes)
    assumed, notes = simulate(rows, builtin(), "throughput", QUIET, declared="compute")
    assert all(j.elastic for j in assumed.jobs)
    assert any("2 jobs, of no known program: taken to scale as 'compute'" in note for note in notes)


def test_elastic_jobs_shrink_to_let_a_rigid_one_start() -> None:
    """A rigid job in the queue starts as soon as the elastic ones' minima leave room for it."""
    rows = [job("a", 0, 1, 1e6), TraceJob("r", 10.0, "unknown", 6, duration_s=20.0)]
    result = outcome(rows)
    assert result.jobs[1].start_s == 10.0
    assert held_at_most(result) <= 8


def test_a_small_job_starts_behind_one_that_nobody_can_make_room_for() -> None:
    """Eight GPUs are not to be had beside a rigid job; the two behind them are, at the next decision."""
    rigid = [TraceJob(str(i), i, "unknown", gpus, duration_s=100.0) for i, gpus in enumerate((4, 8, 2))]
    result = outcome(rigid, settings=replace(QUIET, interval_s=60.0))
    assert [j.start_s for j in result.jobs] == [0.0, 160.0, 60.0]


def test_the_same_seed_gives_the_same_run() -> None:
    """Learning from noisy reports is reproducible, and another seed gives another run."""
    rows = trace_of(30)
    settings = SimulationSettings(gpus=16, pause_s=5.0, learned=True)
    one, again = outcome(rows, "log-goodput", settings), outcome(rows, "log-goodput", settings)
    other = outcome(rows, "log-goodput", replace(settings, seed=1))
    assert one.changes == again.changes
    assert one.changes != other.changes


def test_a_decision_due_later_does_not_hold_up_an_arrival() -> None:
    """While the end of somebody's cooldown is waited for, a job that comes is started at once."""
    rows = [job("a", 0, 1, 1e6), job("b", 1.0, 1, 1e6), job("c", 5.0, 1, 1000)]
    result = outcome(rows, "log-throughput", replace(QUIET, gpus=8, cooldown_s=3000.0))
    assert [one.start_s for one in result.jobs] == [0.0, 1.0, 5.0]


def test_a_watcher_is_told_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that have ended and jobs that were dropped count as done; what is told never goes back."""
    monkeypatch.setattr(engine, "WATCHED_EVENTS", 1)
    rows = [job("a", 0, 8, 800, min_gpus=8), job("b", 0, 8, 800, min_gpus=8), job("c", 100, 8, 800, min_gpus=8)]
    told = list[tuple[int, int]]()
    simulate(rows, {"linear": LINEAR}, "auto", replace(QUIET, drop=True), watch=lambda *far: told.append(far))
    assert told == sorted(told) and told[-1] == (3, 3) and any(done == 2 for done, _ in told)


def test_what_a_large_batch_is_worth_is_looked_at_between_events() -> None:
    """Curves known, one job, no event: it has more GPUs a minute or two after its noise scale has risen."""
    program = Program("p", LINEAR.law, 64, 512, (64, 64), 1e6, lambda done, batch: 1.0 if done < 0.1 else 1e9, 10)
    rows = [TraceJob("a", 0.0, "p", 1, 64, min_gpus=1)]
    result = simulate(rows, {"p": program}, "auto", QUIET)[0]
    risen_at = 0.1 * 1e6 / 100.0
    grown_at = next(at for at, _, gpus, _ in result.changes if gpus == 8)
    assert risen_at <= grown_at <= risen_at + 120.0


def test_nothing_is_decided_where_nothing_changes_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two long trainings alone are looked at, and decided on only when one counts for more than before; jobs that come
    and go end as soon, in the mean, as with a decision each minute."""
    alone = [job("a", 0, 4, 3e7), job("b", 0, 4, 3e7)]
    settings = SimulationSettings(gpus=8, pause_s=5.0)
    rare = outcome(alone, "auto", settings)
    assert rare.end_s > 30_000 and rare.decisions < 30
    rows = [replace(row, submit_s=20 * row.submit_s, duration_s=20 * row.duration_s) for row in trace_of(30)]
    few = outcome(rows, "auto", replace(settings, gpus=16))
    monkeypatch.setattr(replay, "LOOK_S", 60.0)
    monkeypatch.setattr(replay, "MOST_LOOK_S", 60.0)
    monkeypatch.setattr(replay.Elastic, "_as_before", lambda self: False)
    often = outcome(rows, "auto", replace(settings, gpus=16))
    assert few.decisions < often.decisions / 3
    assert summary(few).mean_s < 1.04 * summary(often).mean_s
