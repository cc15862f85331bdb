"""A step that waits for its input: the wait is told from compute and communication, and predicted elsewhere."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_elastic.daemon.optimizer.models.observation import AHEAD, AT_ONCE, LEAST, NONE, Input, Observation, input_of
from slurm_elastic.daemon.optimizer.models.step_time import of_points, together
from slurm_elastic.daemon.optimizer.models.throughput import fit, fit_many, throughputs_of

TAU = 0.01
"""What a loader takes for a sample, in s."""


def busy_s(gpus: int, nodes: int, micro: int) -> float:
    """A step without its wait: 2 ms a sample, and communication."""
    return 0.02 + 0.002 * micro + 0.01 * (gpus > 1) * (1 + nodes)


def report(gpus: int, nodes: int = 1, micro: int = 32, tau: float = TAU, ahead: bool = True) -> Observation:
    """Of a job whose loaders take `tau` for a sample."""
    busy, needed = busy_s(gpus, nodes, micro), tau * micro
    step = max(busy, needed) if ahead else busy + needed
    comm = (busy - busy_s(1, 1, micro)) / step
    return Observation(gpus, nodes, gpus * micro, micro, 1, step, 8.0, comm, 1 - busy / step)


def test_one_report_tells_what_the_loader_takes_and_what_the_gpus_do() -> None:
    """A larger micro batch waits as much longer, a smaller one less, and the same on more GPUs with loaders of their
    own waits as before: without the share compute would be taken for five times what it is."""
    model = fit([report(1)])
    assert model.fed.seconds == pytest.approx(TAU, rel=0.03) and model.fed.power == AHEAD
    for gpus, nodes, micro in ((1, 1, 32), (1, 1, 128), (4, 1, 32), (2, 1, 64)):
        truth = report(gpus, nodes, micro)
        assert model.step_time(gpus, nodes, gpus * micro) == pytest.approx(truth.step_time_s, rel=0.05)
        assert model.input_share(gpus, nodes, gpus * micro) == pytest.approx(truth.input_share, abs=0.12)
    blind = fit([replace(report(1), input_share=0.0)])
    assert blind.step_time(8, 2, 8 * 4) > model.step_time(8, 2, 8 * 4)


def test_what_was_measured_is_predicted_as_measured_with_the_wait() -> None:
    """Sizes that wait and a micro batch that does not: each is what its reports said."""
    rows = [report(1), report(2), report(4, tau=TAU * 1.06), report(8, 2), replace(report(2, micro=8, tau=TAU / 20))]
    model = fit(rows)
    for seen in rows:
        assert model.step_time(seen.gpus, seen.nodes, seen.batch) == pytest.approx(seen.step_time_s, rel=0.05)
    assert model.uncertainties([(4, 1)])[0] < 0.035


def test_without_a_wait_there_is_no_term() -> None:
    """Nor for the little that every loader makes a step wait: the models are those of before."""
    rows = [replace(report(gpus, tau=TAU / 100), input_share=LEAST / 2) for gpus in (1, 2, 4)]
    model, before = fit(rows), fit([replace(row, input_share=0.0) for row in rows])
    assert model.fed == NONE and model.theta == before.theta
    assert model.input_share(4, 1, 128) == 0.0


def test_a_loader_that_reads_nothing_ahead_adds_to_each_step() -> None:
    """Reports of several micro batches tell it from one that reads ahead; one report does not, and loaders do."""
    micros = (8, 32, 128)
    assert input_of([report(1, micro=m, tau=0.002, ahead=False) for m in micros]).power == AT_ONCE
    assert input_of([report(1, micro=m) for m in micros]).power == AHEAD
    assert input_of([report(1, ahead=False)]).power == AHEAD
    model = fit([report(1, micro=m, tau=0.002, ahead=False) for m in micros])
    truth = report(1, micro=64, tau=0.002, ahead=False)
    assert model.step_time(1, 1, 64) == pytest.approx(truth.step_time_s, rel=0.05)


def test_a_wait_that_grows_with_the_size_is_left_to_form_and_residual() -> None:
    """GPUs that share a node's CPUs: one did not wait, so no loader is taken to be as slow as it is for four."""
    rows = [report(1, tau=0.001), report(2, tau=0.003), report(4, tau=0.006)]
    model = fit(rows)
    assert model.fed.seconds < 0.0028
    for seen in rows:
        assert model.step_time(seen.gpus, 1, seen.batch) == pytest.approx(seen.step_time_s, rel=0.06)
    assert model.step_time(8, 1, 8 * 32) > 1.2 * rows[-1].step_time_s


def test_waits_of_one_job_change_nothing_for_others_fitted_and_asked_with_it() -> None:
    """To the last bit: who is asked with whom must not turn a plan."""
    dry, wet = [report(1, tau=0), report(4, tau=0)], [report(1), report(4)]
    alone, (kept, waits) = fit(dry), fit_many([dry, wet])
    points = [(gpus, -(-gpus // 4), gpus * 48) for gpus in (1, 2, 3, 4, 8, 16)]
    assert kept.throughputs(points) == fit_many([dry, dry])[0].throughputs(points)
    at = of_points(points)
    both = throughputs_of([kept, waits], together([at, at]))[0].tolist()
    assert both[:6] == kept.throughputs(points) and both[6:] == waits.throughputs(points)
    one_by_one = [batch / waits.step_time(gpus, nodes, batch) for gpus, nodes, batch in points]
    assert one_by_one == pytest.approx(waits.throughputs(points), rel=1e-9)
    assert alone.step_time(8, 2, 384) == pytest.approx(kept.step_time(8, 2, 384), rel=1e-3)


SHARES = st.sampled_from([0.0, 1e-9, 0.02, 0.05, 0.5, 0.98, 0.99])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 8, 1000]), st.sampled_from([1, 64, 10**5]), st.sampled_from([1, 4]),
                  st.sampled_from([1e-6, 0.3, 1e7]), SHARES, SHARES, st.sampled_from([0.01, 1.0, 64.0])),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_any_wait_gives_positive_finite_predictions(
    rows: list[tuple[int, int, int, float, float, float, float]],
) -> None:
    """Shares that contradict each other, too: together they may be more than the step."""
    model = fit([
        Observation(k, 1, k * m * a, m, a, seconds, weight, comm, wait) for k, m, a, seconds, comm, wait, weight in rows
    ])  # fmt: skip
    for gpus, nodes, batch in ((1, 1, 1), (4, 1, 10**6), (64, 16, 4096)):
        step, share = model.step_time(gpus, nodes, batch), model.input_share(gpus, nodes, batch)
        assert 0 < step < math.inf and 0 <= share <= 1
        assert np.isfinite(model.throughputs([(gpus, nodes, batch)])[0])
        assert math.isfinite(model.sigmas([(gpus, nodes, batch)])[0])


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_a_step_is_never_shorter_than_either_of_its_parts(busy: float, needed: float) -> None:
    """Nor longer than one after the other."""
    for power in (AHEAD, AT_ONCE):
        step = Input(needed, power).step_s(busy, 1)
        assert max(busy, needed) * (1 - 1e-12) <= step <= (busy + needed) * (1 + 1e-12)
