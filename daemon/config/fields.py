"""The kinds of settings, from which each folder's table of them is made.

A table is a frozen dataclass of settings beside what it configures, and `table` its name in selasticd.toml; the
docstring under a setting is its explanation in the reference. What works with one table takes that, not all settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any


def setting(default: Any, accepted: str, read: Callable[[Any], Any], words: Mapping[str, str] | None = None) -> Any:
    """A setting. `accepted`: what it takes, in words; `read`: the value as it is kept, or ValueError; `words`: the
    words that it takes, each with its meaning where the reference explains them one by one."""
    return field(default=default, metadata={"accepted": accepted, "read": read, "words": words or {}})


def number(default: float, low: float, high: float) -> Any:
    """A number between two bounds, both inclusive; a whole one when the default is whole."""
    kind = type(default)

    def read(value: Any) -> float:
        if type(value) not in (int, kind) or not low <= value <= high:
            raise ValueError
        return kind(value)

    return setting(default, f"{'a whole number' if kind is int else 'a number'} from {low:g} to {high:g}", read)


def choice(default: str, *words: str, meanings: Mapping[str, str] | None = None) -> Any:
    """One of several words; `meanings`: in their place words that the reference explains one by one."""
    accepted = meanings or dict.fromkeys(words, "")

    def read(value: Any) -> Any:
        if value not in tuple(accepted):
            raise ValueError
        return value

    return setting(default, ", ".join(accepted), read, accepted)


def text(default: str, form: str, accepted: str) -> Any:
    """A text that matches the expression `form`; `accepted` says the same in words."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or re.fullmatch(form, value) is None:
            raise ValueError
        return value

    return setting(default, accepted, read)


def texts(form: str, accepted: str) -> Any:
    """A list of texts that match the expression `form`, empty by default."""

    def read(value: Any) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)) or not all(isinstance(entry, (str, int)) for entry in value):
            raise ValueError
        if not all(re.fullmatch(form, str(entry)) for entry in value):
            raise ValueError
        return tuple(str(entry) for entry in value)

    return setting((), accepted, read)


def flag(value: Any) -> bool:
    """True or false. Raises ValueError."""
    if not isinstance(value, bool):
        raise ValueError
    return value


NAMES = (r"[\w.@+-]+", 'a list of names, such as ["gpu", "long"]')
PATH = (r"|/.*", "an absolute path, or nothing")
