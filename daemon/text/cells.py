"""Cells of a table: a value as the commands print it. Pure but for the clock that relative times need."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from . import tables
from .times import format_time

Form = Callable[[Any], str]


def number(digits: int = 3) -> Form:
    """So many significant digits."""
    return functools.partial(tables.number, digits=digits)


def share(value: float) -> str:
    """A part of one, in percent."""
    return f"{value:.0%}"


def moment(value: float) -> str:
    """A time as SLURM_TIME_FORMAT wants it."""
    return format_time(value, time.time())


def bounds(low: str, high: str) -> Callable[[Any], str]:
    """A cell with MIN-MAX of two fields, or one number when they are equal."""

    def cell(record: object) -> str:
        first, last = getattr(record, low), getattr(record, high)
        if first is None or last is None:
            return ""
        return str(first) if first == last else f"{first}-{last}"

    return cell
