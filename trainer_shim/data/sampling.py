"""Which rank trains on which samples of a pass: pure arithmetic over one global cursor.

One cursor runs over one permutation of the epoch, drawn from (seed, epoch). A step takes the next `batch` positions
and cuts them into one slice per rank; the last step is short instead of padded. Randomness comes from counters, so
that no rank has a state of its own. Each rank has as many samples of a step, or in proportion to weights, such as
their speeds; positions are handed out in the order of the ranks. Datasets that are read in order have a plan of their
own: see shard_streams.py.
"""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Iterator, Sequence

import torch

from ..numerics import noise_scale
from ..numerics.batch import micros_of, slice_of, step_of
from .permutation import Permutation

COMPUTED_FROM = 1 << 22
"""Samples from which the order of a shuffled pass is computed, not drawn: there it would take 34 MB on each rank."""
MASK = (1 << 63) - 1
MIX_FROM = 0x9E3779B97F4A7C15


def mix(*numbers: int) -> int:
    """A 63-bit seed from counters (splitmix64's finaliser, Steele et al. 2014): neighbours give unrelated seeds."""
    return mix_on(MIX_FROM, *numbers) & MASK


def mix_on(state: int, *numbers: int) -> int:
    """The state behind mix(), after more counters: seeds that begin alike share the work for what they begin with."""
    for number in numbers:
        state = (state ^ (number & ((1 << 64) - 1))) * 0xBF58476D1CE4E5B9 & ((1 << 64) - 1)
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & ((1 << 64) - 1)
        state ^= state >> 31
    return state


def seed_all(seed: int) -> None:
    """Seed every generator that a script is likely to use on this rank."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    random.seed(seed & 0xFFFFFFFF)  # one word: twice as quick, and this runs for every sample
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


Order = Sequence[int] | torch.Tensor | Permutation
"""The samples of a pass in the order in which they are trained on."""


def order(samples: int, seed: int, epoch: int, ordinal: int, shuffle: bool, computed: bool = False) -> Order:
    """The permutation of one pass over a dataset; `ordinal` numbers the passes within the epoch. computed: position by
    position as they are asked for, where a whole one would take 8 bytes a sample and the time to draw it."""
    if not shuffle:
        return range(samples)
    if computed:
        return Permutation(samples, mix(seed, epoch, ordinal))
    generator = torch.Generator().manual_seed(mix(seed, epoch, ordinal))
    return torch.randperm(samples, generator=generator)


@dataclasses.dataclass(frozen=True, slots=True)
class Slicing:
    """How a step is shared out, and in what pieces a rank computes its part. Micro batches, batch and micro_batch are
    multiples of shares.each, too."""

    batch: int
    shares: Shares
    micro_batch: int | None = None
    halve: bool = False
    """Whether one rank alone computes a measured step in two micro batches: the noise scale needs two sizes."""
    dense_until: int = 0
    """The noise scale is not known yet: up to this cursor every noise_scale.EVERY-th step is measured."""
    shards: int = 0
    """Parts of a deterministic step, each computed by itself, and not cut otherwise; 0: an ordinary step."""
    together: bool = False
    """Whether ranks communicate in every pass through the model: then all have the same number of micro batches."""


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
    """How many of them count: all, or none where a rank has no share of a short last step, and only communicates."""
    rank_samples: int
    """This rank's in the whole step."""
    shard: int = -1
    """The part of a deterministic step that this belongs to, ..."""
    place: int = 0
    """... its number within that part, ..."""
    ends_shard: bool = False
    """... and whether it is the last one there."""

    @property
    def last(self) -> bool:
        return self.index == self.count - 1

    @property
    def own(self) -> tuple[int, ...]:
        """The samples this rank trains on here."""
        return self.indices if self.weight else ()


def own_of(total: int, slicing: Slicing) -> range:
    """This rank's positions in a step of so many samples."""
    return slicing.shares.of(total, total < slicing.batch)


def least(total: int, slicing: Slicing) -> int:
    """How many micro batches every rank has in a step, at least."""
    if not slicing.together:
        return 0
    short = total < slicing.batch
    largest = len(slicing.shares.largest(total, short).of(total, short))
    return -(-largest // min(slicing.micro_batch or total, largest))


def positions_of(cursor: int, samples: int, slicing: Slicing) -> list[tuple[range, int, int, bool]]:
    """The micro batches of the step at `cursor` for one rank: positions in the epoch's order, and of a deterministic
    step also shard, place in it, its end. Without a share there are none, or only empty ones."""
    total, each, found = step_of(slicing.batch, samples - cursor), slicing.shares.each, []
    if not slicing.shards:
        own = own_of(total, slicing)
        limit = micro_limit(cursor, total, len(own), slicing)
        parts = micros_of(range(cursor + own.start, cursor + own.stop), limit, least(total, slicing), each)
        return [(part, -1, 0, False) for part in parts]
    for shard in slice_of(slicing.shards, slicing.shares.ranks, slicing.shares.rank):
        own = slice_of(total, slicing.shards, shard, each)
        shifted = range(cursor + own.start, cursor + own.stop)
        limit = min(slicing.micro_batch or total, len(own))
        parts = micros_of(shifted, limit, each=each) if len(own) else []
        found += [(part, shard, place, place == len(parts) - 1) for place, part in enumerate(parts)]
    return found


def micro_limit(cursor: int, total: int, own: int, slicing: Slicing) -> int:
    """Most samples in one micro batch of a rank with `own` of the step's `total`."""
    each = slicing.shares.each
    limit = max(each, min(slicing.micro_batch or total, own))
    if slicing.halve and slicing.shares.ranks == 1 and total >= max(4, 2 * each) and is_measured(cursor, slicing):
        limit = min(limit, -(-total // (2 * each)) * each)
    return limit


def is_measured(cursor: int, slicing: Slicing) -> bool:
    """Whether the noise scale is measured in the step at `cursor`; the same on every rank."""
    return cursor // slicing.batch % (noise_scale.EVERY if cursor < slicing.dense_until else noise_scale.SELDOM) == 0


def whole(samples: int, each: int) -> int:
    """How many of a pass's samples are trained on where slices are multiples of `each`."""
    return samples - samples % each


class MicroBatches:
    """The micro batches of one rank from a cursor to the end of the pass; it may be turned to another slicing.

    An iterator that can go on after it has ended: DataLoader asks ahead, and a resize near the end brings work back.
    What is left of the order behind whole multiples of slicing.shares.each is not trained on.
    """

    def __init__(self, indices: Order, cursor: int, slicing: Slicing) -> None:
        self.samples = whole(len(indices), slicing.shares.each)
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
        cursor, total = self._cursor, step_of(self._slicing.batch, self.samples - self._cursor)
        self._cursor += total
        slicing, measured = self._slicing, is_measured(cursor, self._slicing)
        if slicing.micro_batch is None and not (slicing.shards or slicing.together or (slicing.halve and measured)):
            own = own_of(total, slicing)
            if own:  # whole, as nearly always
                part = range(cursor + own.start, cursor + own.stop)
                return [Micro(self.version, cursor, total, 0, 1, self._take(part), measured, len(part), len(part))]
        places = positions_of(cursor, self.samples, slicing)
        # Where a rank has no share: one or two samples (batch normalisation refuses one), without weight.
        padding = range(cursor, cursor + (min(2, total) if slicing.shares.each == 1 else slicing.shares.each))
        places = places or [(range(0), -1, 0, False)]
        rank_samples, step = sum(len(part) for part, *_ in places), (self.version, cursor, total)
        micros = []
        for number, (part, shard, place, ends) in enumerate(places):
            taken = self._take(part or padding)
            micros.append(
                Micro(*step, number, len(places), taken, measured, len(part), rank_samples, shard, place, ends)
            )
        return micros

    def _take(self, positions: range) -> tuple[int, ...]:
        chosen = self._indices[positions.start : positions.stop]
        return tuple(chosen.tolist() if isinstance(chosen, torch.Tensor) else chosen)


@dataclasses.dataclass(frozen=True, slots=True)
class Shares:
    """Of one rank among all of a world."""

    ranks: int = 1
    """Those that compute on samples of their own: replicas of the model."""
    rank: int = 0
    each: int = 1
    """Every rank's number of samples is a multiple of it, as a step's is."""
    weights: tuple[int, ...] = ()
    """How the ranks' parts relate to each other, by rank, from 0; (): all have as many, but for one, the first ones
    more."""

    def of(self, total: int, short: bool = False, rank: int | None = None) -> range:
        """Of the positions of a step of so many samples a rank's, this one's if none is said; perhaps none.

        short: other steps have more; then nobody has a single sample where that can be, for batch normalisation refuses
        it.
        """
        rank = self.rank if rank is None else rank
        if self.weights:
            return self._weighted(total, short, rank)
        few = max(1, total // 2) if short and self.each == 1 and total < 2 * self.ranks else self.ranks
        return slice_of(total, few, rank, self.each) if rank < few else range(total, total)

    def of_all(self, total: int, short: bool = False) -> list[int]:
        """How many each rank has."""
        return [len(self.of(total, short, rank)) for rank in range(self.ranks)]

    def largest(self, total: int, short: bool = False) -> Shares:
        """Those of the rank that has most of such a step."""
        sizes = self.of_all(total, short) if self.weights else [total]
        return dataclasses.replace(self, rank=sizes.index(max(sizes)))

    def _weighted(self, total: int, short: bool, rank: int) -> range:
        unit = 2 if short and self.each == 1 < total else self.each
        units, whole = total // unit, sum(self.weights)
        # Rounded where two parts meet: nobody is off by more than one.
        ends = (units * sum(self.weights[:before]) // whole for before in (rank, rank + 1))
        return range(*(total if end == units else end * unit for end in ends))
