"""Accelerate: `job = elastic(accelerator, batch=256, max_batch=4096)` before `accelerator.prepare(...)`.

    job = elastic(Accelerator(), batch=256, max_batch=4096)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in job.epochs(90):  # instead of range(90)
        for batch in loader: ...  # as it was: backward, clip_grad_norm_, step, zero_grad

The loop stays the script's; what a step trains on, its rate and the worlds are the job's. One prepare() takes the
model, its optimizer, schedulers, and first of the DataLoaders the one that is trained on. accelerator.sync_gradients
is set with a step's last micro batch, as it does with accumulation. To Accelerate every worker is a process alone: each
runs the whole evaluation, and gather() gives back what it gets, but under torchrun.

Limits: one model, replicated or sharded (FSDP2), one optimizer, one training DataLoader. Takes the place of some of the
Accelerator's public methods, and writes the rank into its state; tested with 1.15.
"""

# mypy: disallow-subclassing-any=False
# The library's types are not looked at: it need not be installed.

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate import __version__ as version
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.tracking import GeneralTracker
from torch.utils.data import DataLoader

from slurm_elastic.protocol.errors import TrainingError

from .adapters.loop import Counted, check_options, check_parts, rank_to_show, refuse, taken_over, whole, wrap_options
from .job import Job, join
from .loops.enumerated import Enumerated
from .loops.epochs import VotedStep
from .state.trackers import Tracker

TRIED = "1.15"
REPLACED = (
    "prepare", "backward", "accumulate", "unwrap_model", "register_for_checkpointing", "save_state", "load_state",
    "register_save_state_pre_hook", "register_load_state_pre_hook", "init_trackers", "log", "get_tracker",
    "end_training", "clip_grad_norm_", "get_state_dict"
)  # fmt: skip
_HOOKS = (
    "a hook of accelerator.register_{}_state_pre_hook(), called without models, which the job keeps by itself, {}; "
    "accepted: hooks that save and load the rest, or none and accelerator.register_for_checkpointing(part)"
)
USED = ("prepare_model", "prepare_optimizer", "sync_gradients", "scaler", "ddp_handler", "state", *REPLACED)


def elastic(
    accelerator: Any,
    batch: int,
    max_batch: int | None = None,
    *,
    strategy: str = "ddp",
    shard: Any = None,
    **options: Any,
) -> Job:
    """Make an Accelerator elastic, in place, and return the job. The other arguments are those of join().

    batch: the global batch, in samples, that the learning rate was tuned for; the DataLoader's own is not used.
    strategy: "fsdp" shards the model (FSDP2); shard: as in job.wrap().
    Raises TrainingError for an Accelerator that cannot be trained with elastically.
    """
    check(accelerator)
    check_options(options, "elastic")
    hold = _Hold(accelerator, join(batch, max_batch, **options), strategy, shard)
    for name in REPLACED:
        setattr(accelerator, name, getattr(hold, name))
    hold.tell_rank()
    return hold.job


def check(accelerator: Any) -> None:
    """Raise TrainingError for an Accelerator that cannot be trained with elastically."""
    if not isinstance(accelerator, Accelerator):
        raise TrainingError(f"elastic() was given a {type(accelerator).__name__}; accepted: an accelerate.Accelerator")
    check_parts("accelerate", version, TRIED, [(accelerator, name) for name in USED])
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    fsdp = os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"
    wrong = [
        (fsdp or kind == "FSDP", "an fsdp_plugin, or Accelerate's configuration for FSDP,", "elastic(strategy='fsdp')"),
        (kind not in ("NO", "MULTI_CPU", "MULTI_GPU"), f"distributed_type {kind}", "data parallel replicas"),
        (accelerator.gradient_accumulation_steps != 1, "gradient_accumulation_steps", "elastic(micro_batch=...)"),
        (bool(accelerator._models), "elastic(accelerator) after prepare()", "elastic() before prepare()"),
    ]
    refuse("elastic(accelerator)", wrong)


class _Hold:
    """What takes the place of an Accelerator's methods; those named in REPLACED."""

    def __init__(self, accelerator: Any, job: Job, strategy: str, shard: Any) -> None:
        self.accelerator, self.job = accelerator, job
        self._strategy, self._shard = strategy, shard
        self._clip, self._get_state_dict = accelerator.clip_grad_norm_, accelerator.get_state_dict
        self._prepare, self._unwrap = accelerator.prepare, accelerator.unwrap_model
        self._init_trackers, self._log = accelerator.init_trackers, accelerator.log
        self._get_tracker = accelerator.get_tracker
        self._hooks = accelerator.register_save_state_pre_hook, accelerator.register_load_state_pre_hook
        self._hooked = False
        self._tracker: Tracker | None = None
        self._net: Any = None
        self._kept = 0
        self.voted: VotedStep | None = None
        """Gradients are complete, and the optimizer has not been stepped."""

    def tell_rank(self) -> None:
        """Only rank 0 prints and writes."""
        for state in (self.accelerator.state, PartialState()):
            state.process_index = rank_to_show(self.job)
            if self.accelerator.num_processes == 1:  # under `selastic run`; else Accelerate knows by itself
                state.local_process_index = rank_to_show(self.job)

    def prepare(self, *parts: Any, device_placement: Any = None) -> Any:
        models = [part for part in parts if isinstance(part, torch.nn.Module)]
        if not models:  # of an evaluation, say
            return self._prepare(*parts, device_placement=device_placement)
        ready = self._wrap(parts, models)
        return ready[0] if len(ready) == 1 else tuple(ready)

    def _wrap(self, parts: tuple[Any, ...], models: list[Any]) -> list[Any]:
        accelerator, job = self.accelerator, self.job
        optimizers = [part for part in parts if isinstance(part, torch.optim.Optimizer)]
        loaders = [part for part in parts if isinstance(part, DataLoader)]
        schedulers = [part for part in parts if isinstance(part, torch.optim.lr_scheduler.LRScheduler)]
        for name, found in (("model", models), ("optimizer", optimizers)):
            if len(found) != 1:
                raise TrainingError(f"accelerator.prepare() was given {len(found)} {name}s at a time; accepted: one")
        if not loaders:
            raise TrainingError("accelerator.prepare() was given a model without the DataLoader that it is trained on")
        # For mixed precision; evaluation_mode keeps it from being wrapped for a world of Accelerate's.
        model = accelerator.prepare_model(models[0], evaluation_mode=True)
        optimizer = accelerator.prepare_optimizer(optimizers[0])
        optimizer.__class__ = type("ElasticOptimizer", (_Optimizer, AcceleratedOptimizer), {"_hold": self})
        handler = accelerator.ddp_handler
        replicas: dict[str, Any] = handler.to_kwargs() if handler is not None else {}
        options = wrap_options(model, self._strategy, self._shard, replicas)
        self._net = job.wrap(model, optimizer.optimizer, schedulers, scaler=accelerator.scaler, **options)
        taken = {id(models[0]): self._net, id(optimizers[0]): optimizer, id(loaders[0]): _Loader(self, loaders[0])}
        taken |= {id(scheduler): Counted(scheduler) for scheduler in schedulers}
        return [taken[id(part)] if id(part) in taken else self._prepare(part) for part in parts]

    def backward(self, loss: torch.Tensor, weight: float | torch.Tensor | None = None, **_: Any) -> None:
        voted = self.job._epoch_loop.learn(loss, weight)
        if voted is not None and not self.job._session.world_switch.settle():
            voted = None  # the world that this step began in is gone: the step comes again
            self.accelerator.sync_gradients = False
        self.voted = voted

    @contextmanager
    def accumulate(self, *_: Any) -> Iterator[None]:
        yield  # the job cuts micro batches, and says which is a step's last one

    def unwrap_model(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        return self._unwrap(model.module if model is self._net else model, *args, **kwargs)

    def clip_grad_norm_(self, *args: Any, **kwargs: Any) -> Any:
        return whole(self._clip(*args, **kwargs))

    def get_state_dict(self, model: Any, unwrap: bool = True) -> Any:
        """Of a sharded model with whole tensors on rank 0; every rank calls it."""
        if model is self._net and self._strategy == "fsdp":
            return self.job.full_state()
        return self._get_state_dict(model, unwrap)

    def register_for_checkpointing(self, *parts: Any) -> None:
        for part in parts:
            self.job.keep(**{f"registered{self._kept}": part})
            self._kept += 1

    def save_state(self, output_dir: Any = None, *_: Any, **__: Any) -> None:
        """A checkpoint of the job's own, with the next step."""
        self.job._session.saving.ask()
        self.job.log(f"save_state({str(output_dir or '')!r}): the job's own checkpoint is written, and nothing there")

    def register_save_state_pre_hook(self, hook: Any) -> Any:
        self._keep_hooked()
        return self._hooks[0](hook)

    def register_load_state_pre_hook(self, hook: Any) -> Any:
        self._keep_hooked()
        return self._hooks[1](hook)

    def _keep_hooked(self) -> None:
        if not self._hooked:
            self.job.keep(accelerate_hooks=_Hooked(self))
            self._hooked = True

    def load_state(self, *_: Any, **__: Any) -> None:
        raise TrainingError(
            "accelerator.load_state() is not possible with elastic(accelerator); accepted: none, an elastic job goes "
            "on from its own checkpoints"
        )

    def init_trackers(self, project_name: str, config: Any = None, init_kwargs: Any = None) -> None:
        """On the process that is rank 0, when it first logs: by itself Accelerate has every worker do it."""
        options = dict(init_kwargs or {})

        def open(step: int) -> _Trackers:
            purged = {"purge_step": step, **options.get("tensorboard", {})}
            began = {"project_name": project_name, "config": config if step <= 1 else None}
            self._init_trackers(**began, init_kwargs={**options, "tensorboard": purged})
            return _Trackers(self.accelerator, self._log)

        self._tracker = self.job.tracker(open)

    def log(self, values: dict[str, Any], step: int | None = None, log_kwargs: Any = None) -> None:
        if self._tracker is not None:
            self._tracker.log(values, step=step, log_kwargs=log_kwargs)

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        if self._tracker is not None and self.job.rank == 0:
            return self._tracker.get(self._get_tracker, name, unwrap)
        return GeneralTracker(_blank=True)

    def end_training(self) -> None:
        self.job._session.trackers.close()

    def stepped(self, voted: VotedStep) -> None:
        self.voted = None
        self.job._session.stepped(*voted)


class _Trackers:
    """An Accelerator's, while this process is rank 0."""

    def __init__(self, accelerator: Any, log: Any) -> None:
        self._accelerator, self.log = accelerator, log

    def get(self, find: Any, name: str, unwrap: bool) -> Any:
        return find(name, unwrap)

    def close(self) -> None:
        for tracker in self._accelerator.trackers:
            tracker.finish()
        self._accelerator.trackers.clear()


class _Hooked:
    """What hooks of save_state() write beside the models, such as averaged weights, as a part that survives."""

    def __init__(self, hold: _Hold) -> None:
        self._hold = hold

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Their files, of which this worker is the writer as long as it takes. Hooks are given no models: those are the
        job's."""
        accelerator = self._hold.accelerator
        with TemporaryDirectory(prefix="selastic-") as folder:
            with self._as_main():
                self._call(accelerator._save_model_state_pre_hook, [], [], folder)
            paths = [path for path in sorted(Path(folder).rglob("*")) if path.is_file() and path.stat().st_size]
            files = {str(path.relative_to(folder)): bytearray(path.read_bytes()) for path in paths}
        if files and not accelerator._load_model_state_pre_hook:
            raise TrainingError(_HOOKS.format("save", f"wrote {next(iter(files))}, and no hook reads it"))
        return {name: torch.frombuffer(content, dtype=torch.uint8) for name, content in files.items()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        with TemporaryDirectory(prefix="selastic-") as folder:
            for name, content in state.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(ctypes.string_at(content.cpu().data_ptr(), content.numel()))
            if state:
                self._call(self._hold.accelerator._load_model_state_pre_hook, [], folder)

    @contextmanager
    def _as_main(self) -> Iterator[None]:
        state, before = PartialState(), PartialState().process_index
        self._hold.accelerator.state.process_index = state.process_index = 0
        try:
            yield
        finally:
            self._hold.accelerator.state.process_index = state.process_index = before

    def _call(self, hooks: dict[int, Any], *given: Any) -> None:
        for hook in list(hooks.values()):
            try:
                hook(*given)
            except Exception as error:
                kind = "load" if len(given) == 2 else "save"
                raise TrainingError(_HOOKS.format(kind, f"failed: {type(error).__name__}: {error}")) from error


class _Optimizer:
    """Mixed into AcceleratedOptimizer."""

    _hold: _Hold

    def step(self, closure: Any = None) -> None:
        hold = self._hold
        if hold.job._epoch_loop.micro is not None:
            raise TrainingError("optimizer.step() was called before accelerator.backward(loss); call it after")
        if hold.voted is None:
            return  # in the middle of a step, or of nothing
        hold.job._session.last_state.step_begins()
        with hold.job._session.optimizers().stepping(hold.job._state.progress):
            super().step(closure)  # type: ignore[misc]
        super().zero_grad()  # type: ignore[misc]
        hold.stepped(hold.voted)

    def zero_grad(self, set_to_none: Any = None) -> None:
        """Nothing: gradients are cleared with the step, and not between a step's micro batches."""


class _Loader:
    """The training DataLoader: this rank's micro batches of one pass."""

    def __init__(self, hold: _Hold, loader: Any) -> None:
        self._hold = hold
        self._feed, self._shuffle = taken_over(loader, hold.job)
        self.dataset = loader.dataset
        self._say: Callable[[str], None] | None = hold.job.log

    def __len__(self) -> int:
        """Optimizer steps of a whole pass at the current global batch."""
        return -(-self._feed.samples // self._hold.job.batch)

    def __iter__(self) -> Iterator[Any]:
        job, say = self._hold.job, self._say
        self._say = None
        return Enumerated(self._batches(), job._epoch_loop.done(len(self), job.batch), False, say)

    def _batches(self) -> Iterator[Any]:
        hold = self._hold
        epoch_loop = hold.job._epoch_loop
        hold.tell_rank()
        for batch in epoch_loop.iterate(self._feed, self._shuffle):
            hold.tell_rank()
            hold.accelerator.sync_gradients = epoch_loop.micro is not None and epoch_loop.micro.last
            yield batch
            if hold.voted is not None:
                raise TrainingError(
                    "optimizer.step() was not called after accelerator.backward(loss); call it for each"
                )
