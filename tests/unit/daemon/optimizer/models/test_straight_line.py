"""Form and straight line together: each has as large a share as it predicted the job's own reports."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from slurm_elastic.daemon.optimizer.models import straight_line
from slurm_elastic.daemon.optimizer.models.fit import columns_of
from slurm_elastic.daemon.optimizer.models.observation import Observation
from slurm_elastic.daemon.optimizer.models.prior import ASSUMED
from slurm_elastic.daemon.optimizer.models.step_time import parameters, step_time
from slurm_elastic.daemon.optimizer.models.throughput import fit, fit_many

PLACES = ((1, 1), (2, 1), (4, 1), (8, 2), (16, 4), (1, 1), (4, 1), (8, 2))
MICROS = (32, 32, 32, 32, 32, 128, 8, 128)


def reports(law: object, count: int = len(PLACES)) -> list[Observation]:
    """Of a job whose step time is law(GPUs, nodes, micro batch)."""
    assert callable(law)
    places = list(zip(PLACES, MICROS, strict=True))[:count]
    return [Observation(k, n, k * m, m, 1, law(k, n, m), 4.0) for (k, n), m in places]


def slow_start(k: int, n: int, m: int) -> float:
    """No form has it: time falls with the micro batch's root, and does not change with the GPUs."""
    return 0.1 * math.sqrt(m / 32)


def by_form(k: int, n: int, m: int) -> float:
    """A program as the prior expects it."""
    return 0.1 * float(step_time(parameters(ASSUMED.mean), k, n, m / 32, 1.0))


def test_what_predicted_the_reports_better_has_the_larger_share() -> None:
    """A program of straight lines is predicted by the line, one of the form by the form; the model says which."""
    line, form = fit(reports(slow_start), ASSUMED), fit(reports(by_form), ASSUMED)
    assert line.form == "straight line" and line.line_share > 0.9
    assert form.form == "step time" and form.line_share < 0.1
    far = 64, 16, 64 * 128
    assert line.step_time(*far) == pytest.approx(slow_start(64, 16, 128), rel=0.15)
    assert form.step_time(*far) == pytest.approx(by_form(64, 16, 128), rel=0.15)


def test_one_report_says_nothing_about_which_is_right() -> None:
    """One GPU's report lies on both: the shares are those of before."""
    for law in (slow_start, by_form):
        assert fit(reports(law, 1), ASSUMED).line_share == pytest.approx(ASSUMED.line_share, abs=0.05)


def test_the_line_is_the_exact_posterior_of_a_linear_model() -> None:
    """Against the textbook's formulas with dense matrices: the line, and the evidence given the first report."""
    rng, draw = random.Random(4), np.random.default_rng(4)
    jobs = [
        [(k, n, m / 32, rng.choice([1, 4]), draw.normal(), rng.uniform(1, 100)) for (k, n), m in
         zip(PLACES[:count], MICROS, strict=False)] for count in (1, 3, 8)
    ]  # fmt: skip
    lines, evidence = straight_line.fit(columns_of(jobs))
    spread, mean = np.diag(np.square(straight_line.SPREAD)), np.array(straight_line.MEAN)
    for points, line, found in zip(jobs, lines, evidence, strict=True):
        gpus, nodes, micro, steps, seen, weight = np.array(points).T
        at = straight_line.terms(gpus, nodes, micro).T
        off, noise = seen - np.log(steps) - at @ mean, np.diag(1 / weight)
        whole = at @ spread @ at.T + noise
        assert line == pytest.approx(mean + spread @ at.T @ np.linalg.solve(whole, off))

        def density(count: int, whole: np.ndarray = whole, off: np.ndarray = off) -> float:
            part, rest = whole[:count, :count], off[:count]
            return float(-(rest @ np.linalg.solve(part, rest) + np.linalg.slogdet(part)[1]) / 2)

        left_out = np.log(weight[1:]).sum() / 2  # of the noise: the same for the form
        assert found == pytest.approx(density(len(points)) - density(1) - left_out, abs=1e-6)


def test_where_form_and_line_disagree_the_uncertainty_is_wide() -> None:
    """What both say is surer than what one of them says: at two nodes never measured the gap of the two is in it."""
    model = fit(reports(slow_start, 3))
    parted = replace(model, line=(*model.line[:3], model.line[3] + 2.0))
    assert model.uncertainties([(2, 1)]) == parted.uncertainties([(2, 1)])
    assert parted.uncertainties([(16, 4)])[0] > model.uncertainties([(16, 4)])[0] + 0.2


def test_predictions_stay_positive_and_finite_whatever_a_line_says() -> None:
    """Reports a hundred days and a microsecond apart make lines as steep as cliffs; far out they are cut."""
    rng = random.Random(3)
    ends = [1e-6, 1e7]
    jobs = [[Observation(1, 1, m, m, 1, rng.choice(ends), 100.0) for m in (1, 2, 3, 4)] for _ in range(50)]
    for model in fit_many(jobs):
        for point in ((1, 1, 1), (10**9, 10**9, 10**9), (64, 16, 10**9), (1, 1, 10**9)):
            assert 0 < model.step_time(*point) < math.inf
            assert 0 < model.throughputs([point])[0] < math.inf
            assert math.isfinite(model.sigmas([point])[0])
