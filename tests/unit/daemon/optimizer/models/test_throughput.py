"""Throughput models: right where measured, sane with one report, never negative, and their algebra is correct."""

from __future__ import annotations

import math
import random
from dataclasses import asdict, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_elastic.daemon.optimizer.errors import PlanInputError
from slurm_elastic.daemon.optimizer.models import observation
from slurm_elastic.daemon.optimizer.models.learning import learn
from slurm_elastic.daemon.optimizer.models.observation import Observation
from slurm_elastic.daemon.optimizer.models.prior import ASSUMED, DEFAULT, Prior, from_plain
from slurm_elastic.daemon.optimizer.models.step_time import (
    factor_array,
    log_step_time,
    parameter_array,
    parameters,
    step_time,
)
from slurm_elastic.daemon.optimizer.models.throughput import ThroughputModel, fit, fit_each, fit_many
from slurm_elastic.protocol import codec, messages

TRUTH = (-1.4, -0.3, -2.5, -5.0, -0.8, -4.0, -1.0)


def true_time(gpus: int, nodes: int, micro: int, accumulation: int = 1) -> float:
    """Step time in s of a made-up program with the form's own law: 0.4 s at micro batch 64."""
    return 0.4 * step_time(parameters(TRUTH), gpus, nodes, micro / 64, accumulation)


def observe(gpus: int, nodes: int, micro: int, accumulation: int = 1, noise: float = 0.0) -> Observation:
    """A report of that program, `noise` as a factor - 1."""
    time = true_time(gpus, nodes, micro, accumulation) * (1 + noise)
    return Observation(gpus, nodes, gpus * micro * accumulation, micro, accumulation, time)


def test_a_report_within_the_bounds_of_the_wire_is_one_that_a_model_takes() -> None:
    """Otherwise a report that was accepted keeps its job without a model."""
    kinds = codec.form(messages.Report)
    seconds = kinds["step_time_median_s"][1]
    assert (seconds.low, seconds.high) == observation.STEP_S
    assert {kinds[name][1].high for name in ("gpus", "nodes", "batch", "micro_batch", "accumulation")} == {
        observation.MOST
    }


def random_observations(rng: random.Random) -> list[Observation]:
    """Anything a cluster might report, consistent or not."""
    rows = []
    for _ in range(rng.randint(1, 8)):
        gpus, accumulation, micro = rng.randint(1, 256), rng.randint(1, 16), rng.randint(1, 512)
        nodes, seconds, weight = rng.randint(1, gpus), 10 ** rng.uniform(-4, 3), rng.uniform(0.1, 50)
        rows.append(Observation(gpus, nodes, gpus * micro * accumulation, micro, accumulation, seconds, weight))
    return rows


def doubt(model: ThroughputModel, gpus: int, nodes: int | None = None) -> float:
    """Relative 1-sigma at one size, by default as densely placed as was seen."""
    return model.uncertainties([(gpus, nodes or -(-gpus // model.gpus_per_node))])[0]


def test_gradient_is_the_derivative() -> None:
    """The form's analytic gradient equals central differences at a thousand random points."""
    rng = random.Random(1)
    for _ in range(1000):
        theta = [rng.uniform(-5, 1) for _ in range(7)]
        place = (rng.choice([1, 2, 3, 8, 64]), rng.choice([1, 2, 8]), rng.uniform(0.1, 8), float(rng.randint(1, 4)))
        time, gradient = log_step_time(parameter_array(theta), factor_array(*place[:3]), place[3])
        assert math.isclose(time, math.log(step_time(parameters(theta), *place)), rel_tol=1e-12, abs_tol=1e-12)
        for i in range(7):
            up, down = list(theta), list(theta)
            up[i] += 1e-5
            down[i] -= 1e-5
            slope = (math.log(step_time(parameters(up), *place)) - math.log(step_time(parameters(down), *place))) / 2e-5
            assert math.isclose(gradient[i], slope, rel_tol=1e-4, abs_tol=1e-7), (theta, place, i)


def test_one_report_is_reproduced() -> None:
    """One report comes back to 3 %, and the model says that it knows one size."""
    model = fit([observe(2, 1, 64)])
    assert math.isclose(model.step_time(2, 1, 128), true_time(2, 1, 64), rel_tol=0.03)
    assert model.sizes_seen == (2,) and model.seen == ((2, 1, 1.0),)


def test_with_one_size_efficiency_falls_with_size() -> None:
    """Before a second size no curve is linear: gains per GPU shrink strictly, so ties go to an even spread."""
    model = fit([observe(1, 1, 64)])
    per_gpu = [model.throughput(k, 1, 64 * k) / k for k in (1, 2, 4, 8, 16, 32)]
    assert all(a > b * 1.00001 for a, b in pairwise(per_gpu))


def test_models_fitted_together_are_those_fitted_alone() -> None:
    """Two hundred random jobs fitted at once and one by one predict the same, and know it as well."""
    rng = random.Random(6)
    jobs = [random_observations(rng) for _ in range(200)]
    for one, many in zip([fit(rows) for rows in jobs], fit_many(jobs), strict=True):
        for gpus, nodes in ((1, 1), (4, 1), (16, 4)):
            assert math.isclose(one.step_time(gpus, nodes, 512), many.step_time(gpus, nodes, 512), rel_tol=1e-3)
        assert math.isclose(doubt(one, 8), doubt(many, 8), rel_tol=1e-2, abs_tol=1e-4)
    assert fit_many([]) == []


def test_enough_reports_recover_the_law() -> None:
    """With thirty exact reports of every class, unseen ones are predicted to 4 %, twice as many GPUs to 10 %."""
    places = [(1, 1), (2, 1), (4, 1), (4, 2), (8, 2), (16, 4)]
    model = fit([observe(k, n, m) for k, n in places for m in (16, 32, 64, 128, 256)], ASSUMED)
    for gpus, nodes, micro, most in [(3, 1, 48, 0.04), (12, 3, 96, 0.04), (6, 2, 200, 0.04), (32, 8, 64, 0.1)]:
        predicted = model.step_time(gpus, nodes, gpus * micro)
        assert math.isclose(predicted, true_time(gpus, nodes, micro), rel_tol=most), (gpus, nodes, micro)


def test_noisy_reports_do_not_move_the_prediction_much() -> None:
    """Reports with 5 % noise give predictions within 12 % inside the measured range."""
    rng = random.Random(3)
    places = [(1, 1, 64), (2, 1, 64), (4, 1, 64), (8, 2, 64), (4, 1, 128), (1, 1, 128)]
    for _ in range(20):
        model = fit([observe(*p, noise=rng.gauss(0, 0.05)) for p in places])
        for gpus, nodes, micro in [(2, 1, 128), (8, 2, 128), (3, 1, 64)]:
            assert abs(model.step_time(gpus, nodes, gpus * micro) / true_time(gpus, nodes, micro) - 1) < 0.2


@pytest.mark.parametrize("seed", range(8))
def test_anything_reported_gives_positive_finite_predictions(seed: int) -> None:
    """However contradictory the reports, predictions stay positive and finite from 1 to 4096 GPUs."""
    rng = random.Random(seed)
    for _ in range(25):
        model = fit(random_observations(rng))
        for gpus in (1, 2, 3, 7, 64, 4096):
            for nodes in {1, min(2, gpus), max(1, gpus // 8)}:
                for batch in (1, gpus, gpus * 1000):
                    time = model.step_time(gpus, nodes, batch)
                    assert 0 < time < float("inf")
            assert 0 <= doubt(model, gpus) < float("inf")


@pytest.mark.parametrize("seed", range(4))
def test_by_the_form_a_larger_batch_takes_longer_and_never_trains_fewer_samples_per_second(seed: int) -> None:
    """At a fixed size without accumulation step time and throughput rise with the batch, whatever was reported."""
    rng = random.Random(seed)
    for _ in range(25):
        own, gpus = fit([replace(o, accumulation=1) for o in random_observations(rng)]).parameters, rng.randint(1, 64)
        micros = (0.1, 0.5, 1.0, 4.0, 16.0)
        times = [step_time(own, gpus, 1, micro, 1) for micro in micros]
        assert times == sorted(times)
        speeds = [micro / time for micro, time in zip(micros, times, strict=True)]
        assert all(a <= b * (1 + 1e-12) for a, b in pairwise(speeds))


@pytest.mark.parametrize("seed", range(4))
def test_by_the_form_more_gpus_of_the_same_kind_of_place_never_shorten_a_step(seed: int) -> None:
    """At a fixed micro batch, whatever was reported, a step takes as long or longer with more GPUs of a node, with more
    GPUs of several nodes, and with more micro batches."""
    rng = random.Random(seed)
    for _ in range(25):
        own, micro = fit(random_observations(rng)).parameters, rng.uniform(0.1, 10)
        for nodes, sizes in ((1, (1, 2, 3, 5, 8)), (2, (2, 3, 8, 64, 1024))):
            times = [step_time(own, k, nodes, micro, 1) for k in sizes]
            assert all(a <= b * (1 + 1e-12) for a, b in pairwise(times))
        once, twice, four = (step_time(own, 8, 2, micro, n) for n in (1, 2, 4))
        assert once < twice < four


@pytest.mark.parametrize("accumulation", [1, 4])
def test_one_report_with_its_communication_tells_what_one_gpu_does(accumulation: int) -> None:
    """From 8 GPUs on 2 nodes alone, a step of one GPU is known, and that costs the others next to nothing."""
    seen = observe(8, 2, 64, accumulation)
    alone = true_time(1, 1, 64, accumulation)
    told = fit([replace(seen, comm_share=1 - alone / seen.step_time_s)])
    untold = fit([seen])
    for places, better in (([(1, 1)], 4), ([(1, 1), (2, 1), (4, 1), (2, 2), (16, 4), (32, 8)], 0.9)):
        errors = [
            sum(
                abs(math.log(model.step_time(k, n, 64 * accumulation * k) / true_time(k, n, 64, accumulation)))
                for k, n in places
            )
            for model in (told, untold)
        ]
        assert better * errors[0] < errors[1]
    assert told.step_time(1, 1, 64 * accumulation) == pytest.approx(alone, rel=0.05)


def test_a_step_of_one_gpu_outweighs_the_share_of_communication() -> None:
    """At a micro batch that one GPU was measured at, the share changes nothing; on one GPU it means nothing."""
    rows = [observe(1, 1, 64), observe(8, 2, 64)]
    assert fit([rows[0], replace(rows[1], comm_share=0.4)]).theta == fit(rows).theta
    assert fit([replace(rows[0], comm_share=0.4)]).theta == fit(rows[:1]).theta
    other = observe(8, 2, 16)
    assert fit([rows[0], replace(other, comm_share=0.4)]).theta != fit([rows[0], other]).theta


def test_accumulation_costs_compute_but_not_synchronisation() -> None:
    """Four micro batches with one all-reduce take less than four steps and more than three computes."""
    model = fit([observe(8, 2, 64), observe(8, 2, 64, 4), observe(4, 1, 64)])
    once, four = model.step_time(8, 2, 512), model.step_time(8, 2, 2048)
    assert 3 * model.step_time(1, 1, 64) < four < 4 * once


def test_a_job_that_accumulates_goes_on_to() -> None:
    """Where every report accumulated, a doubled batch doubles the micro batches instead of outgrowing the GPU."""
    model = fit([observe(2, 1, 32, 4), observe(4, 1, 32, 2)])
    assert model.micro_limit == 32
    assert model.step_time(4, 1, 4 * 32 * 8) > 3.5 * model.step_time(4, 1, 4 * 32 * 2)


def test_uncertainty_is_smallest_where_measured() -> None:
    """What was measured is known better than its neighbours, and several nodes least of all before one was seen."""
    model = fit([observe(1, 1, 64), observe(4, 1, 64)])
    assert doubt(model, 4) < doubt(model, 3) < doubt(model, 16)
    after = fit([observe(1, 1, 64), observe(4, 1, 64), observe(8, 2, 64)])
    assert doubt(after, 16) < doubt(model, 16)


PLACES = [(1, 1), (2, 1), (4, 1), (8, 2), (16, 4)]


def run_of(theta: list[float], scale_s: float = 0.4, places: list[tuple[int, int]] | None = None) -> list[Observation]:
    """What a job with this law reports, at two micro batches."""
    return [
        Observation(k, n, k * m, m, 1, scale_s * step_time(parameters(theta), k, n, m / 64, 1))
        for k, n in places or PLACES
        for m in (32, 128)
    ]


CHATTY = [-1.4, -0.3, -1.0, -3.0, 0.8, -2.0, -3.0]
"""A program that waits for its network as nobody would assume."""


def error_at_sixteen(reports: list[Observation], prior: Prior) -> float:
    """By how much (a logarithm) the chatty program is mispredicted at 16 GPUs on 4 nodes."""
    return abs(
        math.log(fit(reports, prior).step_time(16, 4, 16 * 64) / (0.4 * step_time(parameters(CHATTY), 16, 4, 1.0, 1)))
    )


def test_a_learned_prior_helps_where_little_was_measured() -> None:
    """A prior learned from similar programs predicts several nodes from one better than the assumed one."""
    rng = random.Random(4)
    similar = [run_of([t + rng.gauss(0, 0.1) for t in CHATTY]) for _ in range(6)]
    one_gpu = [o for o in run_of(CHATTY) if o.gpus == 1][:1]
    learned, assumed = (error_at_sixteen(one_gpu, prior) for prior in (learn(similar, counts=1.0), ASSUMED))
    assert learned < assumed / 2


def test_a_longer_history_of_the_same_program_is_believed_more() -> None:
    """From one run to twenty, a single report predicts sixteen GPUs on four nodes ever better, at last to 22 %."""
    one_gpu = [o for o in run_of(CHATTY) if o.gpus == 1][:1]
    errors = [error_at_sixteen(one_gpu, learn([run_of(CHATTY)] * count, counts=1.0)) for count in (1, 5, 20)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.22, errors


def test_runs_of_one_size_say_nothing_of_several_nodes() -> None:
    """Twenty runs on one GPU leave what is believed of synchronisation, and how little it is known, as it was."""
    prior = learn([run_of(list(TRUTH), places=[(1, 1)])] * 20)
    for i in (2, 3, 4, 5):
        assert math.isclose(prior.mean[i], ASSUMED.mean[i], abs_tol=0.3)
        assert prior.covariance[i][i] > 0.5 * ASSUMED.covariance[i][i]


def test_a_short_step_is_known_to_be_overhead() -> None:
    """Where every fast program was bound by overhead and every slow one by samples, one report tells which it is."""
    fast, slow = [-0.1, -3.0, *TRUTH[2:]], [-3.0, -0.1, *TRUTH[2:]]
    prior = learn([run_of(fast, 0.004 * f) for f in (0.5, 1, 2)] * 4 + [run_of(slow, f) for f in (0.5, 1, 2)] * 4)
    for seconds, least, most in ((0.004, 1.0, 1.4), (1.0, 1.6, 2.1)):
        model = fit([Observation(1, 1, 64, 64, 1, seconds)], prior)
        assert least < model.step_time(1, 1, 128) / model.step_time(1, 1, 64) < most, seconds


@pytest.mark.parametrize("seed", range(3))
def test_anything_can_be_learned_from(seed: int) -> None:
    """Contradictory runs give a prior that can be stored, read back, and fitted under with sane predictions."""
    rng = random.Random(seed)
    prior = learn([random_observations(rng) for _ in range(rng.randint(1, 12))])
    assert from_plain(asdict(prior)) == prior
    for _ in range(10):
        model = fit(random_observations(rng), prior)
        assert all(0 < model.step_time(k, n, k) < float("inf") for k, n in ((1, 1), (8, 1), (512, 64)))


def test_no_run_and_no_weight_are_refused() -> None:
    """A prior of nothing is not made, nor one of runs that weigh nothing."""
    with pytest.raises(PlanInputError, match="at least one run"):
        learn([])
    with pytest.raises(PlanInputError, match="positive weight"):
        learn([run_of(list(TRUTH))], [float("nan")])


@pytest.mark.parametrize(
    "broken",
    [
        {"mean": [0.0]},
        {"mean": None},
        {"noise": float("nan")},
        {"covariance": [[0.0] * 7] * 7},
        {"spread": [0.0, 1.0]},
        {"slope": [[1.0]] * 7},
    ],
)
def test_a_stored_prior_that_is_none_is_refused(broken: dict[str, object]) -> None:
    """What another version or a damaged row holds is not planned with."""
    with pytest.raises(PlanInputError, match="stored prior"):
        from_plain({**asdict(DEFAULT), **broken})


def test_reports_from_several_nodes_are_believed_less_than_those_from_one() -> None:
    """The form is further off between nodes than inside one: the same surprise moves the model less there."""
    base = [observe(1, 1, 64), observe(4, 1, 64), observe(8, 2, 64)]
    for index, (gpus, nodes) in ((1, (4, 1)), (2, (8, 2))):
        rows = [replace(o, step_time_s=o.step_time_s * 1.5) if i == index else o for i, o in enumerate(base)]
        moved = fit(rows).step_time(gpus, nodes, gpus * 64) / fit(base).step_time(gpus, nodes, gpus * 64)
        assert 1.0 < moved < 1.5
    assert Prior(ASSUMED.mean, ASSUMED.covariance).noise < ASSUMED.noise_apart


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step_time_s": float("nan")}, "step time nan s at 2 GPUs"),
        ({"step_time_s": 0.0}, "not a positive number"),
        ({"step_time_s": float("inf")}, "not a positive number"),
        ({"step_time_s": 1e-300}, "step time 1e-300 s at 2 GPUs is not between"),
        ({"batch": 10**30}, r"1e\+30 GPUs, nodes or samples"),
        ({"gpus": 0}, "must be 1 or more"),
        ({"nodes": 3}, "2 GPUs on 3 nodes: each node has at least one of a job's GPUs"),
        ({"micro_batch": 0}, "micro batch 0"),
        ({"weight": -1.0}, "weight -1.0"),
        ({"comm_share": 1.0}, "share 1.0 of communication at 2 GPUs is not between 0 and 0.99"),
        ({"comm_share": float("nan")}, "share nan of communication"),
    ],
)
def test_bad_reports_are_refused_with_the_value(change: dict[str, float], words: str) -> None:
    """A report that cannot be true is refused; the message says which number."""
    row = {"gpus": 2, "nodes": 1, "batch": 128, "micro_batch": 64, "accumulation": 1, "step_time_s": 0.3, **change}
    with pytest.raises(PlanInputError, match=words):
        fit([Observation(**row)])  # type: ignore[arg-type]


COUNTS = st.sampled_from([1, 2, 3, 8, 1000, 10**6, 10**9])
ANYTHING = st.builds(
    Observation, gpus=COUNTS, nodes=COUNTS, batch=COUNTS, micro_batch=COUNTS, accumulation=COUNTS,
    step_time_s=st.one_of(st.sampled_from([1e-6, 1e-3, 1.0, 1e7]), st.floats(1e-6, 1e7)),
    weight=st.sampled_from([5e-324, 1.0, 2.0**60]), comm_share=st.sampled_from([0.0, 1e-9, 0.5, 0.99]),
)  # fmt: skip


@settings(max_examples=200)
@given(
    st.lists(ANYTHING.filter(lambda o: o.nodes <= o.gpus), min_size=1, max_size=6),
    st.sampled_from([DEFAULT, ASSUMED]),
    st.booleans(),
)
def test_whatever_is_accepted_makes_a_model_of_finite_numbers(
    rows: list[Observation], prior: Prior, together: bool
) -> None:
    """However extreme or contradictory: no fit fails, and every prediction is positive and finite."""
    model = fit_many([rows], prior)[0] if together else fit(rows, prior)
    for gpus, nodes, batch in ((1, 1, 1), (2, 1, 256), (64, 8, 10**9), (10**6, 10**5, 1)):
        predicted = model.throughput(gpus, nodes, batch)
        assert math.isfinite(predicted) and predicted > 0 and math.isfinite(doubt(model, gpus, nodes))


def test_a_job_without_a_model_keeps_no_other_from_its_own() -> None:
    """The error stands where the model would; the others' models are those of a fit without that job."""
    good, bad = [observe(1, 1, 8), observe(4, 1, 32)], [Observation(2, 1, 8, 4, 1, 0.0)]
    first, error, last = fit_each([good, bad, good[:1]], [DEFAULT] * 3)
    assert isinstance(error, PlanInputError) and "step time 0.0 s at 2 GPUs" in str(error)
    alone = [fit(good), fit(good[:1])]
    for model, own in zip((first, last), alone, strict=True):
        assert isinstance(model, ThroughputModel)
        assert model.step_time(8, 2, 64) == pytest.approx(own.step_time(8, 2, 64), rel=1e-3)


def test_no_reports_are_refused() -> None:
    """A model of nothing is not made."""
    with pytest.raises(PlanInputError, match="at least one"):
        fit([])
    model: ThroughputModel = fit([observe(1, 1, 8)])
    with pytest.raises(PlanInputError, match="1 GPUs on 2 nodes"):
        model.step_time(1, 2, 8)
    with pytest.raises(PlanInputError, match="1 or more"):
        model.step_time(0, 1, 8)
