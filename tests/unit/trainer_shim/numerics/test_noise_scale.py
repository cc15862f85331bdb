"""The gradient noise scale: unbiased for uneven slices, and read off real steps."""

from __future__ import annotations

import math

import pytest
import torch

from slurm_elastic.trainer_shim.numerics.noise_scale import DECAY, Noise

TRACE, SIGNAL, DIMENSIONS = 4.0, 0.25, 40


@pytest.mark.parametrize("sizes", [(16, 16, 16, 16), (30, 20, 10, 4), (13, 27), (40, 1, 1, 1), (64, 0, 0)])
def test_the_estimate_is_unbiased_for_any_slices(sizes: tuple[int, ...]) -> None:
    """Gaussian gradients of known signal and covariance: the estimate is right where the even-split formula is not."""
    torch.manual_seed(1)
    total, noise = sum(sizes), Noise()
    mean = torch.full((DIMENSIONS,), math.sqrt(SIGNAL / DIMENSIONS), dtype=torch.float64)
    if sizes.count(0) == len(sizes) - 1:
        assert noise.updated(1.0, 0.5, sizes, total) is noise  # one size cannot tell the two apart
        return
    estimates = []
    for _ in range(3000):
        samples = mean + torch.randn(total, DIMENSIONS, dtype=torch.float64) * math.sqrt(TRACE / DIMENSIONS)
        parts = [part.mean(0).square().sum().item() for part in samples.split([n for n in sizes if n])]
        small, large = sum(parts) / len(parts), samples.mean(0).square().sum().item()
        fresh = Noise().updated(small, large, sizes, total)
        estimates.append((fresh.trace / (1 - DECAY), fresh.signal / (1 - DECAY)))
        noise = noise.updated(small, large, sizes, total)
    trace, signal = (sum(column) / len(column) for column in zip(*estimates, strict=True))
    assert trace == pytest.approx(TRACE, rel=0.1)
    assert signal == pytest.approx(SIGNAL, rel=0.1)
    assert noise.scale == pytest.approx(TRACE / SIGNAL, rel=0.6)


def test_a_few_measurements_give_no_scale() -> None:
    """Below ten measured steps, and while the noise cannot be told from zero, the answer is 0, not a number."""
    noise = Noise()
    for _ in range(9):
        noise = noise.updated(2.0, 1.0, [4, 4], 8)
    assert noise.scale == 0
    assert noise.updated(2.0, 1.0, [4, 4], 8).scale > 0
    assert Noise(trace=-1.0, signal=1.0, weight=0.9).scale == 0
