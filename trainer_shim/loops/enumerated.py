"""`enumerate(loader)` counts on where a worker comes to the middle of a pass, as it does for the others; also where a
progress bar or map() stands between the two.

An enumerate() has its number in its own object, which says where it is and is written there: Python has no other way to
move it. Limit: what else counts around a loader (zip(), islice(), a generator of the script's own) is not moved but
named, once, in the first step.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from types import FrameType, GeneratorType
from typing import Any

COUNTS = (
    "{} stands between the loop and the loader: what it counts begins anew on a worker that joins, or starts again, "
    "within a pass; enumerate(loader) counts on by itself, and loader.done says where a pass is gone on with"
)
INSTALLED = re.compile(r"/(site|dist)-packages/")
START = 0x5EED5EED
"""A number that no other field of an enumerate() has."""
OTHERS = (zip, itertools.islice, filter)


class Enumerated:
    """An iterator over one pass of which so many batches are done. A count that begins there is left alone, where the
    script has asked for that number. say: takes the sentence on what is not moved."""

    def __init__(self, batches: Iterator[Any], done: int, asked: bool, say: Callable[[str], None] | None) -> None:
        self._batches, self._done, self._asked = batches, done, asked
        self._say = None if asked else say

    def __iter__(self) -> Enumerated:
        return self

    def __next__(self) -> Any:
        if self._done or self._say is not None:
            counters, others = around(self, sys._getframe(1))
            for counter in counters:
                if not (self._asked and count(counter) >= self._done):
                    others += [] if moved(counter, self._done) else [counter]
            if others and self._say is not None:
                name = getattr(others[0], "__name__", type(others[0]).__name__)  # of a generator: its function's
                self._say(COUNTS.format(f"{name}()"))
            self._done, self._say = 0, None
        return next(self._batches)


def around(iterator: Iterator[Any], frame: FrameType | None) -> tuple[list[enumerate[Any]], list[Any]]:
    """The enumerate() objects that hand out what an iterator gives, and what else counts there. frame: its caller's."""
    counters, others, givers = [], [], [iterator]
    while frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR:  # it asks for whom it was asked by
        running = [given for given in gc.get_objects() if type(given) is GeneratorType and given.gi_frame is frame]
        if not INSTALLED.search(frame.f_code.co_filename):
            # It may hand out batches, or be the training itself and hand out something else.
            others += [given for given in running if any(type(held) is enumerate for held in gc.get_referrers(given))]
            break
        givers += running
        frame = frame.f_back
    for giver in givers:
        for holder in gc.get_referrers(giver):
            if type(holder) is enumerate:
                counters.append(holder)
            elif type(holder) in OTHERS:
                others.append(holder)
            elif type(holder) in (map, tuple):  # a zip() has them in a tuple
                givers.append(holder)
    return counters, others


def count(counter: Any) -> int:
    """The number that an enumerate() gives next."""
    return int(counter.__reduce__()[1][1])


def moved(counter: enumerate[Any], by: int) -> bool:
    """Whether the count has been moved: only where this Python has it at the place where CPython 3.10 to 3.13 do."""
    known: enumerate[Any] = enumerate((), START)
    if sys.implementation.name != "cpython" or _place_of(known).value != START:
        return False
    place = _place_of(counter)
    if place.value != count(counter):  # beyond what a machine's word holds it is elsewhere
        return False
    place.value += by
    return True


def _place_of(counter: enumerate[Any]) -> ctypes.c_ssize_t:
    return ctypes.c_ssize_t.from_address(id(counter) + object.__basicsize__)
