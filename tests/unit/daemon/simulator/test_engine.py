"""The simulation: time and GPUs are accounted for exactly, costs are charged, and what it says is reproducible."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from slurm_elastic.daemon.optimizer.policies import POLICIES
from slurm_elastic.daemon.simulator.engine import Outcome
from slurm_elastic.daemon.simulator.jobs import SimulationSettings
from slurm_elastic.daemon.simulator.metrics import per_job, quantile, summary, table
from slurm_elastic.daemon.simulator.nodes import NodeAllocations
from slurm_elastic.daemon.simulator.page import means, page
from slurm_elastic.daemon.simulator.programs import BatchLadder, Program, builtin, size_ladder
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


@pytest.mark.parametrize("policy", [*sorted(POLICIES), "feedback", "evolution", "backfill"])
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


def test_a_cooldown_that_rounds_does_not_stop_time() -> None:
    """With odd times, cooldowns and waiting grows the simulation ends, with a decision per cause and not a loop."""
    rows = [replace(r, submit_s=r.submit_s + 1 / 3) for r in trace_of(40)]
    settings = replace(QUIET, gpus=16, pause_s=5.0, grow_wait_s=20.1, cooldown_s=120.3)
    for wait in (20.1, 200.7):  # shorter and longer than the cooldown
        result = outcome(rows, settings=replace(settings, grow_wait_s=wait))
        assert all(one.end_s > 0 for one in result.jobs)
        moved = sum(one.moves for one in result.jobs)
        assert result.decisions <= 2 * len(rows) + 2 * moved


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
    settings = SimulationSettings(gpus=32, pause_s=60.0, horizon_s=600.0, interval_s=30.0)
    priced, free = (summary(outcome(rows, "throughput", replace(settings, price_moves=x))) for x in (True, False))
    assert priced.restarts < free.restarts


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


def test_figures_of_known_numbers() -> None:
    """Quantiles interpolate, an empty sequence has none, and the table prints n/a instead of inventing a number."""
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert math.isnan(quantile([], 0.5))
    rows = [job("a", 0, 8, 800, min_gpus=8)]
    nothing = outcome(rows, settings=replace(QUIET, drop=True))
    assert "n/a" in table([summary(replace(nothing, jobs=[]))])


def test_curves_of_the_page_are_means() -> None:
    """Of a step function over equal stretches, with what comes before its first point and after its end as nothing."""
    assert means([(1.0, 4.0), (2.5, 8.0), (3.0, 0.0)], 4.0, 4) == [0.0, 4.0, 6.0, 0.0]
    assert means([(0.0, 2.0)], 4.0, 2) == [2.0, 2.0] and means([], 4.0, 2) == [0.0, 0.0]


def test_the_page_is_self_contained_and_escaped() -> None:
    """The page holds every figure, no script and no link, and an evil job id does no harm."""
    rows = [job("<script>alert(1)</script>", 0), job("b", 1)]
    result = outcome(rows)
    text = page([result], [summary(result)], ["assumed <b>"])
    assert "<script" not in text and not re.search(r"https?://(?!www\.w3\.org)", text)
    ElementTree.fromstring(text)
    assert "&lt;script&gt;" in text and "assumed &lt;b&gt;" in text
    assert len(per_job(result)) == 2


# --- where jobs sit -----------------------------------------------------------------------------------------------


def test_gpus_are_never_held_twice() -> None:
    """Over three thousand random starts, growths, shrinks and ends, the books balance on every node."""
    rng, nodes = random.Random(7), NodeAllocations(30, 8)  # the last node has six
    rooms = [8, 8, 8, 6]
    sizes, refused = dict[int, int](), 0
    for turn in range(3000):
        kind, want = rng.random(), rng.randint(1, 12)
        if kind < 0.4:
            before = {job: dict(own) for job, own in nodes.held.items()}
            if nodes.start(turn, want):
                sizes[turn] = want
                pieces = sorted(nodes.held[turn].values(), reverse=True)
                assert pieces == [8] * (want // 8) + [want % 8] * (want % 8 > 0)
            else:
                assert nodes.held == before
                refused += 1
        elif sizes:
            job, node = rng.choice(sorted(sizes)), rng.randrange(4)
            own = nodes.held[job].get(node, 0)
            if kind < 0.6 and want <= nodes.free[node]:
                nodes.take(job, node, want)
                sizes[job] += want
            elif kind < 0.8 and want <= own and want < sizes[job]:
                nodes.give(job, node, want)
                sizes[job] -= want
            else:
                nodes.leave(job)
                del sizes[job]
        assert {job: sum(own.values()) for job, own in nodes.held.items()} == sizes
        used = [sum(own.get(node, 0) for own in nodes.held.values()) for node in range(4)]
        assert [room - u for room, u in zip(rooms, used, strict=True)] == nodes.free
        assert nodes.idle == sum(nodes.free)
    assert refused
    with pytest.raises(ValueError, match="free GPUs"):
        nodes.take(1, 0, 9)


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


def test_a_batch_that_no_size_shares_out_evenly_is_rounded_up() -> None:
    """A trace with three GPUs and a batch of 64 runs, at 66."""
    rows = [job("a", 0.0, 3, 660.0, min_gpus=3, max_gpus=3)]
    assert outcome(rows).jobs[0].end_s == pytest.approx(660.0 / 300.0)


def test_a_decision_due_later_does_not_hold_up_an_arrival() -> None:
    """While the end of somebody's cooldown is waited for, a job that comes is started at once."""
    rows = [job("a", 0, 1, 1e6), job("b", 1.0, 1, 1e6), job("c", 5.0, 1, 1000)]
    result = outcome(rows, "log-throughput", replace(QUIET, gpus=8, cooldown_s=3000.0))
    assert [one.start_s for one in result.jobs] == [0.0, 1.0, 5.0]


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


def test_multilevel_feedback_serves_the_least_served_first() -> None:
    """A short job passes one that has had its share; that one keeps its progress and pays a pause to go on."""
    settings = replace(QUIET, pause_s=10.0)
    long, short = job("long", 0, 8, 8e6), job("short", 8000, 8, 80_000)
    result = outcome([long, short], "feedback", settings)
    first, second = result.jobs
    assert second.start_s == 8000.0 and second.end_s == 8100.0 and second.moves == 0
    assert first.moves == 1 and math.isclose(first.end_s, 10_000 + 100.0 + 10.0)
    assert outcome([long, short], "static", settings).jobs[1].start_s == pytest.approx(10_000.0)


def test_spread_jobs_do_not_chase_a_compactness_that_no_resize_brings() -> None:
    """With a decision at every event jobs that growth has spread over nodes are not moved to and fro for it."""
    result = outcome(trace_of(150, spacing=12.0), "auto", SimulationSettings(gpus=64, gpus_per_node=8, interval_s=0.0))
    row = summary(result)
    assert row.spread > 0.0 and row.restarts < 4.0
