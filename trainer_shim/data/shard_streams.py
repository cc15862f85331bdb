"""Every sample of shards that can only be read in order exactly once, over any sequence of resizes.

Shards are dealt to lanes, one for each rank and loader worker, and each lane reads its shard from front to back. Sizes
are known, so every rank works out by itself what all the others have read: nothing is exchanged, and what has to
survive a resize is a list of unread runs (one a lane) and how many shards have been opened. A lane that runs out takes
the next shard, or half of the longest run that is left. Limits: which samples share a batch depends on the number of
ranks; a shard that holds fewer samples than it says ends the training with an error, more are not noticed.
"""

import bisect
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from slurm_elastic.protocol.errors import TrainingError

from ..numerics.batch import step_of
from .sampling import Micro, MicroBatches, Slicing, whole

Run = tuple[int, int, int]
"""Shard, first sample, end."""
Unread = tuple[int, int, tuple[Run, ...]]
"""Lanes of each rank; shards of the pass's order that have been opened; what of those nobody has trained on."""
NOT_BEGUN: Unread = (0, 0, ())


@runtime_checkable
class Shards(Protocol):
    """A dataset made of shards that are read in order: what job.loader() accepts besides map-style datasets."""

    shards: Sequence[int]
    """Samples in each shard; the same on every worker."""

    def iter_shard(self, shard: int, start: int) -> Iterable[Any]:
        """The samples of one shard from number `start` on."""


class InOrder:
    """An iterable dataset that cannot seek, as one shard of `samples` samples: what is not this worker's is read and
    thrown away, so every loader worker of every rank may read all of it. For streams that are cheap to read.
    """

    def __init__(self, dataset: Iterable[Any], samples: int) -> None:
        if not hasattr(dataset, "__iter__"):
            raise TrainingError(f"InOrder() was given a {type(dataset).__name__}; accepted: something to iterate over")
        self.dataset = dataset
        self.shards = [samples]

    def iter_shard(self, shard: int, start: int) -> Iterator[Any]:
        return itertools.islice(iter(self.dataset), start, None)


def sizes_of(dataset: Shards) -> list[int]:
    """The shards' sizes. Raises TrainingError for those that are not whole numbers of samples."""
    sizes = list(dataset.shards)
    for number, size in enumerate(sizes):
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise TrainingError(
                f"{type(dataset).__name__}.shards[{number}] is {size!r}; accepted: the number of samples in that shard"
            )
    return sizes


class Lanes:
    """The unread rest of a pass, dealt to the lanes of so many ranks."""

    def __init__(self, sizes: Sequence[int], order: Sequence[int], unread: Unread, ranks: int) -> None:
        self._sizes, self._order = sizes, order
        self.each, self._opened, left = unread
        self._left = deque(left)
        self._lanes: list[Run] = [(0, 0, 0)] * (ranks * self.each)

    def take(self, lane: int, count: int) -> list[Run]:
        """The next `count` samples for a lane. There have to be that many left in the pass."""
        taken = []
        while count:
            shard, start, stop = self._lanes[lane]
            if start == stop:
                shard, start, stop = self._refill()
            middle = min(stop, start + count)
            self._lanes[lane] = (shard, middle, stop)
            taken.append((shard, start, middle))
            count -= middle - start
        return taken

    def _refill(self) -> Run:
        if self._left:
            return self._left.popleft()
        while self._opened < len(self._order):
            shard = int(self._order[self._opened])
            self._opened += 1
            if self._sizes[shard]:
                return shard, 0, self._sizes[shard]
        longest = max(range(len(self._lanes)), key=lambda lane: self._lanes[lane][2] - self._lanes[lane][1])
        shard, start, stop = self._lanes[longest]
        if start == stop:
            raise AssertionError("more samples were asked for than the pass has left")
        middle = (start + stop) // 2
        self._lanes[longest] = (shard, start, middle)
        return shard, middle, stop

    def unread(self) -> Unread:
        """What no lane has taken yet."""
        return self.each, self._opened, (*(run for run in self._lanes if run[1] < run[2]), *self._left)


class _Walk:
    """Lanes read step by step, for all ranks together."""

    def __init__(self, lanes: Lanes, cursor: int, samples: int, slicing: Slicing) -> None:
        self.lanes, self.cursor, self._samples = lanes, cursor, samples
        self._slicing, self._number = slicing, 0

    def step(self) -> list[Run]:
        """What the ranks read in the next step, in their order. A rank's steps go to its loader workers in turn, a lane
        each."""
        batch = self._slicing.batch
        total = step_of(batch, self._samples - self.cursor)
        each, shares = self.lanes.each, self._slicing.shares
        lanes = range(self._number % each, shares.ranks * each, each)
        sizes = shares.of_all(total, total < batch)
        runs = [run for lane, size in zip(lanes, sizes, strict=True) for run in self.lanes.take(lane, size)]
        self.cursor += total
        self._number += 1
        return runs


class StreamMicroBatches(MicroBatches):
    """The micro batches of one rank; sample numbers count through the shards in order."""

    def __init__(
        self, sizes: Sequence[int], order: Sequence[int], cursor: int, unread: Unread, slicing: Slicing
    ) -> None:
        self._sizes, self._order = sizes, order
        self._bases = list(itertools.accumulate(sizes, initial=0))
        self._done = self._walk(cursor, unread, slicing)
        self._first, self._runs = 0, list[Run]()
        """Of the step that was planned last: its first position, and what is read in it."""
        super().__init__(range(self._bases[-1]), cursor, slicing)

    def _walk(self, cursor: int, unread: Unread, slicing: Slicing) -> _Walk:
        lanes = Lanes(self._sizes, self._order, unread, slicing.shares.ranks)
        return _Walk(lanes, cursor, whole(self._bases[-1], slicing.shares.each), slicing)

    def turn(self, cursor: int, slicing: Slicing) -> None:
        unread = self.unread(cursor)
        # Loader workers are ahead of the training: one walk for what is planned, one for what is done.
        self._ahead, self._done = (self._walk(cursor, unread, slicing) for _ in range(2))
        super().turn(cursor, slicing)

    def unread(self, cursor: int) -> Unread:
        """What is left when the steps up to `cursor` are done; cursors may only grow."""
        while self._done.cursor < cursor:
            self._done.step()
        return self._done.lanes.unread()

    def _step(self) -> list[Micro]:
        self._first, self._runs = self._cursor, self._ahead.step()
        return super()._step()

    def _take(self, positions: range) -> tuple[int, ...]:
        at, found = self._first, list[int]()
        for shard, start, stop in self._runs:
            before = self._bases[shard] + start - at
            found += range(before + max(positions.start, at), before + min(positions.stop, at + stop - start))
            at += stop - start
        return tuple(found)


class ShardReader:
    """Shards as a map-style dataset, quick as long as samples are asked for in order."""

    def __init__(self, dataset: Shards) -> None:
        self._dataset = dataset
        self._bases = list(itertools.accumulate(sizes_of(dataset), initial=0))
        self._next = -1
        self._samples: Iterator[Any] = iter(())

    def __len__(self) -> int:
        return self._bases[-1]

    def __getitem__(self, number: int) -> Any:
        shard = bisect.bisect_right(self._bases, number) - 1
        start = number - self._bases[shard]
        if number != self._next or start == 0:
            self._samples = iter(self._dataset.iter_shard(shard, start))
        self._next = number + 1
        try:
            return next(self._samples)
        except StopIteration:
            raise TrainingError(
                f"shard {shard} of {type(self._dataset).__name__} ended at sample {start}; its size in `shards` is "
                f"{self._bases[shard + 1] - self._bases[shard]}"
            ) from None
