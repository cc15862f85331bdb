"""Who may act on this database: one daemon at a time, numbered by a fencing number that only grows.

Promise: two holders never believe in the lease at once, whatever their clocks say: time is measured by each side for
itself, as a duration since the last change that it saw, by a clock that nobody sets and that counts a suspended
machine's sleep. A holder that was stopped for too long is refused its next write, for the number has moved on.
Limit: the table must stay as it is in every later schema, since the lease is taken before the schema is upgraded.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, select, update

from slurm_elastic.protocol.errors import LeaseLost

from . import schema
from .clock import boot_time
from .engine import Database
from .parts.base import insert_or_ignore

_ROWS = schema.lease
_ONLY = _ROWS.c.name == schema.LEASE
MARGIN = 1.25
"""A contender waits this many times the lease: the holder's own count began before its renewal was on the disk."""


@dataclass(frozen=True, slots=True)
class Held:
    """The lease as a contender finds it."""

    fence: int
    beat: int
    place: str
    """Where its holder keeps its lock file; "" when nobody holds it."""
    who: str
    lease_s: float


class Lease:
    """One contender's or holder's view. Calls are the owner's to order: one thread takes and renews; `check` is free.

    place: names this process's lock file, so that whoever holds that lock knows that the former holder is dead.
    who: the same for people. lease_s: how long it is valid without being renewed.
    """

    def __init__(
        self, database: Database, place: str, who: str, lease_s: float, clock: Callable[[], float] = boot_time
    ) -> None:
        self._db, self._place, self._who, self._lease_s, self._clock = database, place, who, lease_s, clock
        self._seen: tuple[tuple[int, int], float] | None = None
        self._valid_until = float("-inf")
        self.fence = 0
        """The number under which this process acts; 0 before it holds the lease."""
        self.lost = False
        """Somebody else has taken it; there is no way back but to start anew."""

    def look(self) -> Held:
        """The lease now; the row is made where there is none. Raises StoreError."""
        with self._db.read() as connection:
            row = connection.execute(select(_ROWS).where(_ONLY)).first()
        if row is None:
            values = dict(name=schema.LEASE, fence=0, beat=0, place="", who="", lease_s=0.0, renewed=0.0)
            with self._db.write() as connection:
                connection.execute(insert_or_ignore(self._db, _ROWS), values)
            return self.look()
        return Held(row.fence, row.beat, row.place, row.who, row.lease_s)

    def try_take(self) -> Held | None:
        """Take the lease if it is free, this place's own, or not renewed for its time as seen from here.

        None when it is taken; else who holds it: ask again soon. Raises StoreError.
        """
        held = self.look()
        mark, now = (held.fence, held.beat), self._clock()
        if self._seen is None or self._seen[0] != mark:
            self._seen = (mark, now)
        free = held.place in ("", self._place)
        if not free and now - self._seen[1] < held.lease_s * MARGIN:
            return held
        begun = self._clock()
        values = dict(fence=held.fence + 1, beat=held.beat + 1, place=self._place, who=self._who)
        if not self._change(held.fence, held.beat, {**values, "lease_s": self._lease_s}):
            return held
        self.fence, self._valid_until = held.fence + 1, begun + self._lease_s
        return None

    def renew(self) -> None:
        """Say that the holder lives. Raises LeaseLost when somebody else has it, StoreError when nothing is known."""
        begun = self._clock()
        if not self._change(self.fence, None, dict(beat=_ROWS.c.beat + 1)):
            self.lost = True
            raise LeaseLost(self._taken())
        self._valid_until = begun + self._lease_s

    def check(self) -> None:
        """Raise LeaseLost unless the lease is valid at this moment; asks no database."""
        if self.lost:
            raise LeaseLost(self._taken())
        late = self._clock() - self._valid_until
        if late >= 0:
            raise LeaseLost(f"the lease was not renewed for {late + self._lease_s:.0f} s; nothing is done without it")

    def release(self) -> None:
        """Let the next one in at once. Does nothing when it is not held any more. Raises StoreError."""
        self._valid_until = float("-inf")
        self._change(self.fence, None, dict(place="", who=""))

    def _change(self, fence: int, beat: int | None, values: dict[str, object]) -> bool:
        where = _ONLY & (_ROWS.c.fence == fence)
        if beat is not None:
            where &= _ROWS.c.beat == beat
        with self._db.write() as connection:
            done = connection.execute(update(_ROWS).where(where).values(**values, renewed=time.time()))
        return done.rowcount == 1

    def _taken(self) -> str:
        return f"another selasticd has taken the lease of {self._db.name} (this one had number {self.fence})"


def guard(database: Database, fence: int) -> None:
    """From now on every transaction that writes through `database` is refused once the lease has a higher number."""

    def refuse_if_stale(connection: Connection) -> None:
        # Where rows are locked, a takeover waits until this transaction is over; SQLite has one writer anyway.
        found = connection.execute(select(_ROWS.c.fence).where(_ONLY).with_for_update(read=True)).scalar()
        if found != fence:
            raise LeaseLost(f"another selasticd has the lease of {database.name} (number {found}, this one {fence})")

    database.fence = refuse_if_stale
