"""The store: everything the daemon remembers, and the only door to it. No SQL outside this package.

Synchronous and thread-safe. What a call has stored is on the disk when it returns. It remembers what was decided and
measured; what Slurm holds is Slurm's to say, and is looked up, not recalled.
"""

from __future__ import annotations

from sqlalchemy import func, select

from . import schema
from .engine import Database
from .lease import guard
from .migrate import check, migrate
from .parts.allocations import Allocations
from .parts.base import Ended
from .parts.decisions import Decisions, Events
from .parts.history import LearnedPriors, Outcomes, Programs
from .parts.jobs import Jobs, Tokens
from .parts.reports import Reports
from .parts.resizes import Resizes
from .parts.retention import Retention, Thinning
from .parts.site import HostPairs, Probes


class Store:
    """The database of one daemon. `Store.open(url)` creates or upgrades it; `Store(url)` wants it ready."""

    def __init__(self, url: str, fence: int | None = None) -> None:
        """Raises StoreError: a missing or unwritable directory, a network file system, another schema.

        fence: the number of the lease under which this process writes (db.lease); None: it has no rival.
        """
        self._db = Database(url)
        if fence is not None:
            guard(self._db, fence)
        try:
            check(self._db)
        except BaseException:
            self._db.close()
            raise
        of = self._db, Ended()
        self.tokens = Tokens(*of)
        self.jobs = Jobs(*of, self.tokens)
        self.allocations = Allocations(*of)
        self.reports = Reports(*of, self.allocations)
        self.resizes = Resizes(*of)
        self.decisions = Decisions(*of)
        self.events = Events(*of)
        self.outcomes = Outcomes(*of)
        self.programs = Programs(*of)
        self.priors = LearnedPriors(*of)
        self.host_pairs = HostPairs(*of)
        self.probes = Probes(*of)
        self.retention = Retention(*of, self.reports)
        self.thinning = Thinning(*of)

    @classmethod
    def open(cls, url: str, fence: int | None = None) -> Store:
        """Bring the database to this code's schema, then open it."""
        database = Database(url)
        if fence is not None:
            guard(database, fence)
        try:
            migrate(database)
        finally:
            database.close()
        return cls(url, fence)

    def confirm(self) -> None:
        """Raise LeaseLost when another daemon writes here now; to be asked before anything is done outside."""
        with self._db.write():
            return

    @property
    def version(self) -> int:
        """Changes with all that is stored here but reports: who remembers an answer sees whether it still holds."""
        return self._db.version

    def newest(self) -> float:
        """When the last thing that is stored happened; 0 where nothing has."""
        latest = (func.max(schema.events.c.at), func.max(schema.allocations.c.start))
        with self._db.read() as connection:
            return max((connection.execute(select(one)).scalar() or 0.0 for one in latest), default=0.0)

    @property
    def trouble(self) -> str:
        """Why nothing could be written when that was last tried; empty when it could."""
        return self._db.trouble

    def close(self) -> None:
        """Commit the reports that wait, what they come to with all others, and let the database go."""
        self.reports.close()
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
