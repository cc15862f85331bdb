"""A job whose loop belongs to a framework: the halves of job.step() and of the loader, to be called one by one.

The world is entered with the first step that is asked for and changes only where the next one is asked for, so that
everything a framework does around its steps (logging, evaluation, hooks) falls into one world on all ranks. One pass
over one dataset is one epoch.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from slurm_elastic.protocol.errors import TrainingError

from ..data.loader import Feed
from ..data.sampling import Micro
from ..job import Job
from ..loops.epochs import VotedStep
from ..parallel.strategy import is_part
from ..state.progress import TrainingProgress

Part = tuple[Micro, Any]
"""A micro batch and its collated samples."""
TAKEN_OVER = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")


class FrameworkLoop:
    def __init__(self, job: Job, feed: Feed, shuffle: bool, epochs: int) -> None:
        self.job = job
        self.feed = feed
        self._shuffle = shuffle
        self._session = job._session
        self._session.reporting.length.epochs = epochs
        self._voted: VotedStep | None = None
        self.begun = False

    @property
    def progress(self) -> TrainingProgress:
        return self._session.state.progress

    def begin(self) -> None:
        """Enter the first world, with the state that this worker starts from."""
        self.job._begun = self.job._epoch_loop.open = self.begun = True
        self._session.begin()

    def next_step(self) -> list[Part]:
        """The micro batches of this rank's next step, of another epoch when the last one is done.

        The world may be another one afterwards.
        """
        session, feed = self._session, self.feed
        if session.feed is None:
            self.job._epoch_loop.begin(feed, 0, self._shuffle)
        else:
            session.boundary()
        parts: list[Part] = []
        session.reporting.meter.asks(session.device.type == "cuda")
        while not parts or not parts[-1][0].last:
            got = feed.next()
            if got is None:
                raise AssertionError("the pass has ended before all of its samples were handed out")
            parts.append(got)
        session.reporting.meter.got()
        return parts

    def steps_left(self, after: Micro) -> int:
        """Steps of the pass that follow this one, at the batch of now."""
        return -(-(self.feed.samples - after.cursor - after.total) // self.job.batch)

    def scale(self, micro: Micro) -> float:
        """The factor for the mean loss of a micro batch."""
        return self.job._epoch_loop.scale(micro)

    def backward(self, micro: Micro, loss: torch.Tensor) -> None:
        """Backward on a loss that carries its weight (and an AMP scaler's)."""
        self._voted = self.job._epoch_loop.backward(micro, loss)

    def stepped(self) -> None:
        """The optimizer has been stepped: count it, advance the schedulers of job.wrap(), end the pass at its end."""
        if self._voted is None:
            raise TrainingError("the optimizer was stepped before the backward pass of its whole batch")
        self._session.stepped(*self._voted)
        self._voted = None
        if self.progress.cursor >= self.feed.samples:
            # The tally of this step is acted on where the next pass begins.
            self._session.feed = None
            self.progress.next_epoch()

    def rate(self) -> Any:
        """A context in which the optimizers hold the rates that belong to the batch."""
        self._session.last_state.step_begins()
        return self._session.tuning.applied(self.progress)

    def finish(self) -> None:
        """The training is over, if it has begun."""
        if self.begun:
            self.job._epoch_loop.open = False
            self._session.finish(finished=True)


class DrivenLoader:
    """What a framework iterates over in place of its DataLoader."""

    def __init__(self, driven: FrameworkLoop) -> None:
        self.driven = driven
        self.dataset = driven.feed.dataset

    def __len__(self) -> int:
        """In batches that the rate was tuned for: what a script computes schedules from."""
        return self.driven.job.steps(1, self.driven.feed.samples)


def rank_to_show(job: Job) -> int:
    """This worker's rank. Before its first world 0 on the one that becomes rank 0, which makes what a run writes to;
    else not 0."""
    return job.rank if job.rank >= 0 else int(not os.environ.get("SELASTIC_MAIN"))


class Counted:
    """A scheduler that the job advances by samples; a framework's own calls of step() do nothing."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def step(self, *_: Any, **__: Any) -> None:
        """Does nothing: the job advances the schedulers of job.wrap() with the samples."""


def check_options(options: Mapping[str, Any], adapter: str) -> None:
    """Raise TrainingError for options of join() that a framework's own loop does not support."""
    options = {**options, "combine": options.get("combine") or os.environ.get("SELASTIC_COMBINE")}
    for name in ("unit", "deterministic", "combine", "shares"):
        if options.get(name) and options[name] not in ("mean", "equal"):
            raise TrainingError(
                f"{adapter}({name}=...) is not possible: a framework's loop averages whole replicas, step by step; "
                f"accepted: a loop of your own with job.step(), and elastic.join({name}=...)"
            )


def wrap_options(model: torch.nn.Module, strategy: str, shard: Any, replicas: Mapping[str, Any]) -> dict[str, Any]:
    """The options of job.wrap(). shard: the script's own; None: the blocks that a model of Transformers names, where it
    does. replicas: what a framework has for DistributedDataParallel."""
    if strategy != "fsdp":
        if shard is not None:
            raise TrainingError(f"elastic(strategy={strategy!r}, shard=...) is not possible; accepted: strategy='fsdp'")
        return {"strategy": strategy, **replicas}
    blocks = tuple(getattr(model, "_no_split_modules", None) or ())
    if shard is None and blocks:
        shard = _by_kinds(blocks)
    return {"strategy": strategy, "shard": shard}


def _by_kinds(kinds: tuple[str, ...]) -> Any:
    def shard(model: torch.nn.Module, mesh: Any) -> None:
        from ..world.mesh import fully_shard

        for part in [part for part in model.modules() if type(part).__name__ in kinds]:
            fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)

    return shard


def whole(norm: Any) -> Any:
    """What clip_grad_norm_ gives for a sharded model, as a number that every rank has."""
    return norm.full_tensor() if is_part(norm) else norm


def refuse(adapter: str, options: Iterable[tuple[bool, str, str]]) -> None:
    """Raise TrainingError for the first option that is set. options: whether it is, its name, and what is accepted."""
    for found, what, accepted in options:
        if found:
            raise TrainingError(f"{what} is not possible with {adapter}; accepted: {accepted}")


def check_parts(library: str, version: str, tried: str, parts: Iterable[tuple[Any, str]]) -> None:
    """Raise TrainingError when a library lacks what its adapter uses: before the training, not in the middle of it.

    parts: owners and the names that they have to have.
    """
    for owner, name in parts:
        if not hasattr(owner, name):
            where = getattr(owner, "__name__", type(owner).__name__)
            raise TrainingError(
                f"{library} {version} has no {where}.{name}, which the adapter uses; it was tested with {tried}"
            )


def taken_over(loader: Any, job: Job) -> tuple[Feed, bool]:
    """A feed in place of a framework's DataLoader, and whether it shuffles.

    Its batch size is not used; join(batch=...) counts. Raises TrainingError for a sampler that decides what is read.
    """
    if not isinstance(loader, DataLoader):
        raise TrainingError(f"the training data is a {type(loader).__name__}; accepted: one torch DataLoader")
    tuning = job._session.tuning
    options = {name: getattr(loader, name) for name in TAKEN_OVER}
    if loader.num_workers:
        options["prefetch_factor"] = loader.prefetch_factor
    if isinstance(loader.dataset, IterableDataset):
        return Feed(loader.dataset, tuning.seed, options, tuning.each), True
    plain = loader.batch_sampler is None or type(loader.batch_sampler) is BatchSampler
    if not plain or not isinstance(loader.sampler, (RandomSampler, SequentialSampler)):
        which = loader.sampler if plain else loader.batch_sampler
        raise TrainingError(
            f"the training DataLoader has a {type(which).__name__}, which would decide what each worker reads; "
            "accepted: shuffle=True or False"
        )
    return Feed(loader.dataset, tuning.seed, options, tuning.each), isinstance(loader.sampler, RandomSampler)
