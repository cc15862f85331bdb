"""Counts of steps that a script keeps in variables of its own, and that begin anew where a worker comes to a training
under way: named once, for what they decide (the end of the training, names of files) comes late there.

Limit: integers in variables of the script's function that loops, or of its module; not attributes. A step of two micro
batches may count twice.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .script_frames import script

LOOKS = 3
"""Steps after which it is known. Of a worker that begins with a pass, whose own count it may be: behind that pass."""
ANEW = (
    "{} counts the steps since this worker began, {} of {}: what it decides comes late on a worker that joins or "
    "starts again; accepted: {} = job.global_step before the loop, or job.keep() of it"
)


class Counters:
    """One per training. say: takes the sentence."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._began, self._looks, self._over = say, -1, 0, False
        self._values: dict[str, int] = {}

    def look(self, step: int, in_pass: int) -> None:
        """Between two steps, below the script's loop. step: of the training, in_pass: of the pass."""
        if self._over:
            return
        if self._began < 0:
            self._began, self._over = step, step <= LOOKS
        made = step - self._began
        if made <= self._looks or (frame := script()) is None:
            return
        values = {name: value for name, value in {**frame.f_globals, **frame.f_locals}.items() if type(value) is int}
        if self._looks:
            values = {name: value for name, value in values.items() if 1 <= value - self._values.get(name, value) <= 2}
        self._values, self._looks = values, made
        if made < LOOKS or (values and abs(made - in_pass) <= 1):
            return
        self._over = True
        place = f"{Path(frame.f_code.co_filename).name} line {frame.f_lineno}"
        for name, value in values.items():
            if made - 1 <= value < min(2 * made + 1, (made + step) / 2) and abs(value - in_pass) > 1:
                self._say(ANEW.format(f"{place}: {name}", value, step, name))
