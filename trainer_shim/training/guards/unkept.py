"""State that goes from step to step in the script's variables, and that nobody keeps: it begins anew on a worker that
joins or starts again, and each rank has it for the samples that it had.

In the first steps what flows from such a variable is followed through one step. Into the loss, as a hidden state or a
memory bank does: the training ends with one sentence. Else (averages of weights by hand, a generator of the script's
own) it is named once. Limit: tensors of several values, in variables of the script's functions that are under way, of
its module and of its own objects, and in their lists, dicts and tuples; not what goes by way of plain numbers.
"""

import marshal
import random
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode_temporarily
from torch.utils._pytree import tree_leaves

from slurm_elastic.protocol.errors import TrainingError

from ...state.variables import Variables
from .script_frames import assigned, is_of_script, read_next, script, scripts, variables
from .slices import only_logged

LOOKS = 3
"""Steps after which it is known."""
MOST = 10_000
"""Entries of a list; longer ones are data."""
DEPTH = 3
"""Of lists in lists."""
GENERATORS, NUMPY = (torch.Generator, random.Random), ("numpy.random._generator", "numpy.random.mtrand")
OVERWRITES = {"copy_", "zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_"}
"""Functions behind which a tensor holds nothing of what it held."""
UNKEPT = (
    "'{}' is changed by each step, and nobody keeps it: it begins anew on a worker that joins or starts again; "
    "accepted, where more than a line of output follows from it: job.keep()"
)
CARRIED = (
    "'{0}' goes from one step into the loss of the next, and nobody keeps it: each rank has it for its own samples, "
    "and a worker that joins or starts again begins it anew; accepted: to begin it in each step, job.keep() of what is "
    "the same on all ranks, or join(meant=['{0}']) where that is meant (docs/how-to/what-a-joiner-sees.md)"
)


class Flow(TorchFunctionMode):
    """What flows from tensors, by the name of their variable, until it is popped. What a replicated model does inside
    is one function."""

    def __init__(self, begun: dict[str, list[torch.Tensor]]) -> None:
        super().__init__()
        self._names: dict[int, tuple[Any, set[str]]] = {}
        self.into_loss: set[str] = set()
        for name, tensors in begun.items():
            self._mark(tensors, {name})

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, name = function(*args, **(kwargs or {})), getattr(function, "__name__", "")
        if function is torch.Tensor.backward:
            self.into_loss |= self.of(args)
        elif name in OVERWRITES or name == "__setitem__":
            whole = name != "__setitem__" or args[0][args[1]].numel() == args[0].numel()
            for target in (args[0], args[0]._base):
                if whole and target is not None and target.numel() == args[0].numel():
                    self._names.pop(id(target), None)
                self.passed((args[1:], kwargs), target)
        else:
            self.passed((args, kwargs), result)
        return result

    def passed(self, given: Any, result: Any) -> None:
        """A function was given this, and has made that of it."""
        if names := self.of(given):
            self._mark(tree_leaves(result), names)

    def of(self, given: Any) -> set[str]:
        """Names whose values have flowed into these."""
        found = [(leaf, self._names.get(id(leaf))) for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
        return {name for leaf, entry in found if entry and entry[0]() is leaf for name in entry[1]}

    def _mark(self, leaves: Iterable[Any], names: set[str]) -> None:
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                self._names[id(leaf)] = (weakref.ref(leaf), names | self.of(leaf))


class Unkept:
    """One per training. say: takes the sentence. meant: names of which the script says that it is meant so."""

    def __init__(self, say: Callable[[str], None], meant: Collection[str] = ()) -> None:
        self._say, self._meant, self._looks, self._seen = say, meant, 0, -1
        self._before: dict[str, list[tuple[Any, Any]]] = {}
        self._flow: Flow | None = None
        self._mode = ExitStack()

    def call(self, model: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a replicated model, whose inside is not followed."""
        if (flow := self._flow) is None or _get_current_function_mode() is not flow:
            return model(*args, **kwargs)
        with _pop_mode_temporarily():
            result = model(*args, **kwargs)
        flow.passed((args, kwargs), result)
        return result

    def flows_into(self, loss: torch.Tensor) -> None:
        """Gradients of a loss are computed next."""
        if self._flow is not None:
            self._flow.into_loss |= self._flow.of(loss)

    def leave(self) -> None:
        """The loop is left: looks begin anew in the next one."""
        flow, self._flow = self._flow, None
        if flow is not None and _get_current_function_mode() is flow:
            self._mode.close()
            self._looks = 0

    def look(self, step: int, parts: Iterable[Any]) -> None:
        """Between two steps, below the script's loop. parts: what survives. Raises TrainingError for what flows into
        the loss."""
        if self._looks == LOOKS or step == self._seen or (frame := script()) is None:
            return
        flow, looks = self._flow, self._looks + 1
        self.leave()
        self._looks, self._seen = looks, step
        kept, names = survive(parts)
        held = {name: value for name, value in _variables() if name not in names and name not in self._meant}
        now = {
            name: [(one, version_of(one)) for one in states_of(value) if id(one) not in kept]
            for name, value in held.items()
        }
        before, self._before = self._before, now
        if looks == 1:
            return
        known = now if looks < LOOKS else before
        changed = {name for name in now.keys() & known.keys() if _changed(before.get(name, []), now[name])}
        self._before = {name: now[name] for name in changed}
        tensors = {name: [one for one, _ in now[name] if isinstance(one, torch.Tensor)] for name in changed}
        if looks < LOOKS:
            if any(tensors.values()):
                self._flow = Flow(tensors)
                self._mode.enter_context(self._flow)
            return
        self._before = {}
        into_loss = flow.into_loss if flow is not None else set()
        if into_loss:
            raise TrainingError(CARRIED.format(min(into_loss)))
        for name in sorted(changed):
            made_of_itself = not tensors[name] or (flow is not None and name in flow.of(tensors[name]))
            if made_of_itself and not only_logged(frame.f_code.co_filename, name):
                self._say(UNKEPT.format(name))


def survive(parts: Iterable[Any]) -> tuple[set[int], set[str]]:
    """Tensors that are kept, by their ids, and names of variables that are."""
    kept, names = set[int](), set[str]()
    for part in parts:
        names.update(part.names if isinstance(part, Variables) else ())
        held = part.state if isinstance(part, torch.optim.Optimizer) else part
        entries = held.values() if isinstance(held, dict) else ()
        kept.update(id(one) for value in (held, *entries) for one in states_of(value))
    return kept, names


def _variables() -> Iterator[tuple[str, Any]]:
    """Of the script's functions under way, and of its module, but for those that the next step assigns before it reads
    them; and attributes of its own objects."""
    for frame in [*scripts()][::-1]:
        anew = assigned(frame.f_code) - read_next(frame.f_code, frame.f_lasti)
        for name, value in {**frame.f_globals, **variables(frame)}.items():
            if name in anew:
                continue
            yield name, value
            plain = hasattr(value, "__dict__") and not isinstance(value, (nn.Module, type, ModuleType, FunctionType))
            # A dataset may keep what it has read: that is the same whoever reads it (data/stateful.py looks at it).
            if plain and is_of_script(type(value).__module__) and not hasattr(type(value), "__getitem__"):
                yield from ((f"{name}.{key}", entry) for key, entry in vars(value).items())


def states_of(value: Any, depth: int = DEPTH) -> list[Any]:
    """Tensors of several values in it, and generators of random numbers; gradients, too, where it is a module."""
    if isinstance(value, nn.Module):
        own = [*value.parameters(), *value.buffers()]
        value = own + [one.grad for one in own if one.grad is not None]
    if isinstance(value, torch.Tensor):
        return [value] if value.numel() > 1 and not value.is_inference() else []
    if is_generator(value):
        return [value]
    if not depth or type(value) not in (list, tuple, dict) or len(value) > MOST:
        return []
    entries = value.values() if type(value) is dict else value
    return [one for entry in entries for one in states_of(entry, depth - 1)]


def is_generator(value: Any) -> bool:
    return isinstance(value, GENERATORS) or type(value).__module__ in NUMPY


def version_of(state: Any) -> Any:
    """Another one when it has changed."""
    if isinstance(state, torch.Tensor):
        return state._version
    if isinstance(state, torch.Generator):
        return hash(tuple(state.get_state().view(torch.int32).tolist()))
    if isinstance(state, random.Random):
        return marshal.dumps(state.getstate(), 2)  # hash(None) differs by process
    return marshal.dumps(state.bit_generator.state if hasattr(state, "bit_generator") else state.get_state(), 2)


def _changed(before: list[tuple[Any, Any]], now: list[tuple[Any, Any]]) -> bool:
    """Whether a variable holds another state than before."""
    versions = {id(one): version for one, version in before}
    return any(versions.get(id(one)) != version for one, version in now)
