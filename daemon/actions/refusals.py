"""What Slurm refuses, counted where it belongs: the job, its account in its partition, either of them, or all; of its
user alone at first, then of several users. A node and the queue are themselves, then one of their kind, then of all.
And what `selastic probe` found of a site, as plans use it. No I/O.

Promise: refusals rest the smallest of these that explains them, for longer each time; what lies outside is asked as
before, and one action that Slurm takes ends the rest of all that it belongs to. However many jobs one user has refused,
nobody else's rest. Of what was probed only what Slurm or the site refused as such rules anything out, until it is
probed again or forgotten. Limit: refusals are in memory; after a restart of the daemon one more action of each is
tried. Where few users have elastic jobs nothing wider than the jobs of each ever rests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from slurm_elastic.protocol.codes import EventKind
from slurm_elastic.protocol.messages import REFUSED, WORKS, Tried
from slurm_elastic.protocol.records import record

from ..slurm.model import Job
from .action import JOB, Subject

SALLOC, SBATCH, SHRINK, REQUEUE, COMPONENT, EPILOG = "salloc", "sbatch", "shrink", "requeue", "component", "epilog"
"""What is tried and decides how jobs are resized; all else is for people."""
Found = Mapping[str, Tried]
"""By the name of what was tried."""
MOST_S = 1800.0
"""For nothing that a user says are nodes kept longer than any setting allows."""
_FOR_NOW = re.compile(r"limit|violates accounting|busy|not available|odes required for job|temporarily", re.IGNORECASE)


def refused(found: Found, name: str) -> str:
    """The words with which it is refused whenever it is asked; empty: it is not."""
    one = found.get(name)
    return "" if one is None or one.outcome != REFUSED or _FOR_NOW.search(one.said) else one.said


def no_companions(found: Found) -> str:
    """Why there are no companions, in neither form; empty: there are."""
    return refused(found, SALLOC) and refused(found, SBATCH)


def companion_by(found: Found) -> str:
    """The one form in which a companion can be had; empty: salloc can be tried first."""
    works = SBATCH in found and found[SBATCH].outcome == WORKS
    return "sbatch" if works and refused(found, SALLOC) else ""


def seconds(found: Found, name: str) -> float:
    """How long it took; 0: that is not known."""
    return (found[name].seconds or 0.0) if name in found else 0.0


def granted_s(found: Found) -> float:
    """After how many seconds the first companion was granted, MOST_S at most; 0: that is not known."""
    return min(MOST_S, seconds(found, SALLOC) or seconds(found, SBATCH))


BACKOFF_MAX_S = 3600.0
REST_MAX_S = 86400.0
FORGET_S = 7200.0
"""After this long without a refusal the next one counts as the first."""
ALL = "all jobs"
UNLISTED = "jobs that Slurm does not list"
USERS_AGAIN = 2
"""Users refused until what is of several rests again: after the first time it need not be as many."""


@record(frozen=True, slots=True)
class Refusal:
    """What Slurm said when it refused, and when the same is asked again."""

    sentence: str
    until: float
    scope: str = ""
    """Whom it concerns, where that is more than one job: partition low, for instance."""

    @property
    def lasts(self) -> bool:
        """It is never asked again."""
        return self.until == inf

    @property
    def words(self) -> str:
        """Why it is not tried, in words that follow a colon."""
        if self.lasts:
            return self.sentence
        return f"not tried for {self.scope or 'this job'} for a while: {self.sentence}"


WHOLE_JOBS = Refusal("this site gives back whole Slurm jobs only (release_by)", inf)


def standing(release_by: str, found: Found) -> Mapping[EventKind, Refusal]:
    """What is never asked of Slurm, as the site wants it, or because `selastic probe` was refused it (`found`)."""
    probed = {EventKind.SHRINK: refused(found, SHRINK), EventKind.REQUEUE: refused(found, REQUEUE)}
    probed[EventKind.RESIZE_SUBMITTED] = no_companions(found)
    never = {kind: Refusal(f"selastic probe was refused it: {words}", inf) for kind, words in probed.items() if words}
    return {**never, EventKind.SHRINK: WHOLE_JOBS} if release_by == "job" else never


@record(frozen=True, slots=True)
class Concerned:
    """Whom a refusal concerns: the subject, and as what it was submitted where it is a job."""

    subject: Subject
    account: str = ""
    partition: str = ""
    user: str = ""

    @classmethod
    def of(cls, subject: Subject, job: Job | None) -> Concerned:
        """By the Slurm job that is asked about; None: it is about none, or Slurm does not list that."""
        return cls(subject) if job is None else cls(subject, job.account, job.partition, job.user)

    @property
    def own_scopes(self) -> tuple[str, ...]:
        """What of its user's it belongs to, from narrow to wide."""
        if not self.user:
            return (UNLISTED if self.subject.kind == JOB else f"every {self.subject.kind}",)
        jobs = f"user {self.user}'s jobs"
        if not (self.account and self.partition):
            return (jobs,)
        account, partition = f"of account {self.account}", f"in partition {self.partition}"
        return (f"{jobs} {account} {partition}", f"{jobs} {partition}", f"{jobs} {account}", jobs)

    @property
    def scopes(self) -> tuple[str, ...]:
        """What of everybody's it belongs to, from narrow to wide."""
        if not (self.account and self.partition):
            return (ALL,)
        account, partition = f"account {self.account}", f"partition {self.partition}"
        return (f"{account} in {partition}", partition, account, ALL)


@dataclass(slots=True)
class _OfSubject:
    count: int
    refusal: Refusal


@dataclass(slots=True)
class _OfScope:
    subjects: dict[Subject, str] = field(default_factory=dict)
    """Refused since the last of the scope was not, with their users."""
    rests: int = 0
    refusal: Refusal | None = None


class Refusals:
    def __init__(self, backoff_s: float, trip_after: int, trip_s: float) -> None:
        """backoff_s: after a job's first. trip_after: how many refused in a row make a scope rest for trip_s: jobs, or
        users where it is of several."""
        self._backoff_s, self._trip_after, self._trip_s = backoff_s, trip_after, trip_s
        self._subjects: dict[tuple[EventKind, Subject], _OfSubject] = {}
        self._scopes: dict[tuple[EventKind, str], _OfScope] = {}

    def refused(
        self, kind: EventKind, concerned: Concerned, sentence: str, now: float
    ) -> tuple[Refusal, Refusal | None]:
        """Count one: how long the job's rest is, and the wider scope that rests from now on, if one does."""
        self._forget(now)
        key = kind, concerned.subject
        count = self._subjects[key].count + 1 if key in self._subjects else 1
        own = Refusal(sentence, now + min(BACKOFF_MAX_S, self._backoff_s * 2 ** min(20, count - 1)))
        self._subjects[key] = _OfSubject(count, own)
        every = (*concerned.own_scopes, *concerned.scopes)
        for number, scope in enumerate(every):
            of_scope = self._scopes.setdefault((kind, scope), _OfScope())
            of_scope.subjects[concerned.subject] = concerned.user
            if not self._rests(of_scope, shared=scope in concerned.scopes):
                continue
            wait = min(REST_MAX_S, self._trip_s * 2 ** min(20, of_scope.rests))
            of_scope.rests, of_scope.refusal = of_scope.rests + 1, Refusal(sentence, now + wait, scope)
            explained, of_scope.subjects = of_scope.subjects, {}
            for wider in every[number + 1 :]:
                if (kind, wider) in self._scopes:
                    left = self._scopes[kind, wider]
                    left.subjects = {one: u for one, u in left.subjects.items() if one not in explained}
            return own, of_scope.refusal
        return own, None

    def _rests(self, of_scope: _OfScope, shared: bool) -> bool:
        """Whether so much of a scope was refused; of one that users share each user counts once."""
        if shared:
            users = len(set(of_scope.subjects.values()))
            return users >= (min(USERS_AGAIN, self._trip_after) if of_scope.rests else self._trip_after)
        return len(of_scope.subjects) >= (1 if of_scope.rests else self._trip_after)

    def taken(self, kind: EventKind, concerned: Concerned) -> None:
        """Slurm took one: nothing that the job belongs to rests any longer."""
        self._subjects.pop((kind, concerned.subject), None)
        for scope in (*concerned.own_scopes, *concerned.scopes):
            self._scopes.pop((kind, scope), None)

    def wide(self, kind: EventKind, concerned: Concerned, now: float) -> Refusal | None:
        """Why no job like this one is asked for now; None: they are."""
        for scope in (*concerned.own_scopes, *concerned.scopes):
            of_scope = self._scopes.get((kind, scope))
            if of_scope is not None and of_scope.refusal is not None and now < of_scope.refusal.until:
                return of_scope.refusal
        return None

    @property
    def none(self) -> bool:
        """Whether nothing is refused to anybody."""
        return not self._subjects and not self._scopes

    def of(self, concerned: Concerned, now: float) -> Mapping[EventKind, Refusal]:
        """What Slurm refuses to do about a job now, the widest reason first."""
        if self.none:
            return {}
        found: dict[EventKind, Refusal] = {}
        for kind in {kind for kind, _ in (*self._subjects, *self._scopes)}:
            own = self._subjects.get((kind, concerned.subject))
            refusal = self.wide(kind, concerned, now) or (own.refusal if own is not None else None)
            if refusal is not None and now < refusal.until:
                found[kind] = refusal
        return found

    def of_all(self, now: float) -> Refusal | None:
        """Why nothing at all is asked for now; None: it is."""
        everywhere = (row.refusal for (_, scope), row in self._scopes.items() if scope == ALL)
        return next((refusal for refusal in everywhere if refusal is not None and now < refusal.until), None)

    def _forget(self, now: float) -> None:
        self._subjects = {k: row for k, row in self._subjects.items() if row.refusal.until + FORGET_S > now}
        self._scopes = {
            k: row for k, row in self._scopes.items() if row.refusal is None or row.refusal.until + FORGET_S > now
        }
