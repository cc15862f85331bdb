"""Models asked of all at once."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from slurm_elastic.daemon.optimizer.job_view import Model
from slurm_elastic.daemon.optimizer.models.observation import Observation
from slurm_elastic.daemon.optimizer.models.throughput import fit
from slurm_elastic.daemon.optimizer.speedups import throughputs_at, uncertainties_at


class Declared:
    """A model that is none of ours."""

    sizes_seen = (1,)
    jitter = 0.0

    def throughput(self, gpus: int, nodes: int, batch: int) -> float:
        return float(gpus)

    def throughputs(self, points: Sequence[tuple[int, int, int]]) -> list[float]:
        return [self.throughput(*point) for point in points]

    def uncertainties(self, sizes: Sequence[tuple[int, int]]) -> list[float]:
        return [0.25] * len(sizes)


def any_model(rng: random.Random) -> Model:
    """A fitted one of one to three observations, perhaps accumulating, or another."""
    steps = rng.choice((1, 2))
    seen = [
        Observation(k, max(1, k // 4), 32 * k, 32 // steps, steps, rng.uniform(0.1, 1.0))
        for k in rng.sample((1, 2, 4, 8, 16), rng.randint(1, 3))
    ]
    return fit(seen) if rng.random() < 0.7 else Declared()


def test_each_model_answers_together_as_it_does_alone() -> None:
    """Whatever else is asked at the same time, and however many sizes of each."""
    rng = random.Random(3)
    points = [(k, max(1, k // 4), k * b) for k in (1, 2, 8, 16) for b in (1, 8, 100)]
    asked = [(any_model(rng), rng.sample(points, rng.randint(0, 6))) for _ in range(12)]
    for (model, own), answers in zip(asked, throughputs_at(asked), strict=True):
        assert answers == pytest.approx([model.throughput(*point) for point in own], rel=1e-9)
    sizes = [(model, rng.choice(((1, 1), (4, 2), (32, 8)))) for model, _ in asked]
    for (model, size), doubt in zip(sizes, uncertainties_at(sizes), strict=True):
        assert doubt == pytest.approx(model.uncertainties([size])[0], rel=1e-7)
    assert throughputs_at([]) == uncertainties_at([]) == []
