"""What a script has kept from when it trained alone, or ran under torchrun.

Promise: what would train something else than meant is told in one sentence, at the call, before anything is trained
wrongly; its own collectives are the world's, which is torch's default group, and its destroy_process_group() does
nothing, as the groups are the job's, and a world of one rank has none. Limits: told under the supervisor only, for
elsewhere a world does not change; optimizers of torch's own base class; an init_process_group or destroy_process_group
that was imported by its name before join().
"""

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DistributedSampler

from slurm_elastic.protocol.errors import TrainingError

from ...parallel.strategy import Strategy
from ...world.process_group import World
from ...world.rendezvous import OWN_GROUP

LOOPS = "`for epoch in job.epochs(n):` or `while job.next():`"


class Leftovers:
    """One per job, from join() to its end."""

    def __init__(
        self, strategy: Callable[[], Strategy | None], world: Callable[[], World | None], supervised: bool = True
    ) -> None:
        self._strategy, self._world = strategy, world
        self._before_loop: Any = None
        self._replaced: list[Callable[[], None]] = []
        self._replace(dist, "destroy_process_group", _of_subgroups)
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            self._replace(nn.utils, name, self._clips)
        if supervised:
            self._before_loop = register_optimizer_step_pre_hook(self._stepped)
            self._watch(DistributedDataParallel, "__init__", self._made)
            self._watch(DistributedSampler, "__iter__", self._drawn)
            self._replace(dist, "init_process_group", lambda before: _refused)

    def begin(self) -> None:
        """The script's loop begins: there optimizers are watched by who steps them."""
        if self._before_loop is not None:
            self._before_loop.remove()
            self._before_loop = None

    def end(self) -> None:
        self.begin()
        for put in self._replaced:
            put()
        self._replaced.clear()

    def _replace(self, owner: Any, name: str, other: Callable[[Any], Any]) -> None:
        before, put = owner.__dict__[name], replace if owner is nn.utils else setattr
        put(owner, name, functools.wraps(before)(other(before)))
        self._replaced.append(lambda: put(owner, name, before))

    def _watch(self, kind: type, name: str, met: Callable[[Any], None]) -> None:
        def watching(before: Any) -> Any:
            def watched(this: Any, *args: Any, **kwargs: Any) -> Any:
                met(this)
                return before(this, *args, **kwargs)

            return watched

        self._replace(kind, name, watching)

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if all(parameter.grad is None for parameter in held):
            return  # it makes its state
        name, strategy = type(optimizer).__name__, self._strategy()
        if strategy is None:
            raise TrainingError(
                f"the script called step() of a {name}, and has given the job no model: each worker would train one of "
                "its own; accepted: job.wrap(model, optimizer), or job.replicate(model) and job.keep(...), and then "
                f"{LOOPS}"
            )
        own = {id(parameter) for parameter in strategy.module.parameters()}
        if any(id(parameter) in own for parameter in held):
            raise TrainingError(
                f"the script called step() of a {name} before the job's loop, so that workers neither exchange "
                f"gradients nor could join; accepted: inside of {LOOPS}"
            )

    def _clips(self, clip: Callable[..., Any]) -> Callable[..., Any]:
        """torch's clipping, but for a script's call before, or behind, a job.step() that has the gradients."""

        def clips(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            held = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            strategy = None if any(parameter.grad is not None for parameter in held) else self._strategy()
            own = set() if strategy is None or hasattr(strategy, "models") else set(strategy.module.parameters())
            if own.intersection(held):
                raise TrainingError(
                    f"the script called {clip.__name__}() where the model has no gradients, which job.step(loss) "
                    "computes, and uses; accepted: job.step(loss, clip_norm=...) or clip_value=..."
                )
            return clip(held, *args, **kwargs)

        return clips

    def _made(self, made: Any) -> None:
        if not _calls().startswith("slurm_elastic."):
            raise TrainingError(
                "the script made a DistributedDataParallel, which belongs to one world and would keep the next one "
                "from forming; accepted: what job.wrap() or job.replicate() returned, in its place"
            )

    def _drawn(self, sampler: Any) -> None:
        world = self._world()
        place = (sampler.rank, sampler.num_replicas)
        if world is not None and place != (world.rank, world.size):
            raise TrainingError(
                f"a DistributedSampler made for rank {place[0]} of {place[1]} is used on rank {world.rank} of "
                f"{world.size}: samples would be left out, or seen twice; accepted: job.loader(dataset), job.share(n), "
                "or for an evaluation a new sampler each time"
            )


def replace(owner: Any, name: str, other: Any) -> None:
    """Put another function in the place of torch's, also where it was imported by its name."""
    before = getattr(owner, name)
    for module in list(sys.modules.values()):
        if not getattr(module, "__name__", "torch").startswith("torch"):
            for key, value in list(getattr(module, "__dict__", {}).items()):
                if value is before:
                    setattr(module, key, other)
    setattr(owner, name, other)


def _refused(*_: Any, **__: Any) -> None:
    raise TrainingError(OWN_GROUP)


def _of_subgroups(destroy: Callable[[Any], None]) -> Callable[..., None]:
    """torch's destroy_process_group(), but for a script's call that would end the job's own groups."""

    def destroy_process_group(group: Any = None) -> None:
        if group not in (None, dist.group.WORLD):
            destroy(group)

    return destroy_process_group


def _calls() -> str:
    """The module that has called what is watched."""
    frames: Iterator[Any] = _frames(sys._getframe(1))
    names = (str(frame.f_globals.get("__name__", "")) for frame in frames)
    return next((name for name in names if name != __name__ and name != "torch.nn.parallel.distributed"), "")


def _frames(frame: Any) -> Iterator[Any]:
    while frame is not None:
        yield frame
        frame = frame.f_back
