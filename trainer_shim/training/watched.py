"""What a script does under `selastic rehearse`: which of its own lines run, and which files it writes.

Agents import this before they fork workers (--preload), so that a script is watched from its first line on. Limits:
files that libraries write without Python's open() or torch.save() are not seen, nor is what runs in other threads.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

VARIABLE = "SELASTIC_REHEARSE"
"""{"folder": where to write, "program": folders of the script, ...}: see rehearsed.py."""

_program: tuple[str, ...] = ()
_names: dict[str, str] = {}
"""Of the script's files, as they are told; "" for others."""
_ran: set[tuple[str, int]] = set()


def _trace(frame: FrameType, event: str, arg: Any) -> Any:
    file = frame.f_code.co_filename
    if file not in _names:
        whole = str(Path(file).absolute())
        own = file[:1] != "<" and whole.startswith(_program) and "site-packages" not in whole
        _names[file] = whole.removeprefix(_program[0]) if own else ""
    if not (name := _names[file]):
        return None
    _ran.add((name, frame.f_lineno))
    return _trace


if VARIABLE in os.environ:  # in an agent
    _program = tuple(f"{folder}/" for folder in json.loads(os.environ[VARIABLE])["program"])
    os.register_at_fork(after_in_child=lambda: sys.settrace(_trace))


def lines_ran() -> dict[str, list[int]]:
    """By file, since this was asked for last."""
    found: dict[str, list[int]] = {}
    for name, number in sorted(_ran):
        found.setdefault(name, []).append(number)
    _ran.clear()
    return found


class Files:
    """Those that one worker writes. note: takes the name of each, whenever it is opened."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note, self._here, self._busy = note, Path.cwd(), False
        own = str(Path(os.environ.get("SELASTIC_JOB_DIR", self._here)).parent)
        self._others = (own, sys.prefix, sys.base_prefix, tempfile.gettempdir(), "/dev", "/proc", "/sys")
        sys.addaudithook(self._heard)

    def quietly(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """What it writes is nobody's business."""
        self._busy, before = True, self._busy
        try:
            function(*args, **kwargs)
        finally:
            self._busy = before

    def wrote(self, path: Any) -> None:
        if self._busy or not isinstance(path, (str, os.PathLike)):
            return
        whole = self._here / os.fsdecode(path)
        inside = whole.is_relative_to(self._here)
        if "__pycache__" not in whole.parts and (inside or not str(whole).startswith(self._others)):
            self.quietly(self._note, str(whole.relative_to(self._here) if inside else whole))

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
            self.wrote(args[0])
