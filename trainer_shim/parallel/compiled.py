"""Compiled models: what they are called with is kept for workers that join, which compile before they say that they are
ready, and not in the pause of the resize.

Rank 0 of a running world notes the shapes of a model's first inputs in a file of the job directory, never their values.
A joiner runs forward and backward on zeros of these shapes, and of those that its coming world will have, under a
DistributedDataParallel over a group that communicates nothing. All compile into one cache in the job directory
(supervisor/driver.py), so what one rank has compiled another one reads. Limits: replicas only, compiled before
job.wrap() or job.replicate(); inputs of tensors, numbers, strings and lists of these.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ..world.process_group import World
from ..world.rehearsal import quiet_world

MOST_CALLS = 6
"""Different ones that are kept of a model."""
NOTED_CALLS = 8
"""First calls of a world that are looked at."""
RANKS = 2
"""Of the rehearsed world. More change nothing of what is compiled."""


class Unknown(Exception):
    """An input whose form cannot be written down."""


def is_compiled(module: nn.Module) -> bool:
    """Whether any part of it is compiled, by torch.compile(module) or module.compile()."""
    return any(
        type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules()
    )


class Calls:
    """What one model is called with."""

    def __init__(self, module: nn.Module, number: int = 0) -> None:
        """number: of the model, in the order in which the script gives them to the job."""
        folder = os.environ.get("SELASTIC_JOB_DIR", "") if os.environ.get("SELASTIC_CONTROL") else ""
        self._module = module
        self._file = Path(folder, "compiled", f"model-{number}.json") if folder and is_compiled(module) else None
        self._left = 0
        self._rows = 0

    def enter(self, world: World) -> None:
        """A world begins: rank 0 notes its first calls."""
        self._left = NOTED_CALLS if self._file is not None and world.rank == 0 and world.generation >= 0 else 0

    def expect(self, rows: int) -> None:
        """Samples of the micro batch that comes."""
        self._rows = rows

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call in training, before it is made."""
        if not self._left or self._file is None:
            return
        self._left -= 1
        device = next((parameter.device.type for parameter in self._module.parameters()), "cpu")
        autocast = str(torch.get_autocast_dtype(device))[6:] if torch.is_autocast_enabled(device) else ""
        try:
            form = {"args": _form(list(args)), "kwargs": _form(kwargs)}
        except Unknown:
            self._left = 0
            return
        call = {**form, "autocast": autocast, "training": self._module.training, "rows": self._rows}
        known = self.read()
        if call not in known:
            with contextlib.suppress(OSError):  # it costs a joiner time
                self._file.parent.mkdir(exist_ok=True)
                partial = self._file.with_suffix(".partial")
                partial.write_text(json.dumps([*known, call][-MOST_CALLS:]))
                partial.replace(self._file)

    def read(self) -> list[dict[str, Any]]:
        """Those that are known; none of a model that is not compiled."""
        if self._file is not None:
            with contextlib.suppress(OSError, ValueError):
                return [call for call in json.loads(self._file.read_text()) if isinstance(call, dict)]
        return []

    def rehearse(self, rows: Collection[int], enter: Callable[[World], Callable[..., Any]]) -> None:
        """Compile what is known, in the order in which the others have, and then the coming `rows` of a micro batch.

        enter: takes the rehearsed world; its result takes the inputs and runs forward and backward. That it fails costs
        time only.
        """
        known = self.read()
        if not known:
            return
        device = next((parameter.device for parameter in self._module.parameters()), torch.device("cpu"))
        buffers = [(buffer, buffer.clone()) for buffer in self._module.buffers()]
        training = self._module.training
        try:
            with torch.random.fork_rng(devices=[]), quiet_world(0, RANKS) as world:
                run = enter(world)
                for call, changed in _variants(known, rows):
                    self._module.train(bool(call["training"]))
                    with _autocast(call["autocast"], device):
                        run(*_made(call["args"], changed, device), **_made(call["kwargs"], changed, device))
        except Exception as error:  # whatever it is, the first step compiles
            sys.stderr.write(f"selastic: not compiled before the first step: {type(error).__name__}: {error}\n")
        finally:
            self._module.train(training)
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


def total(outputs: Any) -> torch.Tensor:
    """A number that all outputs which can learn lead to."""
    learning = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    return torch.stack([leaf.float().sum() for leaf in learning]).sum()


def _variants(known: list[dict[str, Any]], rows: Collection[int]) -> Iterator[tuple[dict[str, Any], tuple[int, int]]]:
    for call in known:
        yield call, (0, 0)
    for call in [call for call in known if call["rows"]][-1:]:
        for number in sorted(set(rows) - {other["rows"] for other in known}, reverse=True):
            yield call, (call["rows"], number)


def _autocast(dtype: str, device: torch.device) -> Any:
    if not dtype:
        return contextlib.nullcontext()
    return torch.autocast(device.type, getattr(torch, dtype))


def _form(value: Any) -> Any:
    """As JSON; of a tensor all but its values."""
    if isinstance(value, torch.Tensor):
        if type(value) is not torch.Tensor or value.layout != torch.strided:
            raise Unknown
        about = [list(value.shape), list(value.stride()), str(value.dtype)[6:], value.requires_grad]
        return {"tensor": about}
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {"dict": {name: _form(item) for name, item in value.items()}}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_form(item) for item in value]}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise Unknown


def _made(form: Any, changed: tuple[int, int], device: torch.device) -> Any:
    """What _form() was given, with zeros. changed: the rows that such tensors have, and those that they get."""
    if not isinstance(form, dict):
        return form
    [(kind, item)] = form.items()
    if kind == "dict":
        return {name: _made(part, changed, device) for name, part in item.items()}
    if kind in ("list", "tuple"):
        made = [_made(part, changed, device) for part in item]
        return made if kind == "list" else tuple(made)
    shape, stride, dtype, learns = item
    if changed[0] and shape and shape[0] == changed[0]:
        shape = [changed[1], *shape[1:]]
        return torch.zeros(shape, dtype=getattr(torch, dtype), device=device, requires_grad=learns)
    zeros = torch.empty_strided(shape, stride, dtype=getattr(torch, dtype), device=device).zero_()
    return zeros.requires_grad_(learns)
