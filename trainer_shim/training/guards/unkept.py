"""Tensors that the script changes in place in each step, and that nobody keeps: averages of weights by hand, memory
banks. They are named once, in the first steps, for they begin anew on a worker that joins or starts again.

Limit: tensors of several values in variables of the script's function that loops, or of its module, and in their lists,
dicts and modules; not attributes of other objects, nor what each step binds anew, or changes by way of `.data`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from ...state.variables import Variables
from .counters import LOOKS, script

MOST = 10_000
"""Entries of a list; longer ones are data."""
UNKEPT = (
    "'{}' is changed by each step, and nobody keeps it: it begins anew on a worker that joins or starts again; "
    "accepted, where more than a line of output follows from it: job.keep()"
)


class Unkept:
    """One per training. say: takes the sentence."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._looks, self._seen = say, 0, -1
        self._changing: dict[str, dict[int, int]] = {}

    def look(self, step: int, parts: Iterable[Any]) -> None:
        """Between two steps, below the script's loop. parts: what survives."""
        if self._looks == LOOKS or step == self._seen or (frame := script()) is None:
            return
        self._looks, self._seen = self._looks + 1, step
        variables = {**frame.f_globals, **frame.f_locals}
        found = {name: {id(one): one._version for one in _tensors(value)} for name, value in variables.items()}
        if self._looks > 1:
            found = {
                name: versions
                for name, versions in found.items()
                if any(version > self._changing.get(name, {}).get(key, version) for key, version in versions.items())
            }
        self._changing = found
        if self._looks < LOOKS or not found:
            return
        kept, names = set[int](), set[str]()
        for part in parts:
            names.update(part.names if isinstance(part, Variables) else ())
            held = part.state if isinstance(part, torch.optim.Optimizer) else part
            entries = held.values() if isinstance(held, dict) else ()
            kept.update(id(one) for value in (held, *entries) for one in _tensors(value))
        for name in found.keys() - names:
            if not kept.issuperset(found[name]):
                self._say(UNKEPT.format(name))


def _tensors(value: Any) -> list[torch.Tensor]:
    """Those of several values in it, with their gradients where it is a module."""
    if isinstance(value, nn.Module):
        own = [*value.parameters(), *value.buffers()]
        value = own + [one.grad for one in own if one.grad is not None]
    entries = value.values() if type(value) is dict else value if type(value) in (list, tuple) else [value]
    if isinstance(value, (list, dict)) and len(value) > MOST:
        return []
    return [one for one in entries if isinstance(one, torch.Tensor) and one.numel() > 1 and not one.is_inference()]
