"""The search for the largest micro batch, with a device that runs out of memory where we say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from slurm_elastic.trainer_shim.data.micro_batch_probe import Probe, largest

GENERATOR = torch.Generator().manual_seed(1)
DATA = TensorDataset(torch.randn(10, 3, generator=GENERATOR), torch.randn(10, 1, generator=GENERATOR))


@given(st.integers(0, 5000), st.integers(1, 5000))
def test_the_result_fits_and_little_is_left(capacity: int, limit: int) -> None:
    """It always fits, asks a logarithm of questions, and leaves only margin and precision unused."""
    asked: list[int] = []

    def fits(size: int) -> bool:
        asked.append(size)
        return size <= capacity

    found = largest(fits, limit)
    assert found <= min(capacity, limit) and max(asked) <= limit
    assert len(asked) <= 2 * limit.bit_length() + 2
    if capacity >= limit:
        assert found == limit
    else:
        assert found >= int(0.86 * capacity) - 1
        assert found >= 1 or capacity == 0


def probe(capacity: int, seen: list[int]) -> tuple[Probe, torch.nn.Module]:
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))

    def compute(batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = batch
        seen.append(len(x))
        if len(x) > capacity:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return ((module.eval()(x) - y) ** 2).mean()

    optimizer = torch.optim.AdamW(module.parameters())
    return Probe(module, [optimizer], torch.device("cpu"), DATA, compute, None), module


def test_a_search_leaves_nothing_behind_and_is_remembered(tmp_path: Path) -> None:
    """No gradients, buffers as before; the next worker of the same program and model only reads the result."""
    seen: list[int] = []
    searching, module = probe(100, seen)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found = searching.remembered(1000, tmp_path / "job" / "micro.json")
    assert 86 <= found <= 100
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    seen.clear()
    again, _ = probe(100, seen)
    assert again.remembered(1000, tmp_path / "job" / "micro.json") == found and not seen
    assert again.remembered(50, tmp_path / "job" / "micro.json") == 50


def test_other_errors_are_not_taken_for_a_full_memory(tmp_path: Path) -> None:
    """A mistake in the script is raised as it is; a model of which not one sample fits is said to be too large."""
    searching, module = probe(0, [])
    with pytest.raises(MemoryError, match="not even one sample"):
        searching.search(8)
    wrong = Probe(module, [], torch.device("cpu"), DATA, lambda batch: module(torch.ones(2, 7)).sum(), None)
    with pytest.raises(RuntimeError, match=r"(?i)dimension|size|running_mean"):
        wrong.search(8)


def test_without_a_gpu_there_is_nothing_to_fit() -> None:
    """On a CPU no limit is looked for."""
    seen: list[int] = []
    assert probe(1, seen)[0].run(100, None) is None and not seen
