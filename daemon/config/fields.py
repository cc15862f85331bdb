"""The kinds of settings, from which each folder's table of them is made.

A table is a frozen dataclass of settings beside what it configures, and `table` its name in selasticd.toml; the
docstring under a setting is its explanation in the reference. What works with one table takes that, not all settings.

How far selasticd goes.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


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


MODES = ("off", "observe", "review", "act")
_SERVICES = (
    r"[a-z_]+=(off|review|act)",
    'a list of NAME=off, NAME=review or NAME=act, such as ["elastic=review"]',
)


@dataclass(frozen=True, kw_only=True)
class Modes:
    """Settings before the first table."""

    table: ClassVar[str] = ""

    mode: str = choice("review", *MODES)
    """How far selasticd goes. `off`: it only answers questions. `observe`: it also measures. `review`: it also decides
    and explains what it would do. `act`: it does it. Stay with `review` for a day before you choose `act`."""

    services: tuple[str, ...] = texts(*_SERVICES)
    """How far single services of selasticd may go, within `mode`: `off`, `review` (it says what it would do) or `act`.
    `elastic`, the resizes of elastic jobs, goes as far as `mode` where it is not named; any other service is off."""

    user_mode: bool = setting(False, "true or false", flag)
    """Whether the daemon serves only the user who runs it, as `selasticd --user` does: no privilege is needed."""

    @property
    def of_services(self) -> dict[str, str]:
        """How far services may go that are named, by name."""
        return {name: reach for name, _, reach in (one.partition("=") for one in self.services)}
