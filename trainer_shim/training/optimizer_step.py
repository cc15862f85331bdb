"""One optimizer step: scaling the loss, clipping, stepping at the batch's rate, and the schedule in samples."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from slurm_elastic.protocol.errors import TrainingError

from ..parallel.strategy import Strategy
from ..state.kept_parts import State
from ..state.progress import TrainingProgress
from .checks import Advanced, Watch
from .learning_rate import Tuning


class OptimizerSteps:
    """The optimizers, schedulers and gradient scaler that job.wrap() was given."""

    def __init__(self, tuning: Tuning, optimizers: Any, schedulers: Any, scaler: Any) -> None:
        self._tuning = tuning
        self.optimizers: list[torch.optim.Optimizer] = _listed(optimizers)
        self.schedulers = _listed(schedulers)
        self._scaler = scaler
        self._scales = False
        self._groups = [len(entry.param_groups) for entry in self.optimizers if hasattr(entry, "param_groups")]
        for entry in self.optimizers:
            if not isinstance(entry, torch.optim.Optimizer):
                raise TrainingError(f"job.wrap() was given the optimizer {type(entry).__name__}; accepted: torch.optim")
        for entry in self.schedulers:
            if isinstance(entry, torch.optim.lr_scheduler.ReduceLROnPlateau) or not hasattr(entry, "step"):
                raise TrainingError(
                    f"job.wrap() cannot advance a {type(entry).__name__} by samples; give it to job.keep() and step it "
                    "yourself, on every rank"
                )
        tuning.use(self.optimizers)
        self._advanced = Advanced(self.schedulers)
        self._watch: Watch | None = None

    def watch(self, kept: Iterable[Any], training: Callable[[], bool]) -> None:
        """From now on nobody else steps an optimizer while a batch is out; see checks.Watch."""
        self._watch = Watch(self.optimizers, kept, training)

    def end(self) -> None:
        if self._watch is not None:
            self._watch.end()

    def check_groups(self, given_to: str = "job.wrap()") -> None:
        """Before a step. Raises TrainingError for parameter groups that no restarted or joining worker would have.
        given_to: what got the optimizers."""
        for optimizer, groups in zip(self.optimizers, self._groups, strict=True):
            if len(optimizer.param_groups) != groups:
                raise TrainingError(
                    f"a {type(optimizer).__name__} has {len(optimizer.param_groups)} parameter groups and had {groups} "
                    f"when {given_to} got it, which a worker that joins or starts again could not take over; give it "
                    "all groups at once, with requires_grad_(False) for parameters that are to be trained later"
                )

    def keep_in(self, state: State) -> None:
        """Have everything here survive."""
        for kind, parts in (("Optimizer", self.optimizers), ("Scheduler", self.schedulers)):
            for number, part in enumerate(parts):
                state.keep(f"{kind}{number}", part, own=True)
        if self._scaler is not None:
            state.keep("Scaler", self._scaler, own=True)

    @property
    def loss_scale(self) -> torch.Tensor | None:
        """What the gradients of the step under way are multiplied by, of one element, perhaps on a GPU; None: 1."""
        return getattr(self._scaler, "_scale", None)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss to run backward on."""
        if self._scaler is None:
            return loss
        if not self._scales and getattr(self._scaler, "_scale", None) is not None:  # made by its first scale()
            raise TrainingError(
                "the script called scale() of the GradScaler that job.wrap() was given; job.step(loss) does, and "
                "unscales, steps and updates: give it the loss as it is"
            )
        self._scales = True
        scaled: torch.Tensor = self._scaler.scale(loss)
        return scaled

    def step(
        self, model: Strategy, clip_norm: float | None, clip_value: float | None, progress: TrainingProgress
    ) -> None:
        """Clip, by value first, step every optimizer at the rate that belongs to the batch, and clear the gradients."""
        if self._scaler is not None and (clip_norm is not None or clip_value is not None):
            for optimizer in self.optimizers:
                self._scaler.unscale_(optimizer)
        if clip_value is not None:
            model.clip_values(clip_value)
        if clip_norm is not None:
            model.clip(clip_norm)
        with self.stepping(progress):
            for optimizer in self.optimizers:
                model.step(optimizer, self._scaler)
        if self._scaler is not None:
            self._scaler.update()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    @contextmanager
    def stepping(self, progress: TrainingProgress) -> Iterator[None]:
        """While this lasts optimizers may be stepped, and hold the rates that belong to the batch."""
        self.check_groups()
        with self._tuning.applied(progress), self._watch or nullcontext():
            yield

    def schedule(self, progress: TrainingProgress) -> None:
        """Advance the schedulers to where the samples are: one step per base batch."""
        if self.schedulers:
            self._advanced.check(progress.schedule)
        due = progress.samples // self._tuning.base
        for _ in range(due - progress.schedule):
            for scheduler in self.schedulers:
                scheduler.step()
        progress.schedule = due

    def begin_at(self, samples: int) -> None:
        """The schedulers stand where so many samples have brought them."""
        self._advanced.before = samples // self._tuning.base

    def first_rate(self) -> float:
        """The first group's rate, as the script and its schedulers have set it."""
        return float(self.optimizers[0].param_groups[0]["lr"])


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
