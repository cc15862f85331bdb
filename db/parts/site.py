"""What users found out of the site: pairs of hosts that did not reach each other in resizes, and what probes found.

A pair that has trained in one world since is forgotten, and so is one of which nothing was heard for FORGET_S. Limit:
what follows from it is not decided here.
"""

from collections.abc import Collection, Iterable
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from slurm_elastic.protocol import codec
from slurm_elastic.protocol.messages import NOT_TRIED, Tried, Unreached

from .. import schema
from ..engine import Database
from ..rows import HostPair, ProbeRow
from .base import Ended, StorePart

FORGET_S = 7 * 86400.0
MOST = 1000
"""Pairs of one user: the oldest go."""
MOST_PROBED = 50
"""Partitions of one user: the oldest go."""
_PAIRS, _PROBED = schema.host_pairs, schema.probes


class HostPairs(StorePart):
    def __init__(self, database: Database, ended: Ended) -> None:
        super().__init__(database, ended)
        self._pairs: tuple[HostPair, ...] | None = None

    def all(self) -> tuple[HostPair, ...]:
        with self._db.lock:
            if self._pairs is None:
                self._pairs = tuple(self._records(HostPair, _IN_ORDER))
            return self._pairs

    def note(self, user: str, pairs: Iterable[Unreached], at: float) -> list[HostPair]:
        """A resize of this user's has failed because of these; returns what is known of them now."""
        found = []
        with self._db.lock:
            with self._db.write() as connection:
                connection.execute(delete(_PAIRS).where(_PAIRS.c.last_at < at - FORGET_S))
                for pair in pairs:
                    found.append(_counted(connection, user, pair, at))
                kept = select(_PAIRS.c.last_at).where(_PAIRS.c.user == user).order_by(_PAIRS.c.last_at.desc())
                surplus = connection.execute(kept.offset(MOST).limit(1)).scalar()
                if surplus is not None:
                    connection.execute(delete(_PAIRS).where(_PAIRS.c.user == user, _PAIRS.c.last_at <= surplus))
            self._pairs = None
        return found

    def note_reached(self, user: str, hosts: Collection[str]) -> None:
        """These train in one world of this user's: each reaches the others."""
        self._forget_pairs([p for p in self.all() if p.user == user and p.host in hosts and p.other in hosts])

    def forget(self, host: str, other: str, users: Collection[str] | None) -> list[HostPair]:
        """Forget what these users' jobs found out about the two, or about the one and all others where `other` is
        empty. users: None for everybody. Returns what was forgotten."""
        mine = (pair for pair in self.all() if users is None or pair.user in users)
        named = {host, other} - {""}
        gone = [pair for pair in mine if named <= {pair.host, pair.other}]
        self._forget_pairs(gone)
        return gone

    def _forget_pairs(self, gone: Collection[HostPair]) -> None:
        if not gone:
            return
        with self._db.lock:
            with self._db.write() as connection:
                for pair in gone:
                    connection.execute(delete(_PAIRS).where(_is(pair.user, pair.host, pair.other)))
            self._pairs = None


class Probes(StorePart):
    """What `selastic probe` found, by the user whose jobs it counts for and by partition: the last one counts,
    of what it tried."""

    def __init__(self, database: Database, ended: Ended) -> None:
        super().__init__(database, ended)
        self._probes: tuple[ProbeRow, ...] | None = None

    def all(self) -> tuple[ProbeRow, ...]:
        """All of them, in the order of users and partitions."""
        with self._db.lock:
            if self._probes is None:
                self._probes = tuple(
                    ProbeRow(row.user, row.partition, row.at, tuple(codec.decode(Tried, one) for one in row.tried))
                    for row in self._rows(select(_PROBED).order_by(_PROBED.c.user, _PROBED.c.partition))
                )
            return self._probes

    def save(self, row: ProbeRow) -> None:
        """Keep what was found, in place of what was found there before; what was not tried stays as it was. Where
        nothing at all was tried, what was found before is forgotten."""
        mine, before = _PROBED.c.user == row.user, dict[str, Tried]()
        for known in self.all():
            if (known.user, known.partition) == (row.user, row.partition):
                before = {one.name: one for one in known.tried}
        new = {one.name: replace(one, at=row.at) for one in row.tried}
        tried = [before.get(name, one) if one.outcome == NOT_TRIED else one for name, one in new.items()]
        with self._db.lock:
            with self._db.write() as connection:
                connection.execute(delete(_PROBED).where(mine, _PROBED.c.partition == row.partition))
                values = {"user": row.user, "partition": row.partition, "at": row.at}
                if tried:
                    connection.execute(insert(_PROBED).values(**values, tried=[asdict(one) for one in tried]))
                surplus = select(_PROBED.c.partition).where(mine).order_by(_PROBED.c.at.desc()).offset(MOST_PROBED)
                for name in connection.execute(surplus.limit(MOST_PROBED)).scalars().all():
                    connection.execute(delete(_PROBED).where(mine, _PROBED.c.partition == name))
            self._probes = None


_IN_ORDER = select(_PAIRS).order_by(_PAIRS.c.user, _PAIRS.c.host, _PAIRS.c.other)


def _counted(connection: Connection, user: str, pair: Unreached, at: float) -> HostPair:
    """One more failure of this pair; whoever of the two tried, it is the same pair."""
    host, other = sorted((pair.host, pair.other))
    this = _is(user, host, other)
    before = connection.execute(select(_PAIRS.c.failures).where(this)).scalar()
    found = HostPair(user, host, other, f"{pair.other} at {pair.address}", (before or 0) + 1, at)
    values = {"address": found.address, "failures": found.failures, "last_at": at}
    if before is None:
        connection.execute(insert(_PAIRS).values(user=user, host=host, other=other, **values))
    else:
        connection.execute(update(_PAIRS).where(this).values(**values))
    return found


def _is(user: str, host: str, other: str) -> Any:
    return (_PAIRS.c.user == user) & (_PAIRS.c.host == host) & (_PAIRS.c.other == other)
