"""Transformers: `elastic(trainer, max_batch=4096)` before `trainer.train()`, for any transformers.Trainer.

The loop, logging, evaluation and saving stay the Trainer's; what a step trains on, its backward pass, its rate and the
worlds are the job's. The batch that the rate was tuned for is per_device_train_batch_size times
gradient_accumulation_steps: what the script trains with as one process. Survivors of a resize stay in their process;
the Trainer's state, that of its callbacks, optimizer and scheduler go to workers that join and into the job's own
checkpoints, from which the same script goes on by itself. Losses that count tokens are normalised over all ranks.

Limits: replicas, or a sharded model (FSDP2); whole epochs; shuffled or sequential data; one train() in a process.
Every rank runs the whole evaluation. The loss that is logged is rank 0's share. Uses parts of the Trainer that are not
its public interface; tested with 5.23.
"""

# mypy: disallow-subclassing-any=False
# The library's types are not looked at: it need not be installed.

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import torch
from transformers import Trainer, TrainerCallback
from transformers import __version__ as version
from transformers.trainer_callback import ExportableState

from slurm_elastic.protocol.errors import TrainingError

from .adapters.loop import (
    Counted,
    DrivenLoader,
    FrameworkLoop,
    Part,
    check_options,
    check_parts,
    rank_to_show,
    refuse,
    taken_over,
    whole,
    wrap_options,
)
from .job import Job, join

TRIED = "5.23"
PRIVATE = (
    "_get_num_items_in_batch", "_prepare_for_training", "_run_epoch", "_save", "_save_optimizer_and_scheduler",
    "_track_num_input_tokens", "_wrap_model", "accelerator", "floating_point_ops", "get_batch_samples",
    "get_train_dataloader", "training_step",
)  # fmt: skip
"""What the adapter changes, or calls, of a Trainer."""
OWN = ("is_local_process_zero", "is_world_process_zero", "max_steps", "stateful_callbacks")
"""Parts of the Trainer's state that belong to one worker, or are computed again."""
COUNTED = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")


def elastic(
    trainer: Any,
    max_batch: int | None = None,
    *,
    batch: int | None = None,
    strategy: str = "ddp",
    shard: Any = None,
    **options: Any,
) -> Any:
    """Make a Trainer elastic, in place, and return it. The other arguments are those of join().

    batch: the global batch, in samples, that the learning rate was tuned for; None: what one process would train with.
    strategy: "fsdp" shards the model (FSDP2); shard: as in job.wrap(), None: by the blocks that the model names.
    Raises TrainingError for a Trainer that cannot be trained elastically.
    """
    check(trainer, strategy)
    check_options(options, "elastic")
    args = trainer.args
    if args.gradient_accumulation_steps > 1:
        options.setdefault("micro_batch", args.per_device_train_batch_size)
    batch = batch or args.per_device_train_batch_size * args.gradient_accumulation_steps
    args.gradient_accumulation_steps = 1  # micro batches are cut from what the job hands out
    args.average_tokens_across_devices = False  # they are counted here, over ranks that the Trainer knows nothing of
    job = join(batch, max_batch, **options)
    kind = type(trainer)
    trainer.__class__ = type(f"Elastic{kind.__name__}", (_Elastic, kind), {})
    trainer.accelerator.backward = trainer._elastic_backward
    trainer._hold = _Hold(trainer, job, strategy, shard)
    clip = trainer.accelerator.clip_grad_norm_
    trainer.accelerator.clip_grad_norm_ = lambda *args, **kwargs: whole(clip(*args, **kwargs))
    trainer.add_callback(_Steps(trainer._hold))
    trainer._hold.tell_rank()
    return trainer


def check(trainer: Any, strategy: str) -> None:
    """Raise TrainingError for a Trainer that cannot be trained elastically, or not with this strategy."""
    if not isinstance(trainer, Trainer):
        raise TrainingError(f"elastic() was given a {type(trainer).__name__}; accepted: a transformers.Trainer")
    check_parts("transformers", version, TRIED, [(trainer, name) for name in PRIVATE])
    check_parts("transformers", version, TRIED, [(trainer.args, "distributed_state"), (trainer, "callback_handler")])
    args = trainer.args
    wrong = [
        (args.max_steps > 0, "max_steps", "num_train_epochs: steps are not of one size"),
        (args.num_train_epochs != int(args.num_train_epochs), "a part of an epoch", "whole num_train_epochs"),
        (bool(args.deepspeed), "deepspeed", "elastic(trainer, strategy='fsdp'), or replicas"),
        (bool(args.fsdp), "TrainingArguments(fsdp=...)", "elastic(trainer, strategy='fsdp')"),
        (
            strategy == "fsdp" and args.load_best_model_at_end,
            "load_best_model_at_end of a sharded model",
            "none, the last model stays",
        ),
        (args.auto_find_batch_size, "auto_find_batch_size", "elastic(micro_batch=...)"),
    ]
    refuse("elastic(trainer)", wrong)


class _Hold:
    """What an elastic Trainer adds to a Trainer."""

    def __init__(self, trainer: Any, job: Job, strategy: str, shard: Any) -> None:
        self.trainer, self.job = trainer, job
        self.strategy, self._shard = strategy, shard
        self.loader: _Loader | None = None
        self.part: Part | None = None
        self.rate: Any = None
        self.normalised = False

    @property
    def driven(self) -> FrameworkLoop:
        if self.loader is None:
            raise TrainingError("the training data was not loaded by trainer.train(); accepted: trainer.train()")
        return self.loader.driven

    def tell_rank(self) -> None:
        """Only rank 0 logs and writes."""
        rank = rank_to_show(self.job)
        self.trainer.args.distributed_state.process_index = rank
        self.trainer.state.is_world_process_zero = rank == 0
        self.trainer.state.is_local_process_zero = rank == 0

    def wrap(self, net: _Net) -> None:
        trainer, job = self.trainer, self.job
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        scheduler, plateau = trainer.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau
        counted = None if isinstance(scheduler, plateau) else scheduler
        replicas = trainer.accelerator.ddp_handler.to_kwargs()  # the Trainer's ddp_... arguments
        options = wrap_options(trainer.model, self.strategy, self._shard, replicas)
        net.call = job.wrap(trainer.model, optimizer, counted, scaler=trainer.accelerator.scaler, **options)
        if counted is None:
            job.keep(scheduler=scheduler)
        else:
            trainer.lr_scheduler = trainer.callback_handler.lr_scheduler = Counted(scheduler)
        job.keep(trainer=_State(trainer))


class _Elastic:
    """Mixed into the Trainer's own class."""

    _hold: _Hold
    accelerator: Any
    args: Any
    control: Any

    def train(self, resume_from_checkpoint: Any = None, **kwargs: Any) -> Any:
        if resume_from_checkpoint:
            raise TrainingError(
                "train(resume_from_checkpoint=...) is not possible with elastic(trainer); accepted: none, an elastic "
                "job goes on from its own checkpoints"
            )
        return super().train(**kwargs)  # type: ignore[misc]

    def get_train_dataloader(self) -> _Loader:
        hold = self._hold
        prepare, self.accelerator.prepare = self.accelerator.prepare, lambda loader: loader
        try:
            loader = super().get_train_dataloader()  # type: ignore[misc]
        finally:
            self.accelerator.prepare = prepare
        if hold.loader is not None:
            raise TrainingError("trainer.train() was called twice; one training is one process")
        feed, shuffle = taken_over(loader, hold.job)
        epochs = int(self.args.num_train_epochs)
        hold.loader = _Loader(FrameworkLoop(hold.job, feed, shuffle, epochs))
        return hold.loader

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if state_dict is None and self._hold.strategy == "fsdp":
            state_dict = self._hold.job.full_state()  # every rank takes part
        if state_dict is None or self.args.should_save:
            super()._save(output_dir, state_dict)  # type: ignore[misc]

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Not where each rank has a part: the job's own checkpoints have them, and nothing goes on from this one."""
        if self._hold.strategy != "fsdp":
            super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]

    def _wrap_model(self, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        if not training:
            return model
        # For mixed precision; evaluation_mode keeps it from being wrapped for a world of Accelerate's.
        return _Net(self.accelerator.prepare_model(model, device_placement=False, evaluation_mode=True))

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume: Any) -> Any:
        model, loader = super()._prepare_for_training(max_steps, train_dataloader, resume)  # type: ignore[misc]
        self._hold.wrap(model)
        return model, loader

    def _run_epoch(self, **facts: Any) -> None:
        driven = self._hold.driven
        if not driven.begun:
            driven.begin()
            self._hold.tell_rank()
        if facts["epoch"] < driven.progress.epoch:
            return  # done before the restart, or before this worker joined
        facts["num_update_steps_per_epoch"] = sys.maxsize  # it ends when its samples do
        super()._run_epoch(**facts)  # type: ignore[misc]

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> Any:
        step = next(epoch_iterator, None)
        if step is None:
            self.control.should_epoch_stop = True
            return [], None
        self._hold.tell_rank()
        return [step], self._all_items(step, device)

    def _all_items(self, step: list[Part], device: Any) -> Any:
        """Labelled tokens of the step over all ranks, where the loss is normalised by them."""
        hold = self._hold
        counted = self._get_num_items_in_batch([samples for _, samples in step], device)  # type: ignore[attr-defined]
        hold.normalised = counted is not None
        if counted is None:
            return None
        if not all(micro.weight for micro, _ in step):
            counted = counted * 0
        world = hold.job._session.world()
        if world.grouped:
            total = torch.as_tensor(counted).cpu()
            with hold.job._session.membership.ending_when_broken():
                world.group.allreduce([total]).wait()
            counted = total.to(device)
        return counted

    def training_step(self, model: Any, inputs: list[Part], num_items_in_batch: Any = None) -> torch.Tensor:
        hold = self._hold
        losses = []
        for part in inputs:
            hold.part = part
            micro, samples = part
            hold.job._epoch_loop.hand_out(micro, None)
            loss = super().training_step(model, samples, num_items_in_batch)  # type: ignore[misc]
            share = (
                hold.job.world_size if hold.normalised else len(micro.indices) / sum(len(m.indices) for m, _ in inputs)
            )
            losses.append(loss * share)
        return torch.stack(losses).sum()

    def _elastic_backward(self, loss: torch.Tensor, **_: Any) -> None:
        """In place of accelerator.backward()."""
        hold, scaler = self._hold, self.accelerator.scaler
        if hold.part is None:
            raise AssertionError("backward outside a step")
        micro, _samples = hold.part
        scale = float(hold.job.world_size * bool(micro.weight)) if hold.normalised else hold.driven.scale(micro)
        hold.driven.backward(micro, loss * scale if scaler is None else scaler.scale(loss * scale))

    def floating_point_ops(self, inputs: list[Part]) -> float:
        return sum(super(_Elastic, self).floating_point_ops(samples) for _, samples in inputs)  # type: ignore[misc]

    def _track_num_input_tokens(self, inputs: list[Part]) -> None:
        for _, samples in inputs:
            super()._track_num_input_tokens(samples)  # type: ignore[misc]


class _Net(torch.nn.Module):
    """What the Trainer calls as its model; `call` is the job's once there is one."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        self.call: Any = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)


class _Loader(DrivenLoader):
    """What the Trainer iterates over: a list of micro batches a step."""

    def __iter__(self) -> Iterator[list[Part]]:
        epoch = self.driven.progress.epoch
        while self.driven.progress.epoch == epoch:
            yield self.driven.next_step()


class _Steps(TrainerCallback):
    """Keeps the Trainer's idea of its position right, and steps the optimizer at the batch's rate."""

    def __init__(self, hold: _Hold) -> None:
        self._hold = hold

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        driven = self._hold.driven
        samples, batch, progress = driven.feed.samples, driven.job.batch, driven.progress
        left = -(-(samples - progress.cursor) // batch)
        epochs = int(args.num_train_epochs) - progress.epoch - 1
        state.max_steps = state.global_step + left + epochs * -(-samples // batch)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._hold.rate = self._hold.driven.rate()
        self._hold.rate.__enter__()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._hold.rate.__exit__(None, None, None)
        self._hold.driven.stepped()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        progress = self._hold.driven.progress
        state.epoch = progress.epoch + progress.cursor / self._hold.driven.feed.samples

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._hold.driven.finish()


class _State:
    """The Trainer's own state and its callbacks', as a part that survives."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        kept = [field.name for field in dataclasses.fields(trainer.state) if field.name not in OWN]
        return {
            "state": {name: getattr(trainer.state, name) for name in kept},
            "counted": {name: getattr(trainer, name) for name in COUNTED},
            "callbacks": {name: entry.state()["attributes"] for name, entry in self._callbacks()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        trainer = self._trainer
        for name, value in state["state"].items():
            setattr(trainer.state, name, value)
        for name, value in state["counted"].items():
            setattr(trainer, name, value.to(trainer.args.device) if isinstance(value, torch.Tensor) else value)
        for name, entry in self._callbacks():
            for attribute, value in state["callbacks"].get(name, {}).items():
                setattr(entry, attribute, value)

    def _callbacks(self) -> list[tuple[str, Any]]:
        found = [entry for entry in self._trainer.callback_handler.callbacks if isinstance(entry, ExportableState)]
        return [(f"{number} {type(entry).__name__}", entry) for number, entry in enumerate(found)]
