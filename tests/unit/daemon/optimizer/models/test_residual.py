"""What was measured is kept as measured: near it the form steps back, far from it nothing of a miss is left."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pytest

from slurm_elastic.daemon.optimizer.models.observation import Observation
from slurm_elastic.daemon.optimizer.models.prior import ASSUMED
from slurm_elastic.daemon.optimizer.models.residual import ACROSS, MOST
from slurm_elastic.daemon.optimizer.models.step_time import of_points, parameters, step_time, together
from slurm_elastic.daemon.optimizer.models.straight_line import log_time
from slurm_elastic.daemon.optimizer.models.throughput import (
    ThroughputModel,
    fit,
    fit_many,
    throughputs_of,
    uncertainties_of,
)


def report(gpus: int, nodes: int, seconds: float, micro: int = 32, weight: float = 8.0) -> Observation:
    """Of a job whose micro batch is given."""
    return Observation(gpus, nodes, gpus * micro, micro, 1, seconds, weight)


IRREGULAR = [report(1, 1, 0.10), report(2, 1, 0.16), report(4, 1, 0.11), report(8, 1, 0.30), report(16, 2, 0.22)]
"""Steps that no form has: four GPUs wait less than two, sixteen on two nodes less than eight on one."""


def at_32(model: ThroughputModel, gpus: int, nodes: int) -> float:
    """Its step time in s at the measured micro batch."""
    return model.step_time(gpus, nodes, 32 * gpus)


def formed(model: ThroughputModel, gpus: int, nodes: int) -> float:
    """The same by form and line, without what was kept."""
    micro, share = 32 / model.micro, model.line_share
    form = math.log(float(step_time(model.parameters, gpus, nodes, micro, 1.0)))
    return model.scale_s * math.exp((1 - share) * form + share * log_time(model.line, gpus, nodes, micro, 1.0))


def test_what_was_measured_is_predicted_as_measured() -> None:
    """Even where no form can have it: an optimizer that knows every size chooses by what was measured."""
    model = fit(IRREGULAR)
    for seen in IRREGULAR:
        assert at_32(model, seen.gpus, seen.nodes) == pytest.approx(seen.step_time_s, rel=0.04)
        assert model.uncertainties([(seen.gpus, seen.nodes)])[0] < 0.035
    assert max(abs(math.log(formed(model, s.gpus, s.nodes) / s.step_time_s)) for s in IRREGULAR) > 0.15


def test_between_two_measured_sizes_the_miss_lies_between_theirs_and_outside_it_fades() -> None:
    """Three GPUs miss something between two and four; beyond the last of a kind each doubling halves what is left."""
    model = fit([report(2, 1, 0.3), report(4, 1, 0.1), report(1, 1, 0.1)])
    missed = {k: math.log(at_32(model, k, 1) / formed(model, k, 1)) for k in (2, 3, 4, 8, 16, 32)}
    assert missed[4] < missed[3] < missed[2]
    assert [missed[2 * k] / missed[k] for k in (8, 16)] == pytest.approx([0.5, 0.5])
    one = fit([report(4, 1, 0.3, weight=100)], ASSUMED).misses
    inside, apart = (math.log(one.factor(8, nodes, 1.0, 1.0)) for nodes in (1, 2))
    assert apart == pytest.approx(ACROSS * inside * ASSUMED.noise_apart / ASSUMED.noise)
    for place in ((8, 1, 2.0, 1.0), (8, 1, 0.5, 1.0), (8, 1, 1.0, 2.0)):
        assert math.log(one.factor(*place)) == pytest.approx(inside / 2)


def test_a_measurement_is_believed_the_more_the_oftener_it_was_made() -> None:
    """One report of a size is off the form and moves it; a hundred are what is predicted."""
    off = []
    for weight in (0.1, 1.0, 100.0):
        model = fit([report(1, 1, 0.1), report(2, 1, 0.11), report(4, 1, 0.2, weight=weight), report(8, 1, 0.13)])
        off.append(abs(math.log(at_32(model, 4, 1) / 0.2)))
    assert all(a > b for a, b in pairwise(off)) and off[-1] < 0.01


def made_up(rng: random.Random) -> list[Observation]:
    """One to six reports, some of several micro batches a step."""
    rows = []
    for gpus in rng.sample([1, 2, 4, 8, 16, 32], rng.randint(1, 6)):
        micro, steps = rng.choice([16, 32, 64]), rng.choice([1, 1, 4])
        nodes, seconds = -(-gpus // 4), rng.uniform(0.05, 2.0)
        rows.append(Observation(gpus, nodes, gpus * micro * steps, micro, steps, seconds, rng.uniform(0.5, 50)))
    return rows


def test_many_models_at_once_predict_what_each_does_alone() -> None:
    """Models with unlike numbers of points, in one call: speeds and uncertainties are those of one at a time."""
    rng = random.Random(5)
    models = fit_many([made_up(rng) for _ in range(40)])
    points = [(k, -(-k // 4), 64 * k * j) for k in (1, 2, 3, 8, 64) for j in (1, 4)]
    speeds = throughputs_of(models, together([of_points(points)] * len(models))).reshape(len(models), -1)
    sizes = np.array([1.0, 2, 8, 64])
    ends = np.arange(0, 4 * len(models) + 1, 4)
    doubts = uncertainties_of(models, np.tile(sizes, 40), np.tile(np.ceil(sizes / 4), 40), ends).reshape(40, -1)
    for model, speed, doubt in zip(models, speeds, doubts, strict=True):
        assert [model.throughput(*point) for point in points] == pytest.approx(speed.tolist(), rel=1e-12)
        alone = model.uncertainties([(int(k), -(-int(k) // 4)) for k in sizes])
        assert alone == pytest.approx(doubt.tolist(), rel=1e-9)
        first = round(model.micro)
        if not model.micro_limit:
            assert alone == pytest.approx(model.sigmas([(int(k), -(-int(k) // 4), int(k) * first) for k in sizes]))


def test_a_speed_is_the_same_to_the_last_bit_whoever_is_asked_with_it() -> None:
    """A round predicts for those that changed, the next for all: what has not changed must not seem to."""
    rng = random.Random(6)
    models = fit_many([made_up(rng) for _ in range(40)])
    each = [
        of_points([(k, -(-k // 4), 64 * k * j) for k in (1, 2, 8) for j in range(1, rng.randint(2, 5))]) for _ in models
    ]
    whole = together(each)
    speeds, doubts = throughputs_of(models, whole), uncertainties_of(models, whole.gpus, whole.nodes, whole.sizes)
    for j, (model, own) in enumerate(zip(models, each, strict=True)):
        there = slice(whole.sizes[j], whole.sizes[j + 1])
        assert throughputs_of([model], own).tolist() == speeds[:, there].tolist()
        assert uncertainties_of([model], own.gpus, own.nodes, own.sizes).tolist() == doubts[there].tolist()


def test_intervals_cover_what_they_claim() -> None:
    """Of programs drawn from the prior, with the misses that it says a form has, 80 % intervals hold 72 to 88 %."""
    rng, draw = random.Random(2), np.random.default_rng(2)
    held, count = 0, 0
    jobs, truths = list[list[Observation]](), list[list[tuple[int, int, int, float]]]()
    for _ in range(150):
        own = parameters(draw.multivariate_normal(ASSUMED.mean, ASSUMED.covariance).tolist())
        places = [(k, n, m) for k, n in ((1, 1), (2, 1), (4, 1), (8, 2), (16, 4), (32, 8)) for m in (16, 32, 64)]
        steps = [
            step_time(own, k, n, m / 32, 1.0) * math.exp(rng.gauss(0, ASSUMED.noise_apart if n > 1 else ASSUMED.noise))
            for k, n, m in places
        ]
        unit = step_time(own, 1, 1, 1.0, 1.0)
        first = rng.sample(range(3, len(places)), 3)
        seen = [places.index((1, 1, 32)), *first]
        jobs.append([report(k, n, steps[i] / unit, m, 1.0) for i in seen for k, n, m in [places[i]]])
        truths.append([(*places[i], steps[i] / unit) for i in range(len(places)) if i not in seen])
    for model, rows in zip(fit_many(jobs, ASSUMED), truths, strict=True):
        sigmas = model.sigmas([(k, n, k * m) for k, n, m, _ in rows])
        for (k, n, m, seconds), sigma in zip(rows, sigmas, strict=True):
            held += abs(math.log(model.step_time(k, n, k * m) / seconds)) < 1.2816 * sigma
            count += 1
    assert 0.72 < held / count < 0.88, held / count


def test_of_many_configurations_those_reported_most_are_kept() -> None:
    """A hundred configurations leave a model as large as a few dozen do, and what was reported most is in it."""
    rows = [report(k, 1, 0.1 + 0.001 * k, m, 1.0) for k in (1, 2, 3, 4, 5) for m in range(1, 21)]
    rows.append(report(8, 1, 0.9, 32, 500.0))
    model = fit(rows)
    assert model.misses.at.shape == (5, MOST)
    assert at_32(model, 8, 1) == pytest.approx(0.9, rel=0.03)
