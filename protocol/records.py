"""Records that are made by the thousand in every round of the daemon.

Promise: `@record(frozen=True, slots=True)` is to mypy what `@dataclass(frozen=True, slots=True)` is, and equal, hashed
and printed like it. Limit: that nothing writes to a record is mypy's to check. At runtime nothing stops it: a frozen
dataclass stores each field by a call, and takes five times as long to make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from dataclasses import dataclass

    def record(*, frozen, slots, eq=True, kw_only=False):
        """The dataclass without the calls."""
        return dataclass(slots=slots, eq=eq, kw_only=kw_only, unsafe_hash=frozen and eq)


__all__ = ["record"]
