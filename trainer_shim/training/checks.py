"""Wrong uses that would train something else than meant, without an error: named in the first step, or before it."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from slurm_elastic.protocol.errors import TrainingError

WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")


def check_model(call: str, model: Any) -> None:
    """Raise TrainingError for what this call cannot make data parallel."""
    if type(model).__name__ == "Wrapped":
        raise TrainingError(f"{call} was given what an earlier {call} returned; give it the model, once")
    if not isinstance(model, nn.Module):
        raise TrainingError(f"{call} was given a {type(model).__name__}; accepted: a torch.nn.Module")
    if type(model).__name__ in WRAPPERS:
        raise TrainingError(f"{call} was given a {type(model).__name__}; give it the model inside, unwrapped")


def check_wrap(model: Any, optimizers: Sequence[torch.optim.Optimizer], schedulers: Iterable[Any]) -> None:
    """Before the loop. Raises TrainingError for what job.wrap() was given by mistake."""
    check_model("job.wrap()", model)
    own = {id(parameter) for parameter in model.parameters()}
    for optimizer in optimizers:
        if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
            raise TrainingError(
                f"job.wrap(model, optimizer): the {type(optimizer).__name__} holds no parameter of this model; "
                "make it of model.parameters()"
            )
        _check_steps_alone(optimizer)
        _check_state(optimizer)
    for scheduler in schedulers:
        driven = getattr(scheduler, "optimizer", None)  # perhaps in a framework's wrapping: its parameters tell
        if driven is not None and not any(_first(driven) is _first(optimizer) for optimizer in optimizers):
            raise TrainingError(
                f"job.wrap() was given a {type(scheduler).__name__} of another optimizer, whose state would not "
                "survive; give wrap() that optimizer too"
            )


def _check_steps_alone(optimizer: torch.optim.Optimizer) -> None:
    _, *asked = inspect.signature(type(optimizer).step).parameters.values()  # of the class: schedulers wrap step()
    if any(entry.kind is entry.POSITIONAL_OR_KEYWORD and entry.default is entry.empty for entry in asked):
        raise TrainingError(
            f"job.wrap() was given a {type(optimizer).__name__}, whose step() computes the loss again and again, and "
            "job.step(loss) has each batch once; accepted: optimizers whose step() needs no closure, e.g. AdamW or SGD"
        )
    for group in optimizer.param_groups:
        if not isinstance(group.get("lr"), (int, float, torch.Tensor)):
            raise TrainingError(
                f"job.wrap() was given a {type(optimizer).__name__} with lr={group.get('lr')!r}, which no rule can "
                "change with the batch; accepted: an optimizer that is given a rate, lr=..."
            )


def _check_state(optimizer: torch.optim.Optimizer) -> None:
    if any(getattr(value, "is_meta", False) for entry in optimizer.state.values() for value in entry.values()):
        raise TrainingError(
            f"the {type(optimizer).__name__} has made its state of a model on the meta device, where it has no values; "
            "accepted there: an optimizer that makes it in its first step, e.g. AdamW or SGD"
        )


def _first(optimizer: Any) -> Any:
    return optimizer.param_groups[0]["params"][0]


class Watch:
    """In the loop, optimizers are stepped by job.step() alone: a step of the script's own would be taken by each rank
    for itself, and its optimizer forgotten at the next resize. One that the script keeps itself is its business.
    """

    def __init__(self, stepped: Iterable[Any], kept: Iterable[Any], training: Callable[[], bool]) -> None:
        """stepped: by the job. kept: parts of the state. training: whether this is inside a pass over the data."""
        job_steps = {id(optimizer) for optimizer in stepped}
        self._own = {id(part) for part in kept} - job_steps
        self._training = training
        self._stepping = False
        self._handle = register_optimizer_step_pre_hook(self._before_step)

    def __enter__(self) -> None:
        self._stepping = True

    def __exit__(self, *_: object) -> None:
        self._stepping = False

    def end(self) -> None:
        self._handle.remove()

    def _before_step(self, optimizer: Any, *_: object) -> None:
        if not self._stepping and self._training() and id(optimizer) not in self._own:
            raise TrainingError(
                f"the script called step() of a {type(optimizer).__name__}; job.step(loss) steps the optimizers that "
                "job.wrap() was given, and job.keep() takes one that the script steps itself"
            )


class Advanced:
    """Whether anybody but the job advances the schedulers."""

    def __init__(self, schedulers: Iterable[Any]) -> None:
        self._schedulers = [entry for entry in schedulers if isinstance(getattr(entry, "last_epoch", None), int)]
        self._starts = [entry.last_epoch for entry in self._schedulers]
        self.before = 0
        """Steps of the schedule that were taken before this job, by a training that it goes on with."""

    def check(self, steps: int) -> None:
        """`steps`: how often the job has advanced them. Raises TrainingError when a scheduler is elsewhere."""
        for scheduler, start in zip(self._schedulers, self._starts, strict=True):
            if scheduler.last_epoch != start + steps - self.before:
                raise TrainingError(
                    f"the script called step() of the {type(scheduler).__name__} that job.wrap() was given; "
                    "job.step() advances it, one step per base batch of samples; one that is stepped by epoch goes to "
                    "job.keep() and not to job.wrap()"
                )
