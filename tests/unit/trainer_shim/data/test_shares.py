"""Which samples of a step each rank has: as many for all, or by weights."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_elastic.trainer_shim.data.sampling import MicroBatches, Shares, Slicing, order
from slurm_elastic.trainer_shim.data.shard_streams import StreamMicroBatches
from slurm_elastic.trainer_shim.numerics.batch import step_of

weights = st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(any).map(tuple)


@given(st.integers(2, 600), st.integers(3, 70), st.integers(1, 32) | weights)
def test_no_rank_is_left_with_one_sample_of_a_short_last_step(
    samples: int, size: int, ranks: int | tuple[int, ...]
) -> None:
    """A pass's steps and their shares cover it, in as many steps as ever; one sample alone is nobody's share, for batch
    normalisation refuses it."""
    shares = Shares(ranks) if isinstance(ranks, int) else Shares(len(ranks), weights=ranks)
    left, steps = samples, 0
    while left:
        total = step_of(size, left)
        parts = [shares.of(total, total < size, rank) for rank in range(shares.ranks)]
        assert [position for part in parts for position in part] == list(range(total))
        assert total == size or all(len(part) != 1 for part in parts)
        left, steps = left - total, steps + 1
    assert steps == math.ceil(samples / size)


@given(st.integers(1, 400), st.integers(1, 5), weights)
def test_parts_relate_to_each_other_as_the_weights_do(units: int, each: int, weights: tuple[int, ...]) -> None:
    """Nobody is off by as much as one multiple, nobody without a weight has any, and the largest is the largest."""
    shares = Shares(len(weights), each=each, weights=weights)
    sizes = shares.of_all(units * each)
    for size, weight in zip(sizes, weights, strict=True):
        assert size % each == 0
        assert abs(size / each - units * weight / sum(weights)) < 1
        assert weight or not size
    assert len(shares.largest(units * each).of(units * each)) == max(sizes)


@settings(max_examples=200)
@given(
    samples=st.integers(1, 200),
    batch=st.integers(1, 40),
    weights=weights,
    micro=st.none() | st.integers(1, 9),
    together=st.booleans(),
    shards=st.booleans(),
)
def test_unequal_parts_hold_every_sample_once(
    samples: int, batch: int, weights: tuple[int, ...], micro: int | None, together: bool, shards: bool
) -> None:
    """Over a whole pass, of a dataset or of shards; where ranks compute together all have as many micro batches, and
    those without a part compute for company; each micro batch knows the rank's part."""
    ranks = len(weights)
    slicings = [Slicing(batch, Shares(ranks, rank, weights=weights), micro, together=together) for rank in range(ranks)]
    if shards:
        sizes = [samples // 3, samples - samples // 3]
        plans: list[MicroBatches] = [StreamMicroBatches(sizes, [1, 0], 0, (1, 0, ()), slicing) for slicing in slicings]
    else:
        plans = [MicroBatches(order(samples, 5, 0, 0, shuffle=True), 0, slicing) for slicing in slicings]
    seen: Counter[int] = Counter()
    while not plans[0].exhausted:
        counts = set()
        for plan in plans:
            step = [next(plan)]
            step += [next(plan) for _ in range(step[0].count - 1)]
            counts.add(len(step))
            assert {part.rank_samples for part in step} == {sum(part.weight for part in step)}
            for part in step:
                assert part.indices and (micro is None or part.weight <= micro)
                seen.update(part.own)
        assert len(counts) == 1 or not together
    assert set(seen.values()) == {1} and len(seen) == samples
