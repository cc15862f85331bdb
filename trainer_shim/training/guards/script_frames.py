"""The script's own functions that are under way, and which of their variables go from one step to the next.

Limit: what is read off bytecode holds for CPython.
"""

import bisect
import dis
import functools
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

NOT_THE_SCRIPTS = re.compile(r"/(site|dist)-packages/|/lib/python3[^/]*/|^<")
ENDS = re.compile(r"RETURN_|RAISE|RERAISE|JUMP_")
"""Instructions that the next one does not follow."""
VARIABLES = re.compile(r"(LOAD|STORE|DELETE)_(FAST|NAME|GLOBAL|DEREF)")


def script(frame: FrameType | None = None) -> FrameType | None:
    """The innermost function of the script that is under way, from a frame on; None: from the caller's caller."""
    frame = frame or sys._getframe(2)
    while frame is not None:
        if is_code_of_script(str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename):
            return frame
        frame = frame.f_back
    return None


def line_under_way() -> str:
    """Where the script is, `train.py line 12`."""
    frame = script(sys._getframe(1))
    return f"{Path(frame.f_code.co_filename).name} line {frame.f_lineno}" if frame is not None else "a line"


def is_of_script(module: str) -> bool:
    """Whether a module is the script's own."""
    return is_code_of_script(module, getattr(sys.modules.get(module), "__file__", None) or "<")


@functools.lru_cache(maxsize=1024)
def is_code_of_script(module: str, file: str) -> bool:
    return not module.startswith("slurm_elastic.") and not NOT_THE_SCRIPTS.search(file)


def scripts() -> Iterator[FrameType]:
    """All of them, from the innermost one on."""
    frame = script(sys._getframe(1))
    while frame is not None:
        yield frame
        frame = script(frame.f_back) if frame.f_back is not None else None


def variables(frame: FrameType) -> dict[str, Any]:
    """Of a function its own, and of a module all, as they are now."""
    own, code = frame.f_locals, frame.f_code
    found = dict(own)
    if sys.version_info < (3, 13) and code.co_flags & inspect.CO_OPTIMIZED and "locals" not in code.co_names:
        own.clear()  # a copy that stays with the frame: batches would outlive their step
    return found


@functools.lru_cache(maxsize=64)
def assigned(code: CodeType) -> frozenset[str]:
    """Variables that the function assigns."""
    return frozenset(name for entry in dis.get_instructions(code) for what, name in _uses(entry) if what != "LOAD")


@functools.lru_cache(maxsize=64)
def read_next(code: CodeType, at: int) -> frozenset[str]:
    """Variables that the function may read, from behind this instruction on, before it assigns them. Of the head of a
    `for` loop: in the loop's body."""
    entries = [entry for entry in dis.get_instructions(code) if entry.opname != "CACHE"]
    places = {entry.offset: number for number, entry in enumerate(entries)}
    nexts = [[number + 1] if not ENDS.match(entry.opname) else [] for number, entry in enumerate(entries)]
    for number, entry in enumerate(entries):
        if entry.opcode in dis.hasjrel or entry.opcode in dis.hasjabs:
            nexts[number].append(places[entry.argval])
    reads: list[set[str]] = [set() for _ in range(len(entries) + 1)]
    changed = True
    while changed:
        changed = False
        for number in reversed(range(len(entries))):
            found = set[str]().union(*(reads[other] for other in nexts[number]))
            for what, name in reversed(_uses(entries[number])):
                found = found | {name} if what == "LOAD" else found - {name}
            changed = changed or found != reads[number]
            reads[number] = found
    return frozenset(reads[bisect.bisect_right(list(places), at)])  # `at` may lie in an instruction's cache


def _uses(entry: dis.Instruction) -> list[tuple[str, Any]]:
    """What one instruction does to variables, in order; newer ones do two things at once."""
    kinds = [found[1] for found in VARIABLES.finditer(entry.opname)]
    names = entry.argval if isinstance(entry.argval, tuple) else (entry.argval,)
    return list(zip(kinds, names, strict=False))
