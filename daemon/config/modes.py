"""How far selasticd goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .fields import choice, flag, setting, texts

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
