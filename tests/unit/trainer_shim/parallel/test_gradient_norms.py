"""Squared gradient norms read in passing, beside those computed from the gradients themselves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from slurm_elastic.trainer_shim.parallel.gradient_norms import GradientNorms


def square(module: nn.Module) -> float:
    return sum(float(p.grad.double().square().sum()) for p in module.parameters() if p.grad is not None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_one_rank_compares_its_first_half_with_the_whole(dtype: torch.dtype) -> None:
    """The small batch's gradient is the first micro batch's, the large one's that of all; other steps cost nothing."""
    module, norms = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1)).to(dtype), GradientNorms()
    norms.over(module.parameters(), shared=False)
    expected: list[float] = []
    norms.begin(wanted=True, last=False)
    for last in (False, True):
        norms.begin(wanted=True, last=last)
        module(torch.randn(4, 3, dtype=dtype)).square().mean().backward()
        norms.micro_done()
        expected.append(square(module))
    found = norms.squares()
    assert found is not None
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    assert [float(one) for one in found] == pytest.approx(expected, rel=tolerance)
    norms.begin(wanted=False, last=True)
    norms.micro_done()
    assert norms.squares() is None
