"""Datasets of shards that are read in order: every sample once, whatever resizes come, with workers in flight."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.trainer_shim.data.loader import Feed
from slurm_elastic.trainer_shim.data.sampling import Shares, Slicing
from slurm_elastic.trainer_shim.data.shard_streams import Lanes, StreamMicroBatches, Unread
from slurm_elastic.trainer_shim.numerics.batch import step_of


class Numbers:
    """Shards of numbers that count through, with a random number drawn while reading; remembers what was opened."""

    def __init__(self, *sizes: int) -> None:
        self.shards = list(sizes)
        self.opened: list[tuple[int, int]] = []

    def iter_shard(self, shard: int, start: int) -> Iterator[tuple[int, torch.Tensor]]:
        self.opened.append((shard, start))
        base = sum(self.shards[:shard])
        for place in range(start, self.shards[shard]):
            yield base + place, torch.rand(())


@settings(max_examples=250)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=9).filter(sum),
    worlds=st.lists(
        st.tuples(st.integers(1, 6), st.integers(1, 50), st.one_of(st.none(), st.integers(1, 9)), st.integers(1, 5)),
        min_size=1,
        max_size=6,
    ),
    phases=st.integers(1, 3),
)
def test_every_sample_exactly_once_over_any_resizes(
    sizes: list[int], worlds: list[tuple[int, int, int | None, int]], phases: int
) -> None:
    """Whatever ranks and batches follow each other within a pass, all members replaced each time: only the list of
    unread runs goes from one world to the next. Every rank works out the same, and runs ahead without harm."""
    samples, order = sum(sizes), random.Random(len(sizes)).sample(range(len(sizes)), len(sizes))
    seen: Counter[int] = Counter()
    cursor, turn = 0, 0
    unread: Unread = (phases, 0, ())
    while cursor < samples:
        ranks, batch, micro, steps = worlds[turn % len(worlds)]
        turn += 1
        slicings = [Slicing(batch, Shares(ranks, rank), micro) for rank in range(ranks)]
        plans = [StreamMicroBatches(sizes, order, cursor, unread, slicing) for slicing in slicings]
        for _ in range(steps):
            if cursor >= samples:
                break
            total = step_of(batch, samples - cursor)
            for plan in plans:
                last = False
                while not last:
                    part = next(plan)
                    assert (part.cursor, part.total) == (cursor, total)
                    seen.update(part.own)
                    last = part.last
            cursor += total
        for plan in plans[: turn % 2]:
            list(plan)
        rest = {plan.unread(cursor) for plan in plans}
        assert len(rest) == 1
        unread = rest.pop()
    assert seen == Counter(range(samples))


def test_a_lane_reads_its_shard_from_front_to_back() -> None:
    """While there are shards for everybody, nobody jumps; the last long one is shared out by halves."""
    lanes = Lanes([10, 10, 100], [0, 1, 2], (1, 0, ()), 2)
    assert lanes.take(0, 6) == [(0, 0, 6)]
    assert lanes.take(1, 6) == [(1, 0, 6)]
    assert lanes.take(0, 6) == [(0, 6, 10), (2, 0, 2)]
    assert lanes.take(1, 6) == [(1, 6, 10), (2, 51, 53)]
    assert lanes.unread() == (1, 3, ((2, 2, 51), (2, 53, 100)))


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_workers_lose_and_repeat_nothing_over_resizes(workers: int) -> None:
    """Real DataLoader workers with prefetch in flight over three worlds in a pass, and a second epoch."""
    generator, sizes = random.Random(3), (40, 7, 33, 21)
    feeds = [Feed(Numbers(*sizes), 11, {"num_workers": workers}) for _ in range(3)]
    for epoch in range(2):
        seen: Counter[int] = Counter()
        cursor, ranks, batch = 0, 3, 16
        for rank, feed in enumerate(feeds):
            feed.start(epoch, 0, True, 0, Slicing(batch, Shares(ranks, rank)), (2, 0, ()))
        while cursor < 101:
            for feed in feeds[:ranks]:
                got = feed.next()
                assert got is not None
                micro, (numbers, _) = got
                assert numbers.tolist() == list(micro.indices)
                seen.update(micro.own)
            cursor += min(batch, 101 - cursor)
            if generator.random() < 0.6:
                unread = feeds[0].unread(cursor)
                ranks, batch = generator.randint(1, 3), generator.randint(5, 30)
                for rank, feed in enumerate(feeds):
                    slicing = Slicing(batch, Shares(ranks, min(rank, ranks - 1)))
                    if rank == 0:  # a survivor; the others are new
                        feed.turn(cursor, slicing)
                    else:
                        feed.start(epoch, 0, True, cursor, slicing, unread)
        assert seen == Counter(range(101))


def test_shards_are_opened_once_by_workers_that_read_on() -> None:
    """Without a resize each of four shards is opened once where two ranks have two shards each: nothing is re-read."""
    for rank in range(2):
        dataset = Numbers(30, 30, 30, 30)
        feed = Feed(dataset, 0, {})
        feed.start(0, 0, False, 0, Slicing(10, Shares(2, rank)), (1, 0, ()))
        while feed.next() is not None:
            pass
        assert dataset.opened == [(rank, 0), (rank + 2, 0)]


class Plain(IterableDataset[int]):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.samples))


def test_a_stream_that_cannot_seek_is_read_and_skipped() -> None:
    """InOrder: every rank, with any number of workers, reads it all and keeps its own part, and no sample is lost."""
    seen: Counter[int] = Counter()
    for rank in range(3):
        feed = Feed(elastic.InOrder(Plain(50), samples=50), 0, {"num_workers": rank})
        feed.start(0, 0, True, 0, Slicing(8, Shares(3, rank)), (2, 0, ()))
        while (got := feed.next()) is not None:
            micro, numbers = got
            assert numbers.tolist() == list(micro.indices)
            seen.update(micro.own)
    assert seen == Counter(range(50))


@pytest.mark.parametrize(
    ("dataset", "named"),
    [
        (Plain(5), "Plain, which cannot be read in parts"),
        (Numbers(), "empty"),
        (Numbers(0, 0), "empty"),
        (Numbers(4, -1), r"Numbers.shards\[1\] is -1"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(dataset: Any, named: str) -> None:
    """A stream without shards, no samples, sizes that are none: one sentence before any training."""
    with pytest.raises(TrainingError, match=named):
        Feed(dataset, 0, {})


def test_a_shard_that_is_shorter_than_it_says() -> None:
    """The training ends with the shard's number, instead of with fewer samples."""
    feed = Feed(elastic.InOrder(Plain(5), samples=9), 0, {})
    feed.start(0, 0, False, 0, Slicing(9, Shares(1, 0)), (1, 0, ()))
    with pytest.raises(TrainingError, match="shard 0 of InOrder ended at sample 5"):
        feed.next()


def test_a_stopped_pass_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM's checkpoint in the middle of a pass holds the unread runs: the next process reads the rest, once."""
    for name in ("SELASTIC_CONTROL", "SELASTIC_JOB_DIR", "SELASTIC_AUDIT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    seen: Counter[int] = Counter()
    for attempt in range(2):
        job = elastic.join(batch=8, lr="none", checkpoints=tmp_path)
        model = torch.nn.Linear(1, 1)
        net = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(SystemExit) if attempt == 0 else contextlib.nullcontext():
            for _ in job.epochs(1):
                for numbers, _ in job.loader(Numbers(20, 20, 5), num_workers=2):
                    seen.update(numbers.tolist())
                    if job.global_step == 2 and attempt == 0:
                        job._session.saving._on_signal(15, None)
                    job.step(net(numbers.float()[:, None]).mean())
        job.close()
        assert job.global_step == (3, 6)[attempt]
    assert seen == Counter(range(45))
