"""What a training script uses: join, wrap, epochs, loader, step, once, keep.

The same script trains alone, under torchrun, and under the supervisor, where the job's world changes between two steps
without the script noticing: training/session.py shows how, data/sampling.py which sample is next, state/ what survives.
Every rank has to run the same calls in the same order. Code after the loop runs on every rank of the last world.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import torch

from slurm_elastic.protocol.errors import TrainingError

from .data.loader import check_loader, mapped, source_of
from .data.micro_batch_probe import Probe
from .data.sampling import seed_all, whole
from .loops.enumerated import Enumerated
from .loops.epochs import EpochLoop
from .loops.iterations import OwnLoop, Share
from .loops.leaving import failed, on_purpose
from .loops.once import before_loop, check_kept, on_each_node, on_rank_0, save
from .numerics import batch as batches
from .parallel.choice import check_choice, check_has_values, strategy_of
from .parallel.deterministic import prepare
from .parallel.strategy import Wrapped
from .state.trackers import Tracker
from .state.variables import Collection, Variables
from .training.checks import check_wrap
from .training.job_properties import JobProperties
from .training.learning_rate import Tuning
from .training.optimizer_step import OptimizerSteps
from .training.session import Session
from .world.layout import Layout
from .world.rendezvous import Membership

_current: list[Job] = []


def join(
    batch: int,
    max_batch: int | None = None,
    lr: str = "auto",
    micro_batch: int | None = None,
    seed: int = 0,
    *,
    slice: int | None = None,
    checkpoints: str | os.PathLike[str] | None = None,
    checkpoint_every_s: float | None = None,
    ramp: float = 0.01,
    unit: dict[str, int] | None = None,
    deterministic: bool | int = False,
    safe_globals: Sequence[Callable[..., Any]] = (),
    same_inputs: bool = False,
    meant: Sequence[str] = (),
    combine: str | None = None,
    shares: str = "equal",
) -> Job:
    """Take part in the training.

    batch: the global batch, in samples, that the learning rate was tuned for. max_batch: the largest global batch at
    which its result is acceptable; None: whatever the elastic request allows. lr: how the rate follows the batch, one
    of request.LR_RULES; auto: what the elastic request says, or else linear for SGD and sqrt for all others.
    micro_batch: most samples one rank computes at a time; None: its whole slice. seed: of data order and of every
    rank's generators. slice: what a rank's samples in a step, and in each micro batch, are a multiple of (mixup: 2; as
    much as micro_batch: all micro batches are of that size); a pass leaves out the last samples of its order that fill
    none; None: what the elastic request says, or 1. checkpoints: a directory that every node sees; default: the job's
    own under `selastic run`, none elsewhere. checkpoint_every_s: seconds between two checkpoints; None: as
    `selastic run` finds it best, 600 elsewhere. ramp: share of an
    epoch over which a rate rises after a grow. unit: {"tp": N} where N ranks hold one replica of the model together
    (tensor parallelism), or several named axes: then worlds are whole multiples of their ranks, and wrap() takes
    parallelize=. deterministic:
    parameters that are the same to the last bit on any number of ranks, at a cost (deterministic.py); a number: of
    shards that a batch is computed in, and so the most ranks that share the work; True: batch.SHARDS. safe_globals:
    types that checkpoints may hold besides tensors, plain values and NumPy's, as torch.serialization.add_safe_globals()
    takes them. same_inputs: whether ranks compute on the same inputs on purpose, which ends the training otherwise.
    meant: names that a sentence has named, of a variable, a buffer or "loss", where what it says is meant so.
    combine: what all ranks step with, made of their gradients: "mean", over all samples, or "adasum", at a rate that is
    not scaled (reduction/adasum.py); None: what the elastic request says, or the mean. shares: what part of a step each
    rank has: "equal", or "speed", in proportion to how fast it computes, for GPUs of several types.
    Raises TrainingError for a value that is not accepted.
    """
    asked = os.environ.get("SELASTIC_COMBINE")
    combine = combine or asked or "mean"
    if lr == "auto":
        lr = os.environ.get("SELASTIC_LR") or lr
    batches.check_join(batch, max_batch, micro_batch, lr)
    batch_sizes = (("batch", batch), ("max_batch", max_batch), ("micro_batch", micro_batch))
    each = batches.check_slice(slice, batch_sizes, os.environ.get("SELASTIC_SLICE"))
    layout = Layout.of(unit, os.environ.get("SELASTIC_GROUP"))
    shards = batches.check_deterministic(deterministic, lr)
    lr = check_choice(combine, shares, shards, lr, asked)
    if _current:
        raise TrainingError("join() was called twice in one process; call it once, and hand the job on")
    if shards:
        prepare()
    tuning = Tuning(batch, max_batch, lr, micro_batch, seed, ramp, each, shards, combine, shares)
    job = Job(Session(Membership(layout=layout), tuning, checkpoints, checkpoint_every_s, safe_globals))
    job._session.replica_check.same_inputs = same_inputs
    job._session.meant.update([meant] if isinstance(meant, str) else meant)
    _current.append(job)
    return job


class Job(JobProperties):
    """One worker's view of the training; made by join()."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._own_loop = OwnLoop(session)
        self._epoch_loop = EpochLoop(session, self._own_loop)
        self._variables = 0
        self._begun = False
        self._left = False
        """The loop over the epochs is under way, or an error has left it."""
        self._onces = 0
        self.device: torch.device = session.device
        """Where this worker computes."""
        seed_all(self._tuning.seed)
        atexit.register(self.close)

    # -- before the loop -----------------------------------------------------------------------------------------

    def wrap(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        scheduler: Any = None,
        *,
        scaler: Any = None,
        strategy: str = "ddp",
        **options: Any,
    ) -> Any:
        """Make the model data parallel, instead of DistributedDataParallel(model).

        optimizer, scheduler: one or a sequence. Schedulers are advanced by the job, one step per base batch of
        samples; ReduceLROnPlateau and those stepped by epoch belong to keep(). scaler: a torch.amp.GradScaler.
        strategy: "ddp" keeps a replica on every rank, "fsdp" shards it (fully_shard). options: passed on to
        DistributedDataParallel, e.g. find_unused_parameters; or shard=function(model, mesh) that calls fully_shard, and
        init=function(module) for a model on the meta device, whose modules reset_parameters() does not set alone;
        parallelize= what cuts up the model within a unit, a plan of parallelize_module or function(model, mesh).
        Returns what is called like the model; the model itself stays as it is, state_dict included.
        """
        self._before_start("wrap")
        if self._session.strategy is not None:
            before = "after job.replicate()" if self._own_loop.models else "twice"
            raise TrainingError(f"job.wrap() was called {before}; wrap one model (an nn.Module may hold several)")
        optimization = OptimizerSteps(self._tuning, optimizer, scheduler, scaler)
        check_wrap(model, optimization.optimizers, optimization.schedulers)
        parallel = strategy_of(
            strategy,
            model,
            optimization.optimizers,
            options,
            self._session.membership.layout,
            self._tuning.combine,
            self._tuning.shards,
            self._tuning.shares,
            self.device,
        )
        parallel.on_error = self._session.world_switch.broke
        parallel.measures = True
        self._tuning.wants_noise = self._session.membership.client is not None or self._tuning.rule == "adascale"
        self._state.keep("Model", model, own=True)
        optimization.keep_in(self._state)
        self._session.strategy, self._session.optimization = parallel, optimization
        return Wrapped(parallel, self._session.call_model)

    def fit(self, dataset: Any, compute: Callable[[Any], torch.Tensor], collate_fn: Any = None) -> int | None:
        """Find the largest micro batch that fits this GPU, before the loop; every rank uses the smallest one found.

        compute: a batch of the dataset, as the loader gives it, to the loss. Its result is remembered for this
        program, model and kind of GPU beside the checkpoints. Returns None, and does nothing, without a GPU.
        """
        self._before_start("fit")
        if self._tuning.shards:
            raise TrainingError("job.fit() does not go with join(deterministic=True); accepted: join(micro_batch=...)")
        optimizers = self._session.optimizers()
        check_has_values("job.fit()", self._session.model().module)
        dataset = mapped(dataset)
        limit = self._tuning.max_batch or len(dataset)
        probe = Probe(self._session.model().module, optimizers.optimizers, self.device, dataset, compute, collate_fn)
        found = probe.run(limit, self._session.saving.memory())
        if found is not None:
            self._tuning.fitted = found
        return found

    def replicate(self, model: torch.nn.Module, **options: Any) -> Any:
        """Make a model data parallel whose loop stays the script's (next(), share()), instead of
        DistributedDataParallel(model); any number of models. Optimizers go to keep().

        options: passed on to DistributedDataParallel. Returns what is called like the model.
        """
        self._before_start("replicate")
        return self._own_loop.replicate(model, options, self._session.membership.layout)

    def shard(
        self,
        model: torch.nn.Module,
        shard: Callable[[torch.nn.Module, Any], Any] | None = None,
        *,
        init: Callable[[torch.nn.Module], Any] | None = None,
    ) -> Any:
        """As replicate(), and cut the model up over the ranks (fully_shard), on whatever world there is.

        shard: function(model, mesh) that calls fully_shard(..., mesh=mesh), again in each world; None: each block, and
        the model. init: function(module) for a model on the meta device, whose modules reset_parameters() does not set
        alone. Every rank calls the model equally often: evaluate on all ranks, or in once().
        """
        self._before_start("shard")
        return self._own_loop.shard(model, {"shard": shard, "init": init}, self._session.membership.layout)

    def keep(self, within: MutableMapping[str, Any] | None = None, /, *names: str, **parts: Any) -> None:
        """Have more survive: objects with state_dict() and load_state_dict(), lists and dicts, by name=object, where
        None is nothing; and variables, by their names within globals() or vars(object). What a variable, or a list, is
        on rank 0 counts."""
        self._before_start("keep")
        if within is not None:
            self._variables += 1
            self._state.keep(f"Variables{self._variables}", Variables(within, names))
        for name, part in parts.items():
            if part is None:
                continue  # a scaler, or an average, of a script that may do without
            self._state.keep(name, Collection(part) if type(part) in (list, dict) else part)

    def begin_at(self, epoch: int = 0, *, step: int = 0, samples: int | None = None, in_epoch: int = 0) -> None:
        """Go on with a training that was begun without this job; the script has loaded its model, optimizers and
        schedulers. Counts only where no checkpoint of this job is found, and not on a worker that joins.

        epoch: epochs that are done. step: optimizer steps. samples: trained on; None: `step` times join()'s batch.
        in_epoch: samples of the epoch under way that are done; so many of this job's order are left out.
        """
        self._before_start("begin_at")
        counts = {"epoch": epoch, "step": step, "samples": samples or 0, "in_epoch": in_epoch}
        for name, value in counts.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise TrainingError(f"job.begin_at({name}={value!r}) is not accepted; accepted: a whole number, from 0")
        each = self._tuning.each
        self._session.starts_at = (
            epoch,
            step,
            step * self._tuning.base if samples is None else samples,
            in_epoch - in_epoch % each,
        )

    def on_each_node(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Before the loop: call function(*args, **kwargs) in one process of each node while that node's other workers
        wait; every worker gets the result, also one that joins there later. For what has to lie on a node's own disk.
        """
        self._before_start("on_each_node")
        self._onces += 1
        return on_each_node(self._session, self._onces, function, *args, **kwargs)

    def tracker(self, open: Callable[[int], Any]) -> Tracker:
        """What logs this run: `open(step)` makes it, a SummaryWriter, say, on the process that is rank 0, when it is
        first used in the loop. On others, and before the loop, calls to it do nothing.

        step: the first that it logs, as global_step counts. When rank 0 moves to another process it is closed, and
        opened there; before each checkpoint it is flushed.
        """
        self._before_start("tracker")
        return self._session.trackers.add(open)

    def _before_start(self, call: str) -> None:
        if self._begun:
            raise TrainingError(f"job.{call}() was called after the loop had begun; call it before")

    # -- the loop ------------------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs still to be done, from the one under way where the training was restored."""
        if self._begun:
            raise TrainingError("job.epochs() was called twice; one loop over the epochs is one training")
        if self._session.strategy is None:
            raise TrainingError("job.epochs() was called before job.wrap(model, optimizer); wrap the model first")
        self._begun, epoch_loop = True, self._epoch_loop
        self._onces = 0
        self._session.reporting.length.epochs = count
        if self._own_loop.models:
            self._own_loop.begin("job.epochs()")
        else:
            self._session.world_switch.repeats_steps = True
            self._session.begin()
            self._session.optimizers().watch(self._state.parts.values(), lambda: epoch_loop.micro is not None)
        epoch_loop.open = True
        joins = self._session.membership.source == "survivor"
        self._session.pass_boundary.enter(self._state.progress, joins, self.log)
        self._left, over = True, False
        try:
            while self._state.progress.epoch < count and not epoch_loop.stopped:
                epoch_loop.number = self._onces = 0
                yield self._state.progress.epoch
                if not epoch_loop.stopped:
                    self._state.progress.next_epoch()
                    self._session.pass_boundary.begin()
            self._left, over = False, self._state.progress.epoch >= count
        except GeneratorExit:
            self._left = not on_purpose()
            raise
        finally:
            epoch_loop.open = False
            self._session.pass_boundary.leave()
            if over:
                self._session.pass_boundary.end()
            if not self._left:
                self._session.finish(finished=over)

    def stop(self) -> None:
        """End the training before its last epoch: the loops over loader and epochs end, and next() returns False. Call
        it on every rank."""
        self._epoch_loop.stopped = self._own_loop.stopped = True

    def loader(self, dataset: Any, *, shuffle: bool | None = None, **options: Any) -> Loader:
        """Passes over the dataset, instead of DistributedSampler and DataLoader: this rank's micro batches, on its
        device. Made before the loop or in it; each time that it is iterated over, inside job.epochs(), is one pass.

        dataset: map-style, or made of shards that are read in order (shard_streams.Shards), of which `shuffle` mixes
        the order only; or a DataLoader, of which dataset, options and whether it shuffles are taken. shuffle: None for
        a dataset: yes. options: DataLoader's (num_workers, collate_fn, pin_memory, ...), without those that share out
        work.
        """
        dataset, taken = source_of(dataset)
        shuffle = taken.pop("shuffle", True) if shuffle is None else shuffle
        options = {**{name: value for name, value in taken.items() if name != "shuffle"}, **options}
        check_loader(dataset, options, self._tuning.each)
        return Loader(self, dataset, options, shuffle)

    def step(
        self,
        loss: torch.Tensor,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        *,
        weight: float | torch.Tensor | None = None,
    ) -> bool:
        """Backward, and with the last micro batch of a step: clip, optimizer step, zero_grad, schedule.

        loss: the mean over the batch that the loader just gave (a scalar). weight: what it is the mean over, where
        that is not the samples: labelled tokens, pixels, pairs; the step's loss is then the mean over all of them, of
        all ranks and micro batches. clip_norm, clip_value: as
        clip_grad_norm_, clip_grad_value_; of both, the value first.
        Returns whether an optimizer step was taken: a step that failed with a new world is done again by the old one.
        A resize, when there is one, comes with the loader's next batch.
        """
        session = self._session
        voted = self._epoch_loop.learn(loss, weight)
        if voted is None or not session.world_switch.settle():
            return False
        session.last_state.step_begins()
        session.optimizers().step(session.model(), clip_norm, clip_value, self._state.progress)
        session.stepped(*voted)
        return True

    # -- the script's own loop -----------------------------------------------------------------------------------

    def next(self, steps: int | None = None) -> bool:
        """The boundary between two iterations of a loop of the script's own: `while job.next():`.

        Here workers join and leave, checkpoints are taken, and a worker that joins, or starts again, gets the state:
        the models, what keep() was given, and the generators, which are seeded for each iteration. Returns False, and
        ends the training, once so many steps have been done. Every rank calls it.
        """
        self._begun = True
        return self._own_loop.next(steps)

    def share(self, total: int, slice: int = 1) -> Share:
        """This rank's part of `total` micro batches, or samples, of the iteration; `total` is the same on every rank.
        slice: what the part, and `total`, are a multiple of.

        Iterating over it gives the numbers of this rank's micro batches, each with the generators seeded for it, and
        exchanges gradients with the last one. `positions` are the same as a range, for a script that takes its samples
        at once. A loss is the mean over this rank's own part.
        """
        return self._own_loop.share(total, slice)

    def weigh(self, weight: float | torch.Tensor) -> None:
        """What this rank's loss is the mean over, where that is not the samples: labelled tokens, pixels, pairs; the
        iteration's loss is then the mean over all of them, of all ranks.

        In a loop of the script's own, after job.share(total) or in the loop over job.loader(), and before the model is
        called. weight: of the whole of this rank's part. Every rank calls it.
        """
        self._own_loop.weigh(float(weight))

    # -- once, and the end ---------------------------------------------------------------------------------------

    def once(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call function(*args, **kwargs) on rank 0 while the others wait; every rank gets the result.

        Before the loop, where no worker has a rank, the first one to come calls it. The result is kept beside the
        checkpoints, and the call not made again for workers that join later or after a restart of this job.
        Where it stands before or behind a pass over the data, its result is written into a checkpoint, and the call
        not made again for workers that join later or after a restart; inside a pass that code does not run again, and
        each call is made. The result has to be picklable; one that is written, what a checkpoint may hold. Modes that
        the function sets (eval) are undone. A sharded model needs all its ranks: there every rank calls the function,
        and rank 0's result counts; elsewhere a collective inside the function raises TrainingError.
        """
        if not self._begun:
            self._onces += 1
            return before_loop(self._session, self._onces, function, *args, **kwargs)
        between = self._epoch_loop.open and self._session.feed is None
        if between:
            self._session.look_at_variables()
        if between and self._onces in self._state.progress.once:
            self._onces += 1
            return self._state.progress.once[self._onces - 1]
        self._session.world_switch.settle()
        result = on_rank_0(self._session, function, args, kwargs)
        if between:
            check_kept(self._session, function, result)
            self._state.progress.once[self._onces] = result
            self._onces += 1
            self._session.save()
        self._session.reporting.meter.resume()
        return result

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model's state_dict to a file, as torch.save does, with whole tensors where the model is sharded.

        Every rank calls it, and rank 0 writes, as with once().
        """
        if not self._begun:
            raise TrainingError(
                "job.save() was called before the loop, where no worker has a model to save; call it in it"
            )
        self.once(save, self._session, path)

    def full_state(self) -> dict[str, Any]:
        """The model's state_dict with whole tensors in host memory on rank 0; empty on the other ranks.

        Between two passes over the data call it in a function that once() is given, not by itself: code there runs
        again on a worker that joins.
        """
        return self._session.model().full_state(keep=self.rank == 0)

    def close(self) -> None:
        """Take leave of the group and of the supervisor; also called at exit."""
        atexit.unregister(self.close)
        self._own_loop.close()
        if self._left and not failed():
            self._session.finish(finished=False, together=False)
        if self._session.optimization is not None:
            self._session.optimization.end()
        self._session.close()
        self._epoch_loop.close()
        if self in _current:
            _current.remove(self)


class Loader:
    """An iterable over this rank's micro batches of one pass after another; made by job.loader()."""

    def __init__(self, job: Job, dataset: Any, options: dict[str, Any], shuffle: bool) -> None:
        self._job, self._options, self._shuffle = job, options, shuffle
        self._samples = whole(len(mapped(dataset)), job._tuning.each)
        self._asked = False
        """The script has asked how much is done."""
        self._say: Callable[[str], None] | None = job.log
        """Until the first pass."""
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        epoch_loop = self._job._epoch_loop
        batches = epoch_loop.iterate(epoch_loop.feed(self.dataset, self._options), self._shuffle)
        say, self._say = self._say, None
        return Enumerated(batches, self._done(), self._asked, say)

    def __len__(self) -> int:
        """Optimizer steps of a whole pass at the current global batch."""
        return -(-self._samples // self._job.batch)

    @property
    def done(self) -> int:
        """Batches of the pass that comes which are done already, where this worker joins or starts again within it. At
        most one more than there are where the batch has changed. `enumerate(loader)` begins its count there by itself,
        what stands around it does not: `tqdm(enumerate(loader), initial=loader.done)`.
        """
        self._asked = True
        return self._done()

    def _done(self) -> int:
        return self._job._epoch_loop.done(len(self), self._job.batch)
