"""A SlurmClient that keeps the latest snapshot for everyone who asks, and guards every change by a check.

Promise: a job that the snapshot does not have yet costs at most one new snapshot every ASK_GAP_S, and whoever names
jobs that do not exist gets ASKS of them, then one every ASK_EACH_S. Thread-safe.
Limit: between two snapshots Slurm's state may have changed.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from slurm_elastic.protocol.errors import SlurmError, SlurmUnreachable, TooOften

from .fair_share import ShareTree
from .model import Job, SlurmClient, Snapshot
from .site import Site
from .slurms_clock import SlurmsClock

log = logging.getLogger(__name__)
Shares = Literal["never", "counted", "always"]
"""counted: where Slurm's own priorities count them."""
EXCLUDED_S = 60.0
"""How old the excluded nodes of waiting jobs may be: their users may change them."""
ASK_GAP_S = 0.25
"""Shortest time between two snapshots taken because someone asks for a job that is not known yet."""


ACTS = frozenset({
    "cancel", "requeue", "reserve", "resize_waiting", "set_power", "set_site_factor", "shrink", "unreserve",
})  # fmt: skip
"""What of a client changes something."""
ASKS, ASK_EACH_S = 5, 10.0
"""Snapshots that one user has for jobs that do not exist, and the seconds until there is another one."""


K = TypeVar("K")
V = TypeVar("V")


def _as_before(found: Mapping[K, V], before: Mapping[K, V]) -> dict[K, V]:
    """The same, with the objects of before for what is as it was: who keeps what was made of one knows it again."""
    return {key: known if (known := before.get(key, new)) is new or known == new else new for key, new in found.items()}


class SnapshotCache(SlurmClient if TYPE_CHECKING else object):  # type: ignore[misc]  # its methods are the client's
    """A SlurmClient that keeps the latest snapshot, and takes a new one when it does not know a job.

    Before each act it asks `confirm`, which raises when this daemon may not act.
    """

    def __init__(
        self,
        client: SlurmClient,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        confirm: Callable[[], object] = lambda: None,
        slurms_clock: SlurmsClock | None = None,
        shares: Shares = "never",
    ) -> None:
        """slurms_clock: by which the time of a snapshot is Slurm's. shares: when the site is read with its shares."""
        self._slurms_clock = slurms_clock or SlurmsClock(client.slurms_time)
        self._client, self._clock, self._pause, self._confirm = client, clock, pause, confirm
        self._lock, self._asking = threading.Lock(), threading.Lock()
        self._asked = 0.0
        self._turns: dict[int, tuple[float, float]] = {}
        """What is left of the snapshots for jobs that do not exist, and when that was so, by uid."""
        self._snapshot = Snapshot(0.0)
        self._numbers, self._kept = itertools.count(1), 0
        self._asked_of: set[int] = set()
        self._excluded: Mapping[int, tuple[str, ...]] = {}
        self._excluded_at = 0.0
        self._over_partition = frozenset[str]()
        """QOSes, as slurmdbd told them last."""
        self._wants_shares = shares
        self._shares: ShareTree | None = None
        self._shares_missing = False

    def snapshot(self) -> Snapshot:
        """A new one, which is kept unless one that was asked for later is. Raises as SlurmClient.snapshot."""
        number = next(self._numbers)
        self._slurms_clock.look()
        found = self._with_excluded_nodes(self._client.snapshot())
        before = self.latest()
        found = replace(
            found,
            at=found.at - self._slurms_clock.ahead(),
            jobs=_as_before(found.jobs, before.jobs),
            nodes=_as_before(found.nodes, before.nodes),
        )
        with self._lock:
            if number > self._kept:
                self._kept, self._snapshot = number, found
        return found

    def _with_excluded_nodes(self, snapshot: Snapshot) -> Snapshot:
        """Slurm lists them apart from the rest: asked for when a job is seen for the first time, and now and again."""
        jobs = snapshot.jobs.keys()
        if jobs - self._asked_of or (jobs and abs(snapshot.at - self._excluded_at) >= EXCLUDED_S):
            self._excluded, self._excluded_at = self._client.excluded_nodes(), snapshot.at
            self._asked_of = set(jobs)
        excluding = {
            job_id: replace(snapshot.jobs[job_id], excluded_nodes=nodes)
            for job_id, nodes in self._excluded.items()
            if job_id in jobs
        }
        return replace(snapshot, jobs={**snapshot.jobs, **excluding}) if excluding else snapshot

    def site(self) -> Site:
        found = self._client.site()
        found = replace(found, at=found.at - self._slurms_clock.ahead())
        if self._wants_shares == "always" or (self._wants_shares == "counted" and found.counts_shares):
            found = replace(found, shares=self._read_shares())
        rules, qos = self._client.partitions()
        sleeps = found.power_saving or (found.can_suspend and any(one.suspends for one in rules.values()))
        found = replace(found, partitions=rules, partition_qos=qos, power_saving=sleeps)
        if not found.limits or not qos:
            return found
        with suppress(SlurmUnreachable):  # slurmdbd may be away while slurmctld works
            self._over_partition = self._client.qos_over_partition()
        return replace(found, qos_over_partition=self._over_partition)

    def _read_shares(self) -> ShareTree | None:
        """Where they are not to be had as they were before, or None; that is said once."""
        try:
            found = self._client.shares()
        except SlurmError as error:
            if not self._shares_missing:
                told = "not known, so fairness goes by account" if self._shares is None else "as last read"
                log.warning("Slurm's shares are %s: %s", told, error)
            self._shares_missing = True
        else:
            self._shares_missing = False
            self._shares = self._shares if found == self._shares else found
        return self._shares

    def latest(self) -> Snapshot:
        """The one that is kept."""
        with self._lock:
            return self._snapshot

    def __getattr__(self, name: str) -> Any:
        """All else is the client's, as it is; before each act `confirm` is asked."""
        if name in ACTS:
            self._confirm()
        return getattr(self._client, name)

    def find(self, job_id: int, uid: int) -> Job | None:
        """The job as Slurm has it; None when Slurm does not list it.

        `uid`: who asks. Raises TooOften when he has named too many that do not exist, and this one may be another.
        """
        came = self._clock()
        if job_id not in self.latest().jobs:
            self._check_turns(uid)
            with self._asking:
                # Everyone who asked while another's snapshot was on its way shares the next one.
                if self._asked < came:
                    self._check_turns(uid)
                    self._pause(max(0.0, min(ASK_GAP_S, self._asked + ASK_GAP_S - self._clock())))
                    self._asked = self._clock()
                    if job_id not in self.snapshot().jobs:
                        self._turns[uid] = self._left(uid) - 1, self._clock()
        return self.latest().jobs.get(job_id)

    def _check_turns(self, uid: int) -> None:
        if self._left(uid) < 1:
            raise TooOften(f"too many jobs that Slurm does not list; accepted: one in {ASK_EACH_S:g} s")

    def _left(self, uid: int) -> float:
        left, at = self._turns.get(uid, (ASKS, 0.0))
        return min(ASKS, left + max(0.0, self._clock() - at) / ASK_EACH_S)
