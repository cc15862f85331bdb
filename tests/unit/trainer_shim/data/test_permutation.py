"""Orders that are computed position by position: every sample once, the same whatever is asked for first."""

from __future__ import annotations

import itertools
import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_elastic.trainer_shim.data.permutation import BLOCK, Permutation
from slurm_elastic.trainer_shim.data.sampling import order


@settings(max_examples=150)
@given(samples=st.integers(1, 3 * BLOCK), seed=st.integers(0, (1 << 63) - 1))
def test_every_sample_once_whatever_is_asked_for_first(samples: int, seed: int) -> None:
    """Slices of any length, over the edges of blocks, in any order, are parts of one permutation."""
    whole = Permutation(samples, seed)[:]
    assert torch.equal(whole.sort().values, torch.arange(samples))
    chance, again = random.Random(seed), Permutation(samples, seed)
    cuts = sorted({0, samples, *(chance.randrange(samples + 1) for _ in range(8))})
    parts = list(itertools.pairwise(cuts))
    chance.shuffle(parts)
    for start, stop in parts:
        assert torch.equal(again[start:stop], whole[start:stop])
    assert len(again) == samples and not len(again[samples : samples + 5])


def test_orders_are_shuffled_and_unlike_each_other() -> None:
    """Neighbours, places, and the orders of neighbouring epochs say nothing of each other: correlations as of drawn
    orders, whose standard deviation is 1/sqrt(samples)."""
    samples = 100_003
    first, second = (order(samples, 3, epoch, 0, shuffle=True, computed=True)[:].double() for epoch in (0, 1))
    pairs = [(first, torch.arange(samples).double()), (first[1:], first[:-1]), (first, second)]
    assert all(abs(float(torch.corrcoef(torch.stack(pair))[0, 1])) < 5 / samples**0.5 for pair in pairs)
    assert int((first == second).sum()) < 10


def test_a_few_places_of_a_billion_are_computed_alone() -> None:
    """Drawn, this order would take 8 GB."""
    found = Permutation(10**9, 5)[10**9 - 3 :]
    assert len(set(found.tolist())) == 3 and int(found.min()) >= 0 and int(found.max()) < 10**9
