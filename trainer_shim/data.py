"""Every sample of an epoch exactly once, whatever the number of ranks and however often it changes in between.

One global cursor runs over one permutation of the epoch, drawn from (seed, epoch). A step takes the next `batch`
positions and cuts them into one slice per rank; the last step is short instead of padded. So all that has to survive a
resize is the cursor, and what loader workers had prefetched for the old slices is thrown away unread.
Limit: map-style datasets, whose length is the same on every rank.
"""

# mypy: disallow-untyped-calls=False
# torch types a part of its functions only.

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from . import noise
from .batch import micros_of, slice_of
from .errors import TrainingError

REFUSED = ("batch_size", "sampler", "batch_sampler", "drop_last", "persistent_workers", "generator", "in_order")
MASK = (1 << 63) - 1


def mix(*numbers: int) -> int:
    """A 63-bit seed from counters (splitmix64's finaliser, Steele et al. 2014): neighbours give unrelated seeds."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ (number & ((1 << 64) - 1))) * 0xBF58476D1CE4E5B9 & ((1 << 64) - 1)
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & ((1 << 64) - 1)
        state ^= state >> 31
    return state & MASK


def seed_all(seed: int) -> None:
    """Seed every generator that a script is likely to use on this rank."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


def order(samples: int, seed: int, epoch: int, ordinal: int, shuffle: bool) -> Sequence[int] | torch.Tensor:
    """The permutation of one pass over a dataset; `ordinal` numbers the passes within the epoch."""
    if not shuffle:
        return range(samples)
    generator = torch.Generator().manual_seed(mix(seed, epoch, ordinal))
    return torch.randperm(samples, generator=generator)


@dataclasses.dataclass(frozen=True, slots=True)
class Slicing:
    """How a step is shared out: over how many ranks, which of them this is, and in what pieces it is computed."""

    batch: int
    ranks: int
    rank: int
    micro_batch: int | None = None
    halve: bool = False
    """Whether one rank alone computes a measured step in two micro batches: the noise scale needs two sizes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Micro:
    """One micro batch of one step on one rank."""

    version: int
    cursor: int
    """Where the step starts in the epoch's order."""
    total: int
    """Samples in the whole step, over all ranks."""
    index: int
    """Number of this micro batch within the rank's slice."""
    count: int
    """Micro batches of the slice."""
    indices: tuple[int, ...]
    """Samples fetched."""
    measured: bool
    """Whether the noise scale is measured in this step."""
    weight: int
    """How many of them count: all, or none where a rank has no share of a short last step and computes for company."""

    @property
    def last(self) -> bool:
        return self.index == self.count - 1

    @property
    def own(self) -> tuple[int, ...]:
        """The samples this rank trains on here."""
        return self.indices if self.weight else ()


def step_positions(cursor: int, samples: int, slicing: Slicing) -> list[range]:
    """The micro batches of the step at `cursor` for one rank, as positions in the epoch's order; empty: no share."""
    total = min(slicing.batch, samples - cursor)
    own = slice_of(total, slicing.ranks, slicing.rank)
    shifted = range(cursor + own.start, cursor + own.stop)
    limit = min(slicing.micro_batch or total, len(shifted))
    if slicing.halve and slicing.ranks == 1 and is_measured(cursor, slicing):
        limit = min(limit, -(-total // 2))
    return micros_of(shifted, limit) if len(shifted) else []


def is_measured(cursor: int, slicing: Slicing) -> bool:
    """Whether the noise scale is measured in the step at `cursor`; the same on every rank."""
    return cursor // slicing.batch % noise.EVERY == 0


class Plan:
    """The micro batches of one rank from a cursor to the end of the pass; it may be turned to another slicing.

    An iterator that can go on after it has ended: DataLoader asks ahead, and a resize near the end brings work back.
    """

    def __init__(self, indices: Sequence[int] | torch.Tensor, cursor: int, slicing: Slicing) -> None:
        self.samples = len(indices)
        self.version = 0
        self._indices = indices
        self._ready: list[Micro] = []
        self.turn(cursor, slicing)

    def turn(self, cursor: int, slicing: Slicing) -> None:
        """Go on from `cursor` with another slicing; everything planned so far is stale."""
        self.version += 1
        self._cursor, self._slicing, self._ready = cursor, slicing, []

    @property
    def exhausted(self) -> bool:
        return not self._ready and self._cursor >= self.samples

    def __iter__(self) -> Iterator[Micro]:
        return self

    def __next__(self) -> Micro:
        if not self._ready:
            if self._cursor >= self.samples:
                raise StopIteration
            self._ready = self._step()
        return self._ready.pop(0)

    def _step(self) -> list[Micro]:
        cursor, total = self._cursor, min(self._slicing.batch, self.samples - self._cursor)
        self._cursor += total
        parts = step_positions(cursor, self.samples, self._slicing)
        measured = is_measured(cursor, self._slicing)
        if not parts:  # one or two samples (batch normalisation refuses one), without weight
            company = self._take(range(cursor, cursor + min(2, total)))
            return [Micro(self.version, cursor, total, 0, 1, company, measured, 0)]
        return [
            Micro(self.version, cursor, total, number, len(parts), self._take(part), measured, len(part))
            for number, part in enumerate(parts)
        ]

    def _take(self, positions: range) -> tuple[int, ...]:
        chosen = self._indices[positions.start : positions.stop]
        return tuple(chosen.tolist() if isinstance(chosen, torch.Tensor) else chosen)


class _Tagged(Dataset[Any]):
    """The user's dataset, asked for whole micro batches: samples travel with the micro batch they belong to.

    Each sample is drawn with generators seeded by (seed, epoch, sample): augmentation is the same on whatever rank or
    worker a sample is read.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self.seed = torch.tensor([seed, 0]).share_memory_()
        self.version = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, micros: list[Micro]) -> tuple[Micro, list[Any] | None]:
        (micro,) = micros
        if micro.version < int(self.version):
            return micro, None  # a resize came in between: nobody will look at it
        seed, epoch = self.seed.tolist()
        many = getattr(self.dataset, "__getitems__", None)
        if many is not None:
            seed_all(mix(seed, epoch, micro.indices[0]))
            return micro, many(list(micro.indices))
        samples = []
        for index in micro.indices:
            seed_all(mix(seed, epoch, index))
            samples.append(self.dataset[index])
        return micro, samples


@dataclasses.dataclass(frozen=True)
class _Collate:
    collate: Any

    def __call__(self, fetched: tuple[Micro, list[Any] | None]) -> tuple[Micro, Any]:
        micro, samples = fetched
        return micro, None if samples is None else self.collate(samples)


class _Batches:
    """DataLoader's batch sampler: each "batch of indices" is one micro batch of the current plan."""

    def __init__(self) -> None:
        self.plan: Plan | None = None

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> list[Micro]:
        if self.plan is None:
            raise StopIteration
        return [next(self.plan)]


class Feed:
    """One dataset's DataLoader, kept with its workers over epochs and resizes."""

    def __init__(self, dataset: Any, seed: int, options: dict[str, Any]) -> None:
        check_loader(dataset, options)
        self.dataset = dataset
        self.samples = len(dataset)
        self._seed = seed
        self._tagged = _Tagged(dataset, seed)
        self._batches = _Batches()
        options = dict(options)
        collate = options.pop("collate_fn", None) or default_collate
        options.setdefault("pin_memory", torch.cuda.is_available())
        if options.get("num_workers"):
            options["persistent_workers"] = True
        self._loader: DataLoader[Any] = DataLoader(
            self._tagged,
            batch_sampler=self._batches,
            collate_fn=_Collate(collate),  # type: ignore[arg-type]
            **options,
        )
        self._iterator: Iterator[Any] | None = None

    def start(self, epoch: int, ordinal: int, shuffle: bool, cursor: int, slicing: Slicing) -> None:
        """Begin a pass, at a cursor that an earlier world has reached."""
        previous = self._batches.plan.version if self._batches.plan else 0
        plan = Plan(order(self.samples, self._seed, epoch, ordinal, shuffle), cursor, slicing)
        plan.version = previous + 1
        self._batches.plan = plan
        self._tagged.seed[1] = epoch
        self._tagged.version[0] = plan.version
        self._iterator = None

    def turn(self, cursor: int, slicing: Slicing) -> None:
        """Go on with other slices. Workers keep running; what they prefetched is dropped."""
        plan = self._batches.plan
        if plan is not None:
            plan.turn(cursor, slicing)
            self._tagged.version[0] = plan.version

    def next(self) -> tuple[Micro, Any] | None:
        """The next micro batch with its samples, collated; None at the end of the pass."""
        plan = self._batches.plan
        if plan is None:
            return None
        while True:
            if self._iterator is None:
                if plan.exhausted:
                    return None
                self._iterator = iter(self._loader)
            try:
                micro, samples = next(self._iterator)
            except StopIteration:
                self._iterator = None
                continue
            if micro.version == plan.version:
                return micro, samples


def check_loader(dataset: Any, options: dict[str, Any]) -> None:
    """Raise TrainingError for a dataset or an option that cannot be elastic."""
    if isinstance(dataset, DataLoader):
        raise TrainingError("job.loader() was given a DataLoader; give it the dataset and the DataLoader's options")
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise TrainingError(
            f"job.loader() was given a {type(dataset).__name__}; accepted: a dataset with __len__ and __getitem__"
        )
    if len(dataset) == 0:
        raise TrainingError("job.loader() was given an empty dataset; accepted: one sample or more")
    for name in REFUSED:
        if name in options:
            raise TrainingError(
                f"job.loader({name}=...) is not accepted: the job itself shares out join(batch=...); "
                "accepted: shuffle, num_workers, collate_fn, pin_memory and DataLoader's other options"
            )


def to_device(value: Any, device: torch.device) -> Any:
    """The same structure with every tensor on the device."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(entry, device) for entry in value))
    if isinstance(value, (list, tuple)):
        return type(value)(to_device(entry, device) for entry in value)
    if isinstance(value, dict):
        return {key: to_device(entry, device) for key, entry in value.items()}
    if hasattr(value, "to") and callable(value.to):
        return value.to(device)
    return value
