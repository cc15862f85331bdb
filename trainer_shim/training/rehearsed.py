"""A training under `selastic rehearse`: what every worker holds after each step is written down, and the training waits
where a resize is to come, loses a worker where one is to be killed, hears what Slurm sends before a job's end, and ends
after some steps.

Dropout is off, unless it is what is tried, BatchNorm normalises each sample by itself, and what torch draws for the
samples of a step is drawn for each by itself: what they make of a batch differs by rank, and would hide what else
differs. Limit: a resize that does not come is waited for so long, and left out.
"""

import atexit
import functools
import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from slurm_elastic.protocol.errors import TrainingError

from ..checkpoint.snapshots import Saving
from ..data.loader import Feed
from ..data.sampling import mix
from ..data.shard_streams import Shards
from ..parallel.strategy import Strategy
from ..state.kept_parts import State
from ..world.process_group import World
from ..world.rendezvous import Membership
from .guards.leftovers import replace
from .guards.replica_check import ReplicaCheck
from .watched import Files, lines_ran

WAIT_S = 90.0
GROW, KILL, SHRINK, EARLIEST = 0.25, 0.5, 0.65, 3
"""Parts of a training's steps after which they come at the latest; the first step for any."""
DROPS = ("input", "p", "training", "inplace")
FUNCTIONS = {
    **dict.fromkeys(
        ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"), DROPS
    ),
    "scaled_dot_product_attention": ("query", "key", "value", "attn_mask", "dropout_p", "is_causal"),
    "batch_norm": ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
}
"""Of torch.nn.functional, with the names of what is given by position: modules compute by these."""
DRAWS = {
    torch: "rand randn randint randperm normal bernoulli multinomial poisson rand_like randn_like randint_like",
    torch.Tensor: "normal_ uniform_ bernoulli_ random_ exponential_ log_normal_ cauchy_ bernoulli multinomial",
}
"""What draws numbers. Those that are given a generator are the script's own business."""
UNUSED = 624
"""Where Python's and NumPy's generators are that nothing was drawn from since they were seeded."""
RANDOM = ("Dropout", "DropPath", "StochasticDepth")


class RehearsedSession(Protocol):
    """What a rehearsal needs of the training's session."""

    membership: Membership
    state: State
    feed: Feed | None
    saving: Saving
    replica_check: ReplicaCheck

    @property
    def rank(self) -> int: ...

    def world(self) -> World: ...

    def model(self) -> Strategy: ...


class Rehearsed:
    """See the module. One per session that is rehearsed.

    plan: {"folder": where to write, "steps": after which it ends, "resized": whether workers come, leave and are
    killed, "random": "off", "on", "other" (as another seed has it) or "nudged" (off, and parameters begin with another
    last bit), "beside": the folder of an undisturbed run, which this one is compared with, "pid": of who compares}. The
    folder's file "length" says how many steps that run had.
    """

    def __init__(self, session: RehearsedSession, plan: str) -> None:
        self._session, self._plan = session, json.loads(plan)
        self._folder, self._length = Path(self._plan["folder"]), 0
        self._worker = os.environ.get("SELASTIC_WORKER", "alone").replace("/", "_")
        self._off, self._seen, self._ended = self._plan["random"] in ("off", "nudged"), -1, False
        self._met: set[tuple[str, str]] = set()
        """What has to be noted behind the step: torch.compile() takes no writing to files into a whole graph."""
        self._rows: Sequence[int] = ()
        self._draws = 0
        """Of rows, in this part of a step."""
        Feed.one_lane = True
        os.environ["SELASTIC_AGENT_NODE"] = "all"  # there adaptive summation is the mean, whatever ranks there are
        self._files = Files(lambda name: self._note(file=name))
        save = torch.save

        @functools.wraps(save)
        def seen(value: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            self._files.wrote(f)  # torch writes by itself
            self._files.quietly(save, value, f, *args, **kwargs)

        torch.save = seen  # type: ignore[assignment]
        for name, words in FUNCTIONS.items():
            replace(F, name, self._alike(name, words, getattr(F, name)))
        for owner, names in DRAWS.items() if self._off else ():
            for name in names.split():
                replace(owner, name, self._by_row(name, getattr(owner, name)))
        if self._off:
            torch.autocast.__init__ = self._whole(torch.autocast.__init__)  # type: ignore[method-assign]
        atexit.register(self._note_lines)

    def _alike(self, name: str, words: tuple[str, ...], function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of torch that gives the same on every rank."""
        rate = next((word for word in words if word in ("p", "dropout_p")), "")

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(words, args, strict=False)), **kwargs}
            if not rate and given.get("training"):
                self._met.add(("statistics", f"F.{name}"))
                return F.group_norm(given["input"], 1, given.get("weight"), given.get("bias"))
            if rate and self._off and given.get("training", True) and given.get(rate, rate == "p"):
                self._met.add(("random", f"F.{name}"))
                given[rate] = 0.0
            return function(**given)

        return called

    def draws_by_row(self, rows: Sequence[int]) -> bool:
        """What is drawn from now on is of a part of a step with these samples. True: by another seed than else."""
        self._rows, self._draws = rows if self._off else (), 0
        return len(self._rows) > 0 or self._plan["random"] == "other"

    def _by_row(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of torch that draws each sample's row by itself."""

        @functools.wraps(function)
        def drawn(*args: Any, **kwargs: Any) -> Any:
            rows = self._rows
            if torch.compiler.is_compiling() or not rows or kwargs.get("generator") is not None:
                return function(*args, **kwargs)
            if name == "randperm":
                self._note_once(apart=name)
            if name in ("rand", "randn") and args and isinstance(args[0], int):
                args = (args,)
            given = *args, *kwargs.values()
            parts = [[_row(value, len(rows), number) for value in given] for number in range(len(rows))]
            if all(one is value for one, value in zip(parts[0], given, strict=True)):
                return function(*args, **kwargs)
            self._note_once(drawn=name)
            self._draws, state, found = self._draws + 1, torch.get_rng_state(), []
            for row, part in zip(rows, parts, strict=True):
                torch.default_generator.manual_seed(mix(self._session.state.progress.step, self._draws, row))
                found.append(function(*part[: len(args)], **dict(zip(kwargs, part[len(args) :], strict=True))))
            torch.set_rng_state(state)
            return args[0] if name.endswith("_") else torch.cat(found)

        return drawn

    def _whole(self, init: Callable[..., None]) -> Callable[..., None]:
        """Of autocast: off, for what it rounds to 16 bits no two orders of samples have in common."""

        @functools.wraps(init)
        def made(
            context: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None
        ) -> None:
            if enabled:
                self._note_once(autocast=device_type)
            init(context, device_type, dtype, False, cache_enabled)

        return made

    def entered(self) -> None:
        module = self._session.model().module
        for name, part in module.named_modules():
            kind = type(part).__name__
            if "BatchNorm" in kind:
                self._note_once(statistics=name or kind)
            for rate in ("dropout", *(("p", "drop_prob") if any(word in kind for word in RANDOM) else ())):
                if isinstance(value := getattr(part, rate, None), float) and value > 0:  # an LSTM's "dropout", too
                    self._note_once(random=name or kind)
                    setattr(part, rate, 0.0 if self._off else value)
        if self._session.state.progress.step == 0 and self._plan["random"] == "nudged":
            for parameter in module.parameters():
                parameter.data.mul_(1 + torch.finfo(parameter.dtype).eps)
        if self._session.state.progress.step == 0 and not self._plan["beside"]:
            self._save("initial")

    def between_steps(self) -> None:
        """A step has been done, and the world may change now."""
        step, world = self._session.state.progress.step, self._session.world()
        if step == self._seen:
            return
        begun, self._seen = self._seen < 0, step
        self._note_draws()
        held = self._session.replica_check.look()
        # Where a worker begins is perhaps behind a pass, whose end has changed them.
        rates = {name: value for name, value in held.values.items() if name.startswith("lr ") and not begun}
        sums = dict(zip(held.names, held.read(), strict=True))
        self._note(step=step, rank=world.rank, size=world.size, values=rates, sums=sums, cuts=repr(held.cuts))
        self._note_lines()
        if step >= self._plan["steps"]:
            self._end(step)
        if self._plan["resized"] and step >= EARLIEST:
            self._disturb(step, world)

    def _note_draws(self) -> None:
        """What a step has drawn that cannot be drawn for each sample by itself, and how its samples were read."""
        numpy, rows, self._rows = sys.modules.get("numpy"), self._rows, ()
        for kind, name in sorted(self._met):
            self._note_once(**{kind: name})
        if rows and random.getstate()[1][-1] != UNUSED:
            self._note_once(apart="random")
        if rows and numpy is not None and numpy.random.get_state()[2] != UNUSED:
            self._note_once(apart="numpy.random")
        if (feed := self._session.feed) is not None and isinstance(feed.dataset, Shards):
            self._note_once(shards=type(feed.dataset).__name__)

    def _disturb(self, step: int, world: World) -> None:
        killed, told, membership = self._folder / "killed", self._folder / "told", self._session.membership
        grow, kill, shrink = (round(part * self._wait_for_length()) for part in (GROW, KILL, SHRINK))
        if step == (grow if world.size == 1 and not killed.exists() else shrink):
            self._wait(lambda: membership.vote(False, False, 0.0)[0] is not None)
        if step >= kill and 0 < world.rank == world.size - 1 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if step > shrink and world.size == 1 and killed.exists() and not told.exists():
            told.write_text(f"{step} {world.generation}")
            for process in (os.getppid(), os.getpid()):  # as Slurm does to all of a step
                os.kill(process, signal.SIGUSR1)
            self._wait(lambda: membership.client is None or membership.client.save_wanted)

    def _wait(self, has_come: Callable[[], bool]) -> None:
        until, failed = time.monotonic() + WAIT_S, self._folder / "failed"
        while not has_come() and not failed.exists() and time.monotonic() < until:
            time.sleep(0.005)

    def _wait_for_length(self) -> int:
        """Steps of the undisturbed run, whose end this one waits for."""
        while not self._length:
            if not Path("/proc", str(self._plan["pid"])).exists():
                raise TrainingError("selastic rehearse has ended: nobody compares what this run makes")
            time.sleep(0.005)
            place = self._folder / "length"
            self._length = int(place.read_text() or 0) if place.exists() else 0
        return self._length

    def finished(self) -> None:
        """The script's loop is over. Every rank calls this."""
        if not self._ended:
            self._ended = True
            self._save("final")

    def _end(self, step: int) -> None:
        client = self._session.membership.client
        self.finished()
        self._session.saving.wait(WAIT_S)
        if client is not None:
            progress = self._session.state.progress
            said = {"step": step, "samples": progress.samples, "epoch": progress.epoch, "finished": True}
            client.send({"type": "done", **said, "unsaved": ""})
            self._session.membership.exit_process(0)

    def _save(self, name: str) -> None:
        """What the model is now; in a run beside another one how it differs from that one's."""
        model = self._session.model()
        whole = model.full_state(keep=self._session.rank == 0)
        if self._session.rank != 0:
            return
        found = {key: value for key, value in whole.items() if isinstance(value, torch.Tensor)}
        found = {key: value.to_dense() if value.layout != torch.strided else value for key, value in found.items()}
        if not self._plan["beside"]:
            self._files.quietly(torch.save, found, self._folder / f"{name}.pt")
            return
        self._wait_for_length()
        begun, wanted = (
            torch.load(Path(self._plan["beside"], f"{one}.pt"), weights_only=True) for one in ("initial", "final")
        )
        parameters = {name for name, _ in model.module.named_parameters()}
        for key in wanted.keys() & found.keys():
            size = found[key].element_size() // (1 + found[key].is_complex())  # of a real number
            changed, off = _apart(wanted[key], begun[key]), _apart(wanted[key], found[key])
            self._note(tensor=key, parameter=key in parameters, bytes=size, changed=changed, off=off)

    def _note(self, **line: Any) -> None:
        world, step = self._session.membership.world, self._session.state.progress.step
        place = {"worker": self._worker, "step": step, "generation": world.generation if world else -1}
        with (self._folder / f"{self._worker}.jsonl").open("a") as file:
            file.write(json.dumps({**place, **line}, default=str) + "\n")

    @functools.cache  # noqa: B019 - one for the process
    def _note_once(self, **line: Any) -> None:
        self._note(**line)

    def _note_lines(self) -> None:
        """Which lines of the script ran since the last time."""
        self._note(ran=lines_ran())


def _row(value: Any, count: int, number: int) -> Any:
    """Of a tensor with so many rows one of them, and of a size that of one row; else the value itself."""
    if isinstance(value, torch.Tensor):
        return value[number : number + 1] if value.dim() and len(value) == count else value
    return (1, *value[1:]) if isinstance(value, (tuple, list)) and tuple(value[:1]) == (count,) else value


def _apart(one: torch.Tensor, other: torch.Tensor) -> list[float]:
    """The largest difference of two elements, and the sum of the squares of all."""
    if one.shape != other.shape:
        return [math.inf, math.inf]
    wide = torch.complex128 if one.is_complex() else torch.float64
    apart = (one.to(wide) - other.to(wide)).abs()
    return [float(apart.max()) if apart.numel() else 0.0, float(apart.square().sum())]
