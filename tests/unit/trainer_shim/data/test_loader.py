"""Exactly-once sampling: the pure plan over thousands of resizes, and the DataLoader around it."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.trainer_shim.data.loader import Feed, asked_together, of_tensors, to_device
from slurm_elastic.trainer_shim.data.sampling import Micro, MicroBatches, Shares, Slicing, mix, order
from slurm_elastic.trainer_shim.numerics.batch import step_of


class Squares(Dataset[Any]):
    """Sample i is (i, i^2, a random number drawn while reading it)."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[int, int, torch.Tensor]:
        return index, index * index, torch.rand(())


def one_step(plan: MicroBatches) -> list[Micro]:
    micros = [next(plan)]
    while not micros[-1].last:
        micros.append(next(plan))
    return micros


@settings(max_examples=1500)
@given(
    samples=st.integers(1, 400),
    worlds=st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 90), st.one_of(st.none(), st.integers(1, 20)), st.integers(1, 6)),
        min_size=1,
        max_size=8,
    ),
    seed=st.integers(0, 2**32),
)
def test_every_sample_exactly_once_over_any_resizes(
    samples: int, worlds: list[tuple[int, int, int | None, int]], seed: int
) -> None:
    """Whatever ranks, batches and micro batches follow each other within an epoch, all members replaced each time."""
    indices = order(samples, seed, 0, 0, shuffle=True)
    seen: Counter[int] = Counter()
    cursor, turn = 0, 0
    while cursor < samples:
        ranks, batch, micro, steps = worlds[turn % len(worlds)]
        turn += 1
        plans = [MicroBatches(indices, cursor, Slicing(batch, Shares(ranks, rank), micro)) for rank in range(ranks)]
        for _ in range(steps):
            if cursor >= samples:
                break
            total = step_of(batch, samples - cursor)
            for plan in plans:
                micros = one_step(plan)
                assert all(part.cursor == cursor and part.total == total for part in micros)
                assert all(len(part.indices) <= (micro or batch) or not part.weight for part in micros)
                seen.update(index for part in micros for index in part.own)
            cursor += total
    assert seen == Counter(range(samples))


def test_a_turned_plan_goes_on_where_the_world_stopped() -> None:
    """A plan that had run ahead (prefetch) and even ended is turned back to the cursor and deals the rest anew."""
    indices = order(100, 1, 0, 0, shuffle=True)
    plan = MicroBatches(indices, 0, Slicing(20, Shares(2, 0)))
    first = one_step(plan)
    ahead = list(plan)
    assert plan.exhausted
    plan.turn(20, Slicing(30, Shares(1, 0)))
    assert not plan.exhausted
    rest = list(plan)
    assert all(micro.version != rest[0].version for micro in [*first, *ahead])
    assert [index for micro in rest for index in micro.own] == indices[20:].tolist()


def test_ranks_without_a_share_get_company_without_weight() -> None:
    """In a last step of two samples the third rank computes on samples that do not count."""
    plan = MicroBatches(range(2), 0, Slicing(8, Shares(3, 2)))
    (micro,) = one_step(plan)
    assert micro.weight == 0 and micro.own == () and micro.last
    assert set(micro.indices) <= {0, 1}


def test_orders_differ_by_epoch_and_repeat_by_seed() -> None:
    """The permutation depends on seed, epoch and pass only."""
    first = torch.as_tensor(order(50, 3, 0, 0, True))
    assert torch.equal(first, torch.as_tensor(order(50, 3, 0, 0, True)))
    assert not torch.equal(first, torch.as_tensor(order(50, 3, 1, 0, True)))
    assert not torch.equal(first, torch.as_tensor(order(50, 3, 0, 1, True)))
    assert list(order(5, 3, 1, 0, False)) == [0, 1, 2, 3, 4]


def test_mixed_seeds_do_not_collide() -> None:
    """Neighbouring counters give distinct seeds: 10^5 of them, as in a birthday test of 63 bits."""
    seeds = {mix(7, epoch, sample) for epoch in range(10) for sample in range(10_000)}
    assert len(seeds) == 100_000


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_workers_lose_and_repeat_nothing_over_resizes(workers: int) -> None:
    """Three worlds in one pass and a second epoch, prefetch in flight: all samples once, workers kept."""
    generator = random.Random(5)
    feeds = [Feed(Squares(101), 11, {"num_workers": workers}) for _ in range(3)]
    pids: set[int] = set()
    for epoch in range(2):
        seen: Counter[int] = Counter()
        cursor, ranks, batch = 0, 3, 16
        for rank, feed in enumerate(feeds):
            feed.start(epoch, 0, True, 0, Slicing(batch, Shares(ranks, rank)))
        while cursor < 101:
            for feed in feeds[:ranks]:
                got = feed.next()
                assert got is not None
                micro, (indices, squares, _) = got
                assert indices.tolist() == list(micro.indices)
                assert torch.equal(squares, indices**2)
                seen.update(micro.own)
            cursor += min(batch, 101 - cursor)
            if generator.random() < 0.6:
                ranks, batch = generator.randint(1, 3), generator.randint(5, 30)
                for rank, feed in enumerate(feeds[:ranks]):
                    feed.turn(cursor, Slicing(batch, Shares(ranks, rank)))
                for rank, feed in enumerate(feeds[ranks:], ranks):  # those left out would be other processes
                    feed.turn(cursor, Slicing(batch, Shares(3, rank)))
        assert seen == Counter(range(101))
        for feed in feeds:
            iterator = getattr(feed._loader, "_iterator", None)
            pids |= {worker.pid for worker in getattr(iterator, "_workers", [])}
    assert len(pids) <= 3 * workers


def test_loader_workers_outlive_the_signal_that_slurm_sends_to_all() -> None:
    """SIGTERM to a loader worker, as scancel sends it: the pass goes on, and the script's worker_init_fn has run."""
    feed = Feed(Numbered(), 11, {"num_workers": 1, "worker_init_fn": begun})
    feed.start(0, 0, False, 0, Slicing(4, Shares(1, 0)))
    found = [feed.next()]
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid or 0, signal.SIGTERM)
    while found[-1] is not None:
        found.append(feed.next())
    assert [value for got in found if got is not None for value in got[1].tolist()] == [100 + i for i in range(40)]


class Numbered(Dataset[int]):
    add = 0

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index + self.add


def begun(_: int) -> None:
    Numbered.add = 100


@pytest.mark.parametrize("dataset", [Squares(23), Subset(Squares(40), range(10, 33))], ids=["dataset", "subset"])
def test_augmentation_does_not_depend_on_who_reads(dataset: Dataset[Any]) -> None:
    """A sample's random numbers come from (seed, epoch, sample): the same for 0 and 2 workers, 1 and 2 ranks."""

    def drawn(workers: int, ranks: int) -> dict[int, float]:
        found = {}
        for rank in range(ranks):
            feed = Feed(dataset, 4, {"num_workers": workers})
            feed.start(1, 0, True, 0, Slicing(6, Shares(ranks, rank)))
            while (got := feed.next()) is not None:
                micro, (indices, _, numbers) = got
                if micro.weight:
                    found.update(zip(indices.tolist(), numbers.tolist(), strict=True))
        return found

    alone = drawn(0, 1)
    assert len(alone) == 23 and len(set(alone.values())) == 23
    assert drawn(2, 2) == alone


class Together(Squares):
    """Gives many samples at once."""

    def __getitems__(self, indices: list[int]) -> list[tuple[int, int, torch.Tensor]]:
        return [self[index] for index in indices]


class NoNumbers(TensorDataset):
    """Draws at random, tensors or not."""

    def __getitem__(self, index: int) -> Any:
        return torch.rand(())


def test_what_is_seeded_by_sample() -> None:
    """Everything but slices of tensors, and datasets that give many samples at once: those by micro batch."""
    tensors = TensorDataset(torch.zeros(9))
    assert of_tensors(tensors) and of_tensors(Subset(tensors, [1]))
    assert not of_tensors(NoNumbers(torch.zeros(9))) and not of_tensors(Squares(9))
    assert asked_together(Together(9)) and asked_together(Subset(Together(9), [1]))
    assert not asked_together(Subset(Squares(9), [1]))


@pytest.mark.parametrize("collate", [None, lambda samples: torch.stack([x for (x,) in samples])])
def test_slices_of_tensors_are_read_without_seeding(collate: Any) -> None:
    """What draws nothing leaves the generators alone, which saves time in every step; a batch that the script puts
    together may draw, and finds them seeded."""
    feed = Feed(TensorDataset(torch.zeros(9, 2)), 3, {"collate_fn": collate} if collate else {})
    feed.start(0, 0, True, 0, Slicing(4, Shares(1, 0)))
    assert feed.next() is not None  # DataLoader draws once when it begins
    random.seed(5)
    torch.manual_seed(5)
    before = random.getstate(), torch.get_rng_state().tolist()
    assert feed.next() is not None
    assert ((random.getstate(), torch.get_rng_state().tolist()) == before) == (collate is None)


def test_noise_is_measured_often_only_until_it_is_known() -> None:
    """Every 10th step up to the given cursor, then every 100th; one rank halves those steps, and no others."""
    plan = MicroBatches(range(4000), 0, Slicing(4, Shares(1, 0), halve=True, dense_until=400))
    measured = []
    for step in range(1000):
        micros = one_step(plan)
        assert len(micros) == (2 if micros[0].measured else 1)
        measured += [step] if micros[0].measured else []
    assert measured == [*range(0, 100, 10), *range(100, 1000, 100)]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize(
    ("dataset", "options", "named"),
    [
        (DataLoader(Squares(4)), {}, "DataLoader"),
        (Stream(), {}, "Stream"),
        (Squares(0), {}, "empty"),
        (Squares(4), {"batch_size": 2}, "batch_size"),
        (Squares(4), {"sampler": None}, "sampler"),
        (Squares(4), {"drop_last": True}, "drop_last"),
    ],
)
def test_what_cannot_be_elastic_is_refused(dataset: Any, options: dict[str, Any], named: str) -> None:
    """Each refusal names the dataset or option in one sentence."""
    with pytest.raises(TrainingError) as caught:
        Feed(dataset, 0, options)
    assert named in str(caught.value)


def test_nested_batches_reach_the_device() -> None:
    """Dicts, tuples and lists keep their form; what is not a tensor is left alone."""
    value = {"x": torch.ones(2), "more": [(torch.zeros(1), "text")]}
    moved = to_device(value, torch.device("meta"))
    assert moved["x"].is_meta and moved["more"][0][0].is_meta and moved["more"][0][1] == "text"


def test_a_dataset_with_getitems_is_asked_for_whole_micro_batches() -> None:
    """Datasets that fetch many samples at once are used that way."""
    asked: list[list[int]] = []

    class Many(TensorDataset):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            asked.append(indices)
            return [self[index] for index in indices]

    feed = Feed(Many(torch.arange(10)), 0, {})
    feed.start(0, 0, False, 0, Slicing(4, Shares(1, 0)))
    while feed.next() is not None:
        pass
    assert asked == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
