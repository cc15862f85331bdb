"""What a training script uses: join, wrap, epochs, loader, step, once, keep.

The same script trains alone, under torchrun, and under the supervisor, where the job's world changes between two steps
without the script noticing: see membership.py for how, data.py for which sample is next, state.py for what survives.
Every rank has to run the same calls in the same order. Code after the loop runs on every rank of the last world.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from . import batch as batches
from . import checkpoint
from . import world as worlds
from .audit import Recorder
from .batch import Ramp, Rate
from .data import Feed, Micro, Slicing, mix, seed_all, to_device
from .errors import TrainingError
from .link import Coming
from .membership import Membership
from .parallel import Reader, Replicated, Wrapped
from .state import State
from .telemetry import Meter, Position, Shape
from .tuning import Tuning
from .world import World, WorldNotFormed

_current: list[Job] = []


def join(
    batch: int,
    max_batch: int | None = None,
    lr: str = "auto",
    micro_batch: int | None = None,
    seed: int = 0,
    *,
    checkpoints: str | os.PathLike[str] | None = None,
    checkpoint_every_s: float = 600.0,
    ramp: float = 0.01,
) -> Job:
    """Take part in the training.

    batch: the global batch, in samples, that the learning rate was tuned for. max_batch: the largest global batch at
    which its result is acceptable; None: whatever the elastic request allows. lr: how the rate follows the batch,
    one of batch.RULES. micro_batch: most samples one rank computes at a time; None: its whole slice.
    seed: of data order and of every rank's generators. checkpoints: a directory that every node sees; default: the
    job's own under `selastic run`, none elsewhere. ramp: share of an epoch over which a rate rises after a grow.
    Raises TrainingError for a value that is not accepted.
    """
    batches.check_join(batch, max_batch, micro_batch, lr)
    if _current:
        raise TrainingError("join() was called twice in one process; call it once, and hand the job on")
    job = Job(Membership(), Tuning(batch, max_batch, lr, micro_batch, seed, ramp), checkpoints, checkpoint_every_s)
    _current.append(job)
    return job


class Job:
    """One worker's view of the training; made by join()."""

    def __init__(
        self,
        membership: Membership,
        tuning: Tuning,
        checkpoints: str | os.PathLike[str] | None,
        checkpoint_every_s: float,
    ) -> None:
        self._membership = membership
        self._tuning = tuning
        self._state = State()
        self._meter = Meter()
        self._parallel: Replicated | None = None
        self._optimizers: list[torch.optim.Optimizer] = []
        self._schedulers: list[Any] = []
        self._scaler: Any = None
        self._feeds: dict[tuple[int, str], Feed] = {}
        self._pass: tuple[Feed, Slicing] | None = None
        self._micro: Micro | None = None
        self._own: list[int] = []
        self._spoken: deque[tuple[Coming | None, Reader]] = deque()
        self._in_epochs = self._begun = self._stopped = False
        self._loaders = self._onces = 0
        self._pause: tuple[float, float, int, float] | None = None
        self._announce = False
        self._ended = 0.0
        self._signal = 0
        self._every_s = checkpoint_every_s
        self.device: torch.device = membership.device()
        seed_all(tuning.seed)
        audit = os.environ.get("SELASTIC_AUDIT")
        self._audit = Recorder(audit, membership.worker) if audit else None
        job_dir = os.environ.get("SELASTIC_JOB_DIR")
        where = checkpoints or (Path(job_dir) / "checkpoints" if job_dir else None)
        self._writer = checkpoint.Writer(Path(where), self._saved) if where else None
        if membership.link is not None:
            membership.link.on_tick = self._report
        elif self._writer is not None and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, self._on_signal)
        atexit.register(self.close)

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This worker's rank; -1 until it is in a world."""
        return self._membership.world.rank if self._membership.world else -1

    @property
    def world_size(self) -> int:
        """Ranks in the current world; 0 until there is one."""
        return self._membership.world.size if self._membership.world else 0

    @property
    def generation(self) -> int:
        """Number of the current world; -1 until there is one."""
        return self._membership.world.generation if self._membership.world else -1

    @property
    def batch(self) -> int:
        """The current global batch, in samples."""
        return self._state.progress.batch or self._membership.batch or self._tuning.base

    @property
    def epoch(self) -> int:
        return self._state.progress.epoch

    @property
    def samples(self) -> int:
        """Samples trained on since the start of the training, over all ranks and worlds."""
        return self._state.progress.samples

    @property
    def global_step(self) -> int:
        """Optimizer steps since the start of the training."""
        return self._state.progress.step

    @property
    def rate(self) -> Rate:
        """How the optimizers' rates are changed at this moment."""
        return self._tuning.rate(self._state.progress)

    def steps(self, epochs: int, samples: int) -> int:
        """The length of a schedule over `epochs` passes of `samples` samples: in base batches, whatever the batch is
        at the time. Schedulers given to wrap() are advanced once per base batch.
        """
        return max(1, -(-epochs * samples // self._tuning.base))

    def log(self, *words: object) -> None:
        """Print on rank 0 only, at once."""
        if self.rank == 0:
            print(*words, flush=True)

    # -- before the loop -----------------------------------------------------------------------------------------

    def wrap(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        scheduler: Any = None,
        *,
        scaler: Any = None,
        **ddp_options: Any,
    ) -> Any:
        """Make the model data parallel, instead of DistributedDataParallel(model).

        optimizer, scheduler: one or a sequence. Schedulers are advanced by the job, one step per base batch of
        samples; ReduceLROnPlateau and those stepped by epoch belong to keep(). scaler: a torch.amp.GradScaler.
        ddp_options: passed on to DistributedDataParallel, e.g. find_unused_parameters.
        Returns what is called like the model; the model itself stays as it is, state_dict included.
        """
        self._before_start("wrap")
        if self._parallel is not None:
            raise TrainingError("job.wrap() was called twice; wrap one model (an nn.Module may hold several)")
        if not isinstance(model, torch.nn.Module):
            raise TrainingError(f"job.wrap() was given a {type(model).__name__}; accepted: a torch.nn.Module")
        self._optimizers = _listed(optimizer)
        self._schedulers = _listed(scheduler)
        for entry in self._optimizers:
            if not isinstance(entry, torch.optim.Optimizer):
                raise TrainingError(f"job.wrap() was given the optimizer {type(entry).__name__}; accepted: torch.optim")
        self._tuning.use(self._optimizers)
        self._parallel = Replicated(model, ddp_options)
        self._parallel.on_error = self._membership.broken
        self._state.keep("Model", model)
        for kind, parts in (("Optimizer", self._optimizers), ("Scheduler", self._schedulers)):
            for number, part in enumerate(parts):
                self._state.keep(f"{kind}{number}", part)
        if scaler is not None:
            self._scaler = scaler
            self._state.keep("Scaler", scaler)
        return Wrapped(self._parallel)

    def keep(self, **parts: Any) -> None:
        """Have more objects survive: anything with state_dict() and load_state_dict()."""
        self._before_start("keep")
        for name, part in parts.items():
            self._state.keep(name, part)

    def _before_start(self, call: str) -> None:
        if self._begun:
            raise TrainingError(f"job.{call}() was called after job.epochs() had begun; call it before the loop")

    # -- the loop ------------------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs still to be done, from the one under way where the training was restored."""
        if self._begun:
            raise TrainingError("job.epochs() was called twice; one loop over the epochs is one training")
        self._begin()
        progress = self._state.progress
        self._in_epochs = True
        try:
            while self._state.progress.epoch < count and not self._stopped:
                self._loaders = self._onces = 0
                yield self._state.progress.epoch
                if not self._stopped:
                    self._state.progress.next_epoch()
        finally:
            self._in_epochs = False
            progress = self._state.progress
            if progress.epoch >= count or self._stopped or isinstance(sys.exc_info()[1], GeneratorExit):
                self._done(finished=progress.epoch >= count)

    def stop(self) -> None:
        """End the training before its last epoch: the loops over loader and epochs end. Call it on every rank."""
        self._stopped = True

    def loader(self, dataset: Any, *, shuffle: bool = True, **options: Any) -> Loader:
        """One pass over the dataset, instead of DistributedSampler and DataLoader: this rank's micro batches, on its
        device. options: DataLoader's (num_workers, collate_fn, pin_memory, ...), without those that share out work.
        """
        if not self._in_epochs:
            raise TrainingError("job.loader() was called outside the loop over job.epochs(); call it inside")
        key = (id(dataset), repr(sorted((name, repr(value)) for name, value in options.items())))
        feed = self._feeds.get(key)
        if feed is None or feed.dataset is not dataset:
            feed = self._feeds[key] = Feed(dataset, self._tuning.seed, options)
        return Loader(self, feed, shuffle)

    def _iterate(self, feed: Feed, shuffle: bool) -> Iterator[Any]:
        progress = self._state.progress
        if not self._in_epochs or self._pass is not None:
            raise TrainingError("a job.loader() was iterated outside job.epochs() or inside another loader's loop")
        ordinal = self._loaders
        self._loaders += 1
        if ordinal < progress.loader:
            return  # done before the restart, or before this worker joined
        if progress.pass_samples not in (0, feed.samples):
            raise TrainingError(
                f"the dataset has {feed.samples} samples here and {progress.pass_samples} where the training began; "
                "every worker needs the same dataset"
            )
        progress.pass_samples = feed.samples
        self._boundary()  # a loop that was left early leaves a step's words unread
        progress = self._state.progress
        slicing = self._slicing()
        self._pass = (feed, slicing)
        feed.start(progress.epoch, ordinal, shuffle, progress.cursor, slicing)
        self._meter.resume()
        try:
            while not self._stopped:
                asked = time.perf_counter()
                got = feed.next()
                if got is None:
                    break
                self._meter.waited(time.perf_counter() - asked)
                yield self._hand_out(*got)
                if self._micro is None:
                    self._boundary()
                else:
                    raise TrainingError("job.step(loss) was not called for a batch of job.loader(); call it for each")
        finally:
            self._pass = self._micro = None
        progress = self._state.progress
        progress.loader, progress.cursor, progress.pass_samples = ordinal + 1, 0, 0

    def _hand_out(self, micro: Micro, samples: Any) -> Any:
        self._micro = micro
        self._model().expect(micro.last)
        value = to_device(samples, self.device)
        seed_all(mix(self._tuning.seed, self._state.progress.step, self.rank, micro.index, 1))
        return value

    def step(self, loss: torch.Tensor, clip_norm: float | None = None) -> bool:
        """Backward, and with the last micro batch of a step: clip, optimizer step, zero_grad, schedule, resize.

        loss: the mean over the batch that the loader just gave (a scalar). clip_norm: as clip_grad_norm_.
        Returns whether an optimizer step was taken.
        """
        micro = self._micro
        if micro is None:
            raise TrainingError("job.step() was called without a batch of job.loader(); call it once for each batch")
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0 or not loss.requires_grad:
            raise TrainingError("job.step(loss) needs a scalar tensor that the model's parameters lead to: a mean loss")
        self._micro = None
        self._own += micro.own
        loss = loss * batches.loss_scale(micro.weight, self.world_size, micro.total)
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        coming, said = None, None
        if micro.last:
            coming, said = self._membership.said(save=self._save_due(), stop=self._signal == signal.SIGTERM)
            self._record(micro)
        reader = self._model().backward(loss, said)
        if reader is None:
            return False
        self._optimize(clip_norm)
        self._advance(micro)
        self._spoken.append((coming, reader))
        self._ended = time.perf_counter()
        if self._announce:
            self._say_running()
        return True

    def _record(self, micro: Micro) -> None:
        if self._audit is not None:
            progress, world = self._state.progress, self._world()
            self._audit.write(
                {
                    "generation": world.generation,
                    "step": progress.step + 1,
                    "epoch": progress.epoch,
                    "batch": micro.total,
                    "rank": world.rank,
                    "size": world.size,
                    "indices": self._own,
                }
            )
        self._own = []

    def _optimize(self, clip_norm: float | None) -> None:
        if clip_norm is not None:
            for optimizer in self._optimizers if self._scaler is not None else ():
                self._scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(self._model().module.parameters(), clip_norm)
        with self._tuning.applied(self._state.progress):
            for optimizer in self._optimizers:
                if self._scaler is None:
                    optimizer.step()
                else:
                    self._scaler.step(optimizer)
        if self._scaler is not None:
            self._scaler.update()
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)

    def _advance(self, micro: Micro) -> None:
        progress = self._state.progress
        progress.step += 1
        progress.samples += micro.total
        progress.cursor = micro.cursor + micro.total
        due = progress.samples // self._tuning.base
        for _ in range(due - progress.schedule):
            for scheduler in self._schedulers:
                scheduler.step()
        progress.schedule = due
        size = max(1, micro.weight)
        shape = Shape(self.generation, self.batch, size, micro.count)
        self._meter.step(micro.total, shape, Position(progress.step, progress.samples, progress.epoch))

    # -- between two steps ---------------------------------------------------------------------------------------

    def _boundary(self) -> None:
        """Act on what all ranks said. In the loader, not in step(): the rest of the loop's body belongs to the step."""
        self._membership.check_lost()
        if len(self._spoken) <= (1 if self.device.type == "cuda" else 0):
            return
        coming, reader = self._spoken.popleft()
        sums = reader()
        if sums.save or sums.stop:
            self._save()
        if sums.stop:
            self._leave_on_signal()
        if sums.switch and coming is not None:
            self._switch(coming)

    def _switch(self, coming: Coming) -> None:
        """Change worlds. What a script holds of the last step (loss, outputs) may stay: its graph has been used up."""
        progress, model = self._state.progress, self._model()
        self._pause = (self._ended, self._meter.median_step(), self.batch, self._rule_factor())
        if coming.rank == 0 and not coming.leave:
            self._save()
        elif coming.leave and self._writer is not None:
            self._writer.wait(10.0)
        old = self._world()
        try:
            position = {"step": progress.step, "samples": progress.samples}
            switched = self._membership.switch(coming, position, model.disconnect)
            self._spoken.clear()
            if not switched:
                self.log(f"world {coming.generation} did not form; training goes on with {old.size} workers")
                self._meter.resume()
                return
            self._connect(has_state=True)
        except WorldNotFormed as error:
            self._membership.fail(coming.generation, str(error))
        if self._audit is not None and self.rank == 0:
            ranks = [old.size, self.world_size]
            self._audit.write({"resize": ranks, "generation": self.generation, "step": progress.step})

    def _begin(self) -> None:
        if self._parallel is None:
            raise TrainingError("job.epochs() was called before job.wrap(model, optimizer); wrap the model first")
        self._begun = True
        membership = self._membership
        tuning = self._tuning
        world = membership.enter(
            {"batch": tuning.base, "max_batch": tuning.max_batch or 0, "micro_batch": tuning.micro_batch or 0}
        )
        survivor = membership.source == "survivor"
        if world.rank == 0 and not survivor:
            self._restore(must=membership.source == "checkpoint")
        try:
            self._connect(has_state=world.rank == 0)
        except WorldNotFormed as error:
            membership.fail(world.generation, str(error))

    def _restore(self, must: bool) -> None:
        """Take the newest checkpoint; `must`: the supervisor says that there is one. A fresh world takes none."""
        membership = self._membership
        found = None
        if self._writer is not None and membership.source != "fresh":
            found = checkpoint.load_newest(self._writer.directory)
        if found is not None:
            saved, captured = found
            self._state.restore(captured)
            self.log(f"restored from {saved.path} at step {saved.step}, {saved.samples} samples")
        elif must:
            where = self._writer.directory if self._writer is not None else "an unset directory"
            raise TrainingError(f"the supervisor asked to restore a checkpoint, and there is none in {where}")
        if self._audit is not None:
            step = self._state.progress.step
            self._audit.write({"restored_from_step": step, "generation": self._world().generation})

    def _connect(self, has_state: bool) -> None:
        """In a new world: hand state to those without, and put the model back together."""
        world, progress = self._world(), self._state.progress
        try:
            steps = worlds.who_has(world, progress.step if has_state else -1)
            joiners = [rank for rank, step in enumerate(steps) if step < 0]
            if len({step for step in steps if step >= 0}) != 1:
                raise TrainingError(f"world {world.generation} has ranks at steps {steps}; all have to be at one step")
            if joiners and (world.rank == 0 or world.rank in joiners):
                channel = worlds.Channel(world, joiners)
                self._state.move(channel, self.device)
                channel.close()
        except RuntimeError as error:
            self._membership.broken(error)
            raise
        self._set_batch()
        self._model().connect(world)
        self._meter.world()
        self._announce = True
        if self._pass is not None:
            feed, _ = self._pass
            self._pass = (feed, self._slicing())
            feed.turn(self._state.progress.cursor, self._pass[1])

    def _set_batch(self) -> None:
        progress = self._state.progress
        wanted = self._membership.batch or progress.batch or self._tuning.base
        batch, problem = self._tuning.accept(wanted, starting=progress.step == 0)
        if problem:
            self.log(problem)
        self._tuning.change(progress, batch)

    def _slicing(self) -> Slicing:
        world = self._world()
        return Slicing(self.batch, world.size, world.rank, self._tuning.micro_batch)

    def _say_running(self) -> None:
        self._announce = False
        pause_s, progress = 0.0, self._state.progress
        if self._pause is not None:
            since, one_step, old_batch, old_factor = self._pause
            self._pause = None
            pause_s = max(0.0, self._ended - since - one_step)
            lr = float(self._optimizers[0].param_groups[0]["lr"])
            lrs = (lr * old_factor, lr * self._rule_factor())
            self.log(self._tuning.describe((old_batch, self.batch), self.world_size, lrs, pause_s))
        if self._membership.link is not None and self.rank == 0:
            fields = {"generation": self.generation, "step": progress.step, "samples": progress.samples}
            self._membership.link.send({"type": "running", **fields, "batch": self.batch, "pause_s": pause_s})

    def _rule_factor(self) -> float:
        """What the rates are multiplied with, once a ramp has ended."""
        return self._tuning.rate_at(Ramp(*self._state.progress.ramp).end).lr

    def _report(self) -> None:
        link = self._membership.link
        report = self._meter.due()
        if report is not None and link is not None and self.rank == 0:
            link.report({"type": "report", **report})

    # -- saving --------------------------------------------------------------------------------------------------

    def _save_due(self) -> bool:
        if self._writer is None or self.rank != 0:
            return self._signal != 0
        wanted, self._signal = self._signal != 0, self._signal if self._signal == signal.SIGTERM else 0
        return wanted or (time.monotonic() - self._writer.last_at >= self._every_s and not self._writer.busy)

    def _save(self) -> None:
        """Rank 0 copies the state; a thread writes it."""
        if self._writer is not None and self.rank == 0:
            self._writer.put(self._state.snapshot())

    def _saved(self, saved: checkpoint.Saved) -> None:
        if self._membership.link is not None:
            fields = {"step": saved.step, "samples": saved.samples, "path": str(saved.path)}
            self._membership.link.send({"type": "saved", **fields})

    def _on_signal(self, number: int, _frame: Any) -> None:
        if self._signal != signal.SIGTERM:
            self._signal = number

    def _leave_on_signal(self) -> NoReturn:
        if self._writer is not None:
            self._writer.wait()
        self.log(f"stopped by a signal at step {self.global_step}; the checkpoint is written")
        sys.exit(128 + signal.SIGTERM)

    # -- once, and the end ---------------------------------------------------------------------------------------

    def once(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call function(*args, **kwargs) on rank 0 while the others wait; every rank gets the result.

        Within one epoch the same call is not made again for workers that join later, nor after a restart from a
        checkpoint that was written behind it. The result has to be picklable. Modes that the function sets (eval) are
        undone.
        """
        if not self._begun:
            raise TrainingError("job.once() was called before job.epochs(); there is no world yet to call it once in")
        progress, ordinal = self._state.progress, self._onces
        self._onces += 1
        if self._in_epochs and ordinal in progress.once:
            return progress.once[ordinal]
        outcome: tuple[bool, Any] = (False, None)
        error: BaseException | None = None
        if self.rank == 0:
            try:
                outcome = (True, self._quietly(function, *args, **kwargs))
            except Exception as caught:
                error = caught
                outcome = (False, f"{type(caught).__name__}: {caught}")
        try:
            worked, result = worlds.share(self._world(), outcome)
        except RuntimeError as caught:
            self._membership.broken(caught)
            raise
        if error is not None:
            raise error
        if not worked:
            raise TrainingError(f"job.once({getattr(function, '__name__', function)}) failed on rank 0: {result}")
        if self._in_epochs:
            progress.once[ordinal] = result
            self._save()
        self._meter.resume()
        return result

    def _quietly(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        model = self._model()
        modes = [(module, module.training) for module in model.module.modules()]
        with model.bypassed():
            result = function(*args, **kwargs)
        for module, mode in modes:
            module.training = mode
        return result

    def _done(self, finished: bool) -> None:
        progress = self._state.progress
        progress.finished = finished
        self._save()
        if self._writer is not None:
            self._writer.wait()
        link = self._membership.link
        if link is not None:
            fields = {"step": progress.step, "samples": progress.samples, "epoch": progress.epoch}
            link.send({"type": "done", **fields})
            link.flush()

    def close(self) -> None:
        """Take leave of the group and of the supervisor; also called at exit."""
        atexit.unregister(self.close)
        if self._parallel is not None:
            self._parallel.disconnect()
        if self._membership.world is not None and self._membership.world.grouped:
            worlds.leave()
        if self._membership.link is not None:
            self._membership.link.close()
        self._feeds.clear()
        if self in _current:
            _current.remove(self)

    def _world(self) -> World:
        if self._membership.world is None:
            raise TrainingError("there is no world yet; it forms when job.epochs() begins")
        return self._membership.world

    def _model(self) -> Replicated:
        if self._parallel is None:
            raise TrainingError("job.wrap(model, optimizer) has not been called; wrap the model before the loop")
        return self._parallel


class Loader:
    """An iterable over this rank's micro batches of one pass; made by job.loader()."""

    def __init__(self, job: Job, feed: Feed, shuffle: bool) -> None:
        self._job, self._feed, self._shuffle = job, feed, shuffle

    def __iter__(self) -> Iterator[Any]:
        return self._job._iterate(self._feed, self._shuffle)

    def __len__(self) -> int:
        """Optimizer steps of a whole pass at the current global batch."""
        return -(-self._feed.samples // self._job.batch)


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
