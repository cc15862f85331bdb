"""Adaptive summation trains where linear scaling does not: a tenth of `make bench-training`."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[5]
RATE = 0.2
"""The best of five for one worker, by the bench."""


def test_32_workers_train_at_the_rate_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handwritten digits, at the rate that one worker does best with: by adaptive summation enough is right within 30
    epochs; with the mean at 32 times the rate the training has not begun after 8."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bench = importlib.import_module("bench_training")
    (adasum, linear, *_), threads = bench.ways(RATE).values(), torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other in each of thousands of small products
    try:
        assert bench.run(bench.WORKERS, *adasum, seed=0)[0]
        assert bench.run(bench.WORKERS, *linear, seed=0, epochs=8)[1] < 0.5
    finally:
        torch.set_num_threads(threads)
