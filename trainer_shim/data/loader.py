"""The DataLoader around a plan: every sample of an epoch exactly once, whatever the number of ranks.

Workers get whole micro batches, and are kept over epochs and resizes; what they had prefetched for slices of an older
world is thrown away unread. Map-style datasets are sliced by one cursor (sampling.py), those made of shards are read
in order (shard_streams.py). Limit: the length has to be known, and the same on every rank.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import inspect
import pickle
import signal
import weakref
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from slurm_elastic.protocol.errors import TrainingError

from ..state.packed_tensors import rebuilt
from .sampling import MASK, MIX_FROM, Micro, MicroBatches, Slicing, mix, mix_on, order, seed_all, whole
from .shard_streams import NOT_BEGUN, ShardReader, Shards, StreamMicroBatches, Unread, sizes_of
from .stateful import Told, attributes, first_fetch

TAKEN = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
"""Options of a DataLoader that are read off one."""
REFUSED = ("batch_size", "sampler", "batch_sampler", "drop_last", "persistent_workers", "generator", "in_order")


class _Tagged(Dataset[Any]):
    """The user's dataset, asked for whole micro batches: samples travel with the micro batch they belong to.

    Each sample is drawn with generators seeded by (seed, epoch, sample): augmentation is the same on whatever rank or
    worker a sample is read. A dataset that gives many at once (__getitems__) is seeded once for them all. Seeding takes
    9 us. Samples that are slices of tensors do not need it, nor does their batch where torch collates it.
    """

    def __init__(self, dataset: Any, seed: int, collate: Any = None, meant: Collection[str] = ()) -> None:
        self.dataset = dataset
        self._meant = meant
        self._begun = of_tensors(dataset) or isinstance(dataset, ShardReader)
        """Nothing is to be seen in a first fetch any more."""
        self._drawn = collate is not default_collate or not of_tensors(dataset)
        self._together = asked_together(dataset)
        self._sliced = of_tensors(dataset)
        self.seed = torch.tensor([seed, 0]).share_memory_()
        self.version = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, micros: list[Micro]) -> tuple[Micro, list[Any] | Told | None]:
        (micro,) = micros
        if micro.version < int(self.version):
            return micro, None  # a resize came in between: nobody will look at it
        if not self._begun:
            self._begun = True
            return micro, first_fetch(self.dataset, lambda: self._fetch(micro), lambda: self._again(micro), self._meant)
        return micro, self._fetch(micro)

    def _again(self, micro: Micro) -> Any:
        """One sample, seeded otherwise than ever."""
        seed_all(mix(self.seed[0].item(), -1))
        first = micro.indices[0]
        return self.dataset.__getitems__([first]) if self._together else self.dataset[first]

    def _fetch(self, micro: Micro) -> list[Any]:
        seed, epoch = self.seed.tolist()
        if self._together or self._sliced:
            if self._drawn:
                seed_all(mix(seed, epoch, micro.indices[0]))
            indices = list(micro.indices)
            return self.dataset.__getitems__(indices) if self._together else [self.dataset[i] for i in indices]
        samples, drawn = [], mix_on(MIX_FROM, seed, epoch)
        for index in micro.indices:
            seed_all(mix_on(drawn, index) & MASK)
            samples.append(self.dataset[index])
        return samples


@dataclasses.dataclass(frozen=True)
class _Collate:
    collate: Any

    def __call__(self, fetched: tuple[Micro, list[Any] | Told | None]) -> tuple[Micro, Any]:
        micro, samples = fetched
        return micro, samples if samples is None or isinstance(samples, Told) else self.collate(samples)


@dataclasses.dataclass(frozen=True)
class _Init:
    """Begins a loader worker. Slurm's SIGTERM goes to every process of a job: a worker that died of it would end its
    rank before the checkpoint is written. Workers end with their loader, or with its process."""

    init: Any

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.init is not None:
            self.init(worker)


def spare_loader_workers() -> None:
    """The same for the workers of every DataLoader that the script makes itself. What of them does not end with this
    process is killed: Python would wait for it for ever."""
    kind: Any = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    begin, spared = kind.__init__, weakref.WeakSet[Any]()

    def begin_spared(self: Any, loader: Any) -> None:
        if not isinstance(loader.worker_init_fn, _Init):
            loader.worker_init_fn = _Init(loader.worker_init_fn)
        begin(self, loader)
        spared.update(self._workers)

    def kill() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler takes their end for an error
        for worker in list(spared):
            with contextlib.suppress(ValueError):  # one that was closed
                worker.kill()

    kind.__init__ = begin_spared
    atexit.register(kill)


class _Batches:
    """DataLoader's batch sampler: each "batch of indices" is one micro batch of the current plan."""

    def __init__(self) -> None:
        self.plan: MicroBatches | None = None

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> list[Micro]:
        if self.plan is None:
            raise StopIteration
        return [next(self.plan)]


class Feed:
    """One dataset's DataLoader, kept with its workers over epochs and resizes."""

    one_lane = False
    """Of a rehearsal: shards are read one after another by all ranks together, so that a step's samples are the same on
    any number of them."""

    def __init__(
        self, dataset: Any, seed: int, options: dict[str, Any], each: int = 1, meant: Collection[str] = ()
    ) -> None:
        """each: as Slicing.each. meant: names of which the script says that it is meant so."""
        check_loader(dataset, options, each)
        self.dataset = dataset
        self._sizes = sizes_of(dataset) if isinstance(dataset, Shards) and not self.one_lane else None
        source = mapped(dataset)
        self.samples = whole(len(source), each)
        """Trained on in a pass."""
        self.left_out = len(source) - self.samples
        """Of the pass, at its end."""
        self._seed = seed
        self.lanes = max(1, options.get("num_workers") or 0) if self._sizes is not None else 0
        """How many shards a rank reads side by side: one for each worker. All ranks have to use the same number."""
        options = dict(options)
        collate = options.pop("collate_fn", None) or default_collate
        self._tagged = _Tagged(source, seed, collate, meant)
        self._batches = _Batches()
        options.setdefault("pin_memory", torch.cuda.is_available())
        if options.get("num_workers"):
            options["persistent_workers"] = True
            options["worker_init_fn"] = _Init(options.get("worker_init_fn"))
        self._loader: DataLoader[Any] = DataLoader(
            self._tagged,
            batch_sampler=self._batches,
            collate_fn=_Collate(collate),  # type: ignore[arg-type]
            **options,
        )
        self._iterator: Iterator[Any] | None = None
        self._seen: list[Any] = []
        """The attributes that the loader's workers have a copy of."""

    def start(
        self,
        epoch: int,
        ordinal: int,
        shuffle: bool,
        cursor: int,
        slicing: Slicing,
        unread: Unread = NOT_BEGUN,
        computed: bool = False,
    ) -> None:
        """Begin a pass at a cursor; `unread` of its shards is what an earlier world has left, or (lanes, 0, ()).
        computed: see sampling.order."""
        previous = self._batches.plan.version if self._batches.plan else 0
        plan: MicroBatches
        if self._sizes is None:
            samples, shuffle = self.samples + self.left_out, shuffle and not isinstance(self.dataset, Shards)
            plan = MicroBatches(order(samples, self._seed, epoch, ordinal, shuffle, computed), cursor, slicing)
        else:
            shards = [int(shard) for shard in order(len(self._sizes), self._seed, epoch, ordinal, shuffle)[:]]
            plan = StreamMicroBatches(self._sizes, shards, cursor, unread, slicing)
        plan.version = previous + 1
        self._batches.plan = plan
        self._tagged.seed[1] = epoch
        self._tagged.version[0] = plan.version
        self._iterator = None
        seen = [token for *_, token in attributes(self.dataset)] if self._loader.num_workers else []
        if seen != self._seen:  # dataset.set_epoch(), say
            self._loader._iterator, self._seen = None, seen

    def _started(self) -> Iterator[Any]:
        try:
            return iter(self._loader)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            if not self._loader.num_workers:
                raise
            raise TrainingError(
                f"the {type(self.dataset).__name__} or its collate_fn cannot be sent to loader workers ({error}); "
                "accepted: what pickles, or num_workers=0"
            ) from error

    def unread(self, cursor: int) -> Unread:
        """What is left of the shards once the steps up to `cursor` are done; nothing for map-style datasets."""
        plan = self._batches.plan
        return plan.unread(cursor) if isinstance(plan, StreamMicroBatches) else NOT_BEGUN

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
                self._iterator = self._started()
            try:
                micro, samples = next(self._iterator)
            except StopIteration:
                self._iterator = None
                continue
            if isinstance(samples, Told):
                raise TrainingError(samples)
            if micro.version == plan.version:
                return micro, samples


def of_tensors(dataset: Any) -> bool:
    """Whether samples are certainly drawn without random numbers."""
    if type(dataset) is Subset:
        return of_tensors(dataset.dataset)
    return type(dataset) is TensorDataset


def asked_together(dataset: Any) -> bool:
    """Whether the dataset itself gives many samples at once; a Subset only passes the question on."""
    return asked_together(dataset.dataset) if type(dataset) is Subset else hasattr(dataset, "__getitems__")


def mapped(dataset: Any) -> Any:
    """The dataset as one that is asked for samples by number."""
    return ShardReader(dataset) if isinstance(dataset, Shards) else dataset


def source_of(given: Any) -> tuple[Any, dict[str, Any]]:
    """A DataLoader's dataset and options, `shuffle` among them; of a dataset only itself.

    Raises TrainingError for a DataLoader whose order is neither the dataset's nor a plain permutation.
    """
    if not isinstance(given, DataLoader):
        return given, {}
    if isinstance(given.dataset, (IterableDataset, Shards)):
        return given.dataset, {}
    sampler = given.sampler
    plain = type(given.batch_sampler) is BatchSampler and type(sampler) in (
        RandomSampler,
        SequentialSampler,
        DistributedSampler,
    )
    if not plain or getattr(sampler, "replacement", False):
        of = sampler if type(given.batch_sampler) is BatchSampler else given.batch_sampler
        raise TrainingError(
            f"job.loader() was given a DataLoader with a {type(of).__name__}, whose order it does not know; accepted: "
            "a dataset, or a DataLoader made with shuffle=True or False"
        )
    options = {name: getattr(given, name) for name in TAKEN}
    if given.num_workers:
        options["prefetch_factor"] = given.prefetch_factor
    shuffles = type(sampler) is RandomSampler or getattr(sampler, "shuffle", False)
    return given.dataset, {"shuffle": shuffles, **options}


def check_loader(dataset: Any, options: dict[str, Any], each: int = 1) -> None:
    """Raise TrainingError for a dataset or an option that cannot be elastic."""
    if not isinstance(dataset, Shards):
        mapped = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        if isinstance(dataset, IterableDataset) or not mapped:
            raise TrainingError(
                f"job.loader() was given a {type(dataset).__name__}, which cannot be read in parts; accepted: a "
                "dataset with __len__ and __getitem__, one with `shards` and iter_shard(shard, start), or "
                "InOrder(dataset, samples=...), which reads and skips"
            )
    samples = sum(sizes_of(dataset)) if isinstance(dataset, Shards) else len(dataset)
    if samples == 0:
        raise TrainingError("job.loader() was given an empty dataset; accepted: one sample or more")
    if samples < each:
        raise TrainingError(
            f"job.loader() was given a dataset of {samples} samples, fewer than slice={each}; accepted: {each} or more"
        )
    for name in REFUSED:
        if name in options:
            raise TrainingError(
                f"job.loader({name}=...) is not accepted: the job itself shares out join(batch=...); "
                "accepted: shuffle, num_workers, collate_fn, pin_memory and DataLoader's other options"
            )
    for name in options:
        if name not in inspect.signature(DataLoader.__init__).parameters:
            raise TrainingError(f"job.loader({name}=...) is not known; accepted: shuffle, and DataLoader's options")


def to_device(value: Any, device: torch.device) -> Any:
    """The same structure with every tensor, and whatever else has a to(), on the device."""

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(device, non_blocking=True)
        return leaf.to(device) if callable(getattr(leaf, "to", None)) else leaf

    return rebuilt(value, moved)
