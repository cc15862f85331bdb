"""Numbers, generators and streams in a script's variables by which it trains (slices.py), and that nobody keeps: where
a worker joins or starts again they are compared with what they were when the state was taken. They end it where they
differ; numbers also where ranks differ in a world's first step.

Limit: numbers, also in lists and dicts, and in attributes of the script's own objects; nothing that is true or false.
"""

import hashlib
from collections import deque
from collections.abc import Set
from typing import Any

import torch

from slurm_elastic.protocol.errors import TrainingError

from ...state.kept_parts import State
from ...state.variables import Variables
from .script_frames import is_of_script, script, scripts
from .slices import at_head, is_product
from .unkept import GENERATORS, version_of

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
        self._world: tuple[int, int] | None = None

    def look(self, rank: int, size: int) -> None:
        """Between two steps, below the script's loop. Raises TrainingError."""
        if (frame := script()) is None:
            return
        place, progress, before = (frame.f_code, frame.f_lineno), self._state.progress, self._state.variables
        world, self._world = self._world, (rank, size)
        if place not in self._heads:
            self._heads[place] = [(n, name) for n, other in enumerate(scripts()) for name in sorted(at_head(other))]
        kept = self._kept()
        values = self._values(self._heads[place], kept)
        texts = {name: text for name, value in values.items() if (text := text_of(value))}
        at = (progress.step, progress.epoch, progress.loader, progress.cursor, f"{frame.f_code.co_name}:{place[1]}")
        if world is None and before:
            self._check(before, texts, at)
        streams = {name: values[name] for name, text in texts.items() if text == STREAM}
        for name, stream in streams.items():
            if world not in (None, self._world) and self._streams.get(name) is stream:
                raise TrainingError(STREAM_ANEW.format(name, progress.step))
        self._streams = streams
        first = before["first"] if before else texts
        moved = {name: text for name, text in texts.items() if text == STREAM or text != first.get(name)}
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

    def _values(self, places: list[tuple[int, str]], kept: set[Any]) -> dict[str, Any]:
        """Of these variables, and of attributes of the script's own objects there."""
        frames, found = list(scripts()) if places else [], dict[str, Any]()
        for depth, name in places:
            root, _, part = name.partition(".")
            frame = frames[depth]
            value = frame.f_locals.get(root, frame.f_globals.get(root))
            if id(value) in kept:
                continue
            value = vars(value).get(part) if part and hasattr(value, "__dict__") else value
            found[name] = value
            if hasattr(value, "__dict__") and is_of_script(type(value).__module__) and not isinstance(value, type):
                found.update({f"{name}.{key}": entry for key, entry in vars(value).items()})
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
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return repr(value)
    if isinstance(value, GENERATORS) or type(value).__module__ == "numpy.random._generator":
        return f"a generator #{_digest(version_of(value))}"
    if type(value) in (list, tuple, dict, deque) and len(value) <= ENTRIES:
        entries = list(value.items() if type(value) is dict else value)
        plain = all(isinstance(leaf, (int, float, str, tuple)) for leaf in entries)
        return f"a {type(value).__name__} of {len(value)} #{_digest(entries)}" if plain else ""
    stream = hasattr(type(value), "__next__") and not hasattr(value, "read") and not is_product(value)
    frame = getattr(value, "gi_frame", None)  # a generator's, perhaps over a loader of the job
    return STREAM if stream and not any(map(is_product, frame.f_locals.values() if frame else ())) else ""


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=4).hexdigest()
