"""Numbers, generators and streams in a script's variables by which it trains (slices.py), and that nobody keeps: where
a worker joins or starts again they are compared with what they were when the state was taken. They end it where they
differ; numbers also where ranks differ in a world's first step.

Limit: numbers and flags, also in lists and dicts, and in attributes of the script's own objects.
"""

import hashlib
import marshal
from collections import deque
from collections.abc import Set
from types import FrameType
from typing import Any

import torch

from slurm_elastic.protocol.errors import TrainingError

from ...state.kept_parts import State
from ...state.variables import Variables
from .first_calls import OWN
from .script_frames import is_of_script, scripts, variables
from .slices import at_head, is_product
from .unkept import is_generator, version_of

STREAM = "a stream"
ENTRIES = 1000
"""Of a list or a dict; longer ones are data."""
BEGUN_ANEW = (
    "the script trains by '{0}', which is {1} on a worker that begins at step {2}, and was {3} where the training is: "
    "it begins anew there; accepted: job.global_step, or job.epoch, in its place, job.keep() of it, or "
    "join(meant=['{0}']) where that is meant"
)
STREAM_ANEW = (
    "'{0}' is read on from step to step, and at step {1} begins anew, or goes on in a world of other ranks: samples "
    "repeat or are missed; accepted: job.loader(dataset), a stream made anew in each world, by job.generation and "
    "job.global_step (docs/how-to/data-that-is-no-dataset.md), or join(meant=['{0}']) where that is meant"
)


class Carried:
    """One per training. meant: names of which the script says that it is meant so. numbers: takes those of this rank
    that have changed, kept ones too."""

    def __init__(self, state: State, meant: Set[str], numbers: dict[str, str]) -> None:
        self._state, self._meant, self._numbers = state, meant, numbers
        self._heads: dict[Any, list[tuple[int, str]]] = {}
        self._streams: dict[str, Any] = {}
        self._own: dict[str, str] = {}
        """What this process's first look found."""
        self._world: tuple[int, int] | None = None

    def look(self, rank: int, size: int) -> None:
        """Between two steps, below the script's loop. Raises TrainingError."""
        if not (frames := list(scripts())):
            return
        progress, before = self._state.progress, self._state.variables
        place = tuple((other.f_code, other.f_lineno) for other in frames)
        world, self._world = self._world, (rank, size)
        if place not in self._heads:
            self._heads[place] = [(n, name) for n, other in enumerate(frames) for name in sorted(at_head(other))]
        kept = self._kept()
        values = self._values(frames, self._heads[place], kept)
        texts = {name: text for name, value in values.items() if (text := text_of(value))}
        line = f"{frames[0].f_code.co_name}:{frames[0].f_lineno}"
        at = (progress.step, progress.epoch, progress.loader, progress.cursor, line)
        if world is None and before:
            self._check(before, texts, at)
        streams = {name: values[name] for name, text in texts.items() if text == STREAM}
        for name, stream in streams.items():
            if world not in (None, self._world) and self._streams.get(name) is stream:
                raise TrainingError(STREAM_ANEW.format(name, progress.step))
        self._streams = streams
        first = before["first"] if before else texts
        self._own = self._own or texts  # a time at which the script began, say, is another one in each process
        moved = {n: text for n, text in texts.items() if text == STREAM or text not in (first.get(n), self._own.get(n))}
        self._numbers.clear()
        self._numbers.update({n: text for n, text in moved.items() if isinstance(values[n], (float, torch.Tensor))})
        now = {name: text for name, text in moved.items() if kept.isdisjoint(_words(name))}
        self._state.variables = {"first": first, "at": at, "now": now}

    def _check(self, before: dict[str, Any], texts: dict[str, str], at: tuple[Any, ...]) -> None:
        """In a worker's first look at a training under way: has it what there was?"""
        for name, then in before["now"].items():
            now = texts.get(name, "")
            if then == STREAM and now in (STREAM, "None", ""):
                raise TrainingError(STREAM_ANEW.format(name, at[0]))
            same = tuple(before["at"]) == at
            begun = now == before["first"].get(name) and tuple(before["at"][1:3]) == at[1:3]  # a step later, say
            if now and now != then and (same or begun):
                raise TrainingError(BEGUN_ANEW.format(name, now, at[0], then))

    def _values(self, frames: list[FrameType], places: list[tuple[int, str]], kept: set[Any]) -> dict[str, Any]:
        """Of these variables, and of attributes of the script's own objects there."""
        found, own = dict[str, Any](), {depth: variables(frames[depth]) for depth in {depth for depth, _ in places}}
        for depth, name in places:
            root, _, part = name.partition(".")
            both = own[depth], frames[depth].f_globals
            value = next((held[root] for held in both if root in held), None)
            if id(value) in kept or not any(root in held for held in both):  # no turn begins by what is not there
                continue
            for key in part.split(".") if part else ():
                value = getattr(value, "__dict__", {}).get(key)
            found[name] = value
            kind, own_object = type(value), hasattr(value, "__dict__") and is_of_script(type(value).__module__)
            if own_object and not isinstance(value, type) and not hasattr(kind, "__getitem__"):  # data: stateful.py
                found.update({f"{name}.{key}": entry for key, entry in vars(value).items() if key not in OWN})
        return {name: value for name, value in found.items() if self._meant.isdisjoint(_words(name))}

    def _kept(self) -> set[Any]:
        """Names of variables that are, and ids of objects."""
        parts = self._state.parts.values()
        names = {name for part in parts if isinstance(part, Variables) for name in part.names}
        return names | {id(getattr(part, "_collection", part)) for part in parts}


def _words(name: str) -> tuple[str, str]:
    return name, name.rpartition(".")[2]


def text_of(value: Any) -> str:
    """Another one for another value; "" for what is not compared."""
    if isinstance(value, torch.Tensor):
        return repr(value.item()) if value.numel() == 1 and value.device.type == "cpu" else ""
    if value is None or isinstance(value, (int, float)):
        return repr(value)
    if is_generator(value):
        return f"a generator #{_digest(version_of(value))}"
    if type(value) in (list, tuple, dict, deque) and len(value) <= ENTRIES:
        entries = list(value.items() if type(value) is dict else value)
        return f"a {type(value).__name__} of {len(value)} #{_digest(entries)}" if all(map(_is_plain, entries)) else ""
    stream = hasattr(type(value), "__next__") and not hasattr(value, "read") and not is_product(value)
    frame = getattr(value, "gi_frame", None)  # a generator's, perhaps over a loader of the job
    return STREAM if stream and not any(map(is_product, variables(frame).values() if frame else ())) else ""


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, (int, float, str))


def _digest(value: Any) -> str:
    try:
        told = marshal.dumps(value, 2)  # of this version alike in each process, and faster than repr()
    except ValueError:
        told = repr(value).encode()
    return hashlib.blake2b(told, digest_size=4).hexdigest()
