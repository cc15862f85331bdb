"""Cells of a table: a value as the commands print it. Pure but for the clock that relative times need."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from itertools import groupby
from typing import Any

from . import tables
from .times import format_time

Form = Callable[[Any], str]
_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)")


def number(digits: int = 3) -> Form:
    """So many significant digits."""
    return functools.partial(tables.number, digits=digits)


def share(value: float) -> str:
    """A part of one, in percent."""
    return f"{value:.0%}"


def moment(value: float) -> str:
    """A time as SLURM_TIME_FORMAT wants it."""
    return format_time(value, time.time())


def folded(names: str) -> str:
    """ "n[1-3,7]" for "n1,n2,n3,n7", as Slurm writes a node list; here without the daemon's library for them."""
    groups: dict[tuple[str, str, int], list[int]] = {}
    found = [_NUMBERED.fullmatch(name) for name in names.split(",")]
    padded = {(each[1], each[3], len(each[2])) for each in found if each and each[2][0] == "0"}
    for name, each in zip(names.split(","), found, strict=True):
        if each is None:
            groups[name, "", -1] = []
            continue
        digits = len(each[2]) if (each[1], each[3], len(each[2])) in padded else 0
        groups.setdefault((each[1], each[3], digits), []).append(int(each[2]))
    return ",".join(_group(*key, sorted(set(numbers))) for key, numbers in groups.items())


def _group(before: str, behind: str, digits: int, numbers: list[int]) -> str:
    """One node list of names that differ in one number. digits: with as many of them, 0: with as many as it takes."""
    parts = []
    for _, run in groupby(enumerate(numbers), key=lambda entry: entry[1] - entry[0]):
        first, *more = [f"{number:0{digits}d}" for _, number in run]
        parts.append(f"{first}-{more[-1]}" if more else first)
    inside = ",".join(parts)
    return before + (f"[{inside}]" if len(numbers) > 1 else inside) + behind


def bounds(low: str, high: str) -> Callable[[Any], str]:
    """A cell with MIN-MAX of two fields, or one number when they are equal."""

    def cell(record: object) -> str:
        first, last = getattr(record, low), getattr(record, high)
        if first is None or last is None:
            return ""
        return str(first) if first == last else f"{first}-{last}"

    return cell
