"""What every request passes before its handler: who calls, at what rate, and what was sent, as the route has it; and
the CPU time and the threads that one user's requests may take, so that all others' answers come as usual.

Promise: a handler gets a `Call` whose caller is known, and whose parameters and message are of the route's own types
and within their bounds. No more than AT_A_TIME works of a user are done at once; work for a user who has had their
share is refused (429) before it begins, with the time after which it is taken again; admins' never is. Limit: the
handler checks whose job it is; the time of the thread that does the work is counted when it is done.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from anyio.to_thread import run_sync
from starlette.requests import Request

from slurm_elastic.db.store import Store
from slurm_elastic.protocol import codec
from slurm_elastic.protocol.api import munge
from slurm_elastic.protocol.api.proofs import NONCE, JobProofs
from slurm_elastic.protocol.api.routes import Caller, Route
from slurm_elastic.protocol.errors import NotAllowed

from ..reports.common import Viewer
from . import requests as guard
from .auth import Authenticator, Unauthenticated, spoken
from .requests import Refused
from .settings import ServerSettings

NOBODY = Viewer(-1, private=True)
"""Who asks where it does not matter, or where a job's registration says it."""
REPORTS_PER_INTERVAL = 4
"""Reports of one job that are taken in the time of one: what was kept while selasticd was away is made up for."""
REPORTS_AT_ONCE = 1000
"""As many as a supervisor keeps."""
KEYS_OF_JOB, MAX_JOBS = 4, 20_000
"""Keys that are remembered; whose key is forgotten registers again."""
Q_co = TypeVar("Q_co", covariant=True)
M_co = TypeVar("M_co", covariant=True)


class NotUnderstood(guard.Refused):
    """A message (400) that is none of its address: of the job that speaks, or of one that the viewer names."""

    def __init__(self, sentence: str, job_id: int, viewer: Viewer) -> None:
        super().__init__(400, sentence)
        self.job_id, self.viewer = job_id, viewer


@dataclass(frozen=True, slots=True)
class Call(Generic[Q_co, M_co]):
    """A request that may be carried out."""

    query: Q_co
    message: M_co
    job_id: int = 0
    viewer: Viewer = NOBODY
    sealed: bool = False
    """It came by a connection that nobody else hears: TLS, or the Unix socket."""


class Callers:
    def __init__(self, store: Store, settings: ServerSettings, authenticator: Authenticator) -> None:
        self._store, self._authenticator = store, authenticator
        self.job_limit = guard.RateLimit(settings.requests_per_s)
        per_s = REPORTS_PER_INTERVAL / settings.report_interval_s
        self.report_limit = guard.RateLimit(per_s, REPORTS_AT_ONCE, "reports of this job")
        self.proofs: dict[int, JobProofs] = {}
        """Of each job's last registration with this daemon."""
        self._accept_tokens = settings.accept_tokens
        self._keys: dict[int, dict[str, bytes]] = {}
        # A user may have hundreds of jobs, which all register when the daemon comes back.
        self._user_limit = guard.RateLimit(settings.requests_per_s * 10)

    async def admit(self, route: Route, request: Request) -> Call[object, object]:
        """The request as its handler takes it. Raises Refused, NotAllowed or Unauthenticated."""
        message = None
        guard.check_names(route, request)
        job_id, viewer, body = await self._number(guard.job_name(route, request)), NOBODY, b""
        sealed = guard.peer_uid(request) is not None or request.url.scheme == "https"
        if route.caller is Caller.JOB:
            scheme, value = spoken(request.headers.get("authorization"))
            if scheme == "Bearer":
                viewer = await self._by_token(job_id, request, value, sealed)
            elif not (job_id in self.proofs and self.proofs[job_id].named(value)):
                raise Unauthenticated(f"selasticd knows no such registration of job {job_id}; register the job again")
        if route.message is not None:
            body = await guard.body(request)
        if route.caller is Caller.JOB and viewer is NOBODY:
            viewer = await self._by_proof(job_id, value, munge.bind(request.method, guard.target(request), body))
        if route.caller is Caller.USER:
            viewer = await self._viewer(request, body)
        if route.caller is Caller.ANYONE_OR_USER:
            anonymous = guard.peer_uid(request) is None and "authorization" not in request.headers
            viewer = self._authenticator.viewer(NOBODY.uid) if anonymous else await self._viewer(request, body)
        if route.message is not None:
            try:
                message = codec.from_json(route.message, body)
            except codec.WireError as error:
                raise NotUnderstood(str(error), job_id, viewer) from None
        return Call(guard.query(route, request), message, job_id, viewer, sealed)

    async def _number(self, name: int | str) -> int:
        """The job's own number. Raises Refused (404) for a task of an array that is not known."""
        found = name if isinstance(name, int) else await run_sync(self._store.jobs.of_task, name)
        if found is None:
            raise guard.Refused(404, f"task {name} is not known to selasticd: it has not run with an elastic request")
        return found

    async def _viewer(self, request: Request, body: bytes) -> Viewer:
        credential = request.headers.get("authorization")
        who, target = self._authenticator.who, guard.target(request)
        uid = guard.peer_uid(request)
        if uid is not None and credential is None:
            viewer = self._authenticator.local(uid)
        else:
            viewer = await run_sync(who, credential, request.method, target, body)
        self._user_limit.take(viewer.uid)
        return viewer

    def registered(self, job_id: int, proofs: JobProofs) -> None:
        """A supervisor that proves its requests has registered: what an earlier one was given ends."""
        self._keys.pop(job_id, None)
        self.proofs.pop(job_id, None)
        self.proofs[job_id] = proofs
        if len(self.proofs) > MAX_JOBS:
            del self.proofs[next(iter(self.proofs))]

    def check_older(self, job_id: int, sealed: bool) -> None:
        """Whether a supervisor that proves no requests may register. Raises NotAllowed. Blocking: it asks the store."""
        if not self._accept_tokens or not (sealed or self._store.tokens.held_by(job_id)):
            why = "did not run when selasticd was upgraded" if self._accept_tokens else "accept_tokens is false here"
            raise NotAllowed(
                f"job {job_id} has a slurm-elastic whose requests prove nothing, and {why}; start it again with the "
                "slurm-elastic of the daemon"
            )

    def takes_token(self, job_id: int, token: str, sealed: bool) -> bool:
        """Whether a token may speak for the job that it is of: where somebody else may have heard it, this daemon has
        to have given it."""
        return self._accept_tokens and (sealed or token in self._keys.get(job_id, {}))

    def remember_key(self, job_id: int, token: str, key: bytes) -> None:
        """What answers to whoever shows this token of a job are proven with: the key of the caller that got it."""
        self.proofs.pop(job_id, None)
        newest = [*self._keys.pop(job_id, {}).items(), (token, key)][-KEYS_OF_JOB:]
        self._keys[job_id] = dict(newest)
        if len(self._keys) > MAX_JOBS:
            del self._keys[next(iter(self._keys))]

    async def _by_proof(self, job_id: int, proof: str, bound: bytes) -> Viewer:
        proofs = self.proofs.get(job_id)
        if proofs is None or not proofs.take(proof, bound):
            raise Unauthenticated("the proof is for another request, or was used before; make one for each")
        speaks = self._store.tokens.remembered(proofs.name) or await run_sync(
            self._store.tokens.speaks_for, proofs.name
        )
        if speaks != job_id:
            raise Unauthenticated(f"job {job_id} has ended; register the job again")
        self.job_limit.take(job_id)
        return replace(NOBODY, key=proofs.answers)

    async def _by_token(self, job_id: int, request: Request, token: str, sealed: bool) -> Viewer:
        speaks = self._store.tokens.remembered_token(token) or await run_sync(self._store.tokens.job_of, token)
        if speaks is None:
            raise Unauthenticated(f"the token is not known, or job {job_id} has ended; register the job again")
        if speaks != job_id:
            raise NotAllowed(f"the token is of job {speaks}; it does not speak for job {job_id}")
        key = self._keys.get(job_id, {}).get(token, b"")
        if not self.takes_token(job_id, token, sealed) or (not key and NONCE in request.headers):
            raise Unauthenticated(f"selasticd was started after job {job_id} registered; register the job again")
        self.job_limit.take(job_id)
        return replace(NOBODY, key=key)


T = TypeVar("T")
SHARE = 0.1
"""Of a core."""
AT_ONCE_S = 5.0
"""CPU time that may be had at once: all jobs of a user register when the daemon comes back."""
AT_A_TIME = 8
"""Works of one user, each in a thread: a fifth of the threads there are, so that some are left for supervisors."""
MOST_USERS = 10_000
"""Users that are remembered; of more, those who have had nothing for a while are forgotten."""


class CpuShares:
    """What each user has left. Used from the event loop only."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._left: dict[int, tuple[float, float]] = {}
        """uid -> CPU seconds left, below 0 where more was used, and when that was so."""
        self._turns: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()
        """uid -> held while work is done for this user, or waits to be."""

    async def run(self, viewer: Viewer, work: Callable[[], T]) -> T:
        """Do it in a thread. Raises Refused, and what the work raises."""
        async with self._turns.setdefault(viewer.uid, asyncio.Semaphore(AT_A_TIME)):
            if (left := self._now_left(viewer.uid)) <= 0 and not viewer.admin:
                wait = math.ceil(-left / SHARE) + 1
                sentence = f"your requests have taken more than {SHARE:.0%} of a core; ask again in {wait} s"
                raise Refused(429, sentence, wait)
            return await self._timed(viewer.uid, work)

    async def _timed(self, uid: int, work: Callable[[], T]) -> T:
        spent = 0.0

        def timed() -> T:
            nonlocal spent
            began = self._cpu_clock()
            try:
                return work()
            finally:
                spent = self._cpu_clock() - began

        try:
            return await run_sync(timed)
        finally:
            self._left[uid] = self._now_left(uid) - spent, self._clock()
            self._forget()

    def _now_left(self, uid: int) -> float:
        now = self._clock()
        left, at = self._left.get(uid, (AT_ONCE_S, now))
        return min(AT_ONCE_S, left + (now - at) * SHARE)

    def _forget(self) -> None:
        if len(self._left) > MOST_USERS:
            self._left = {uid: entry for uid, entry in self._left.items() if self._now_left(uid) < AT_ONCE_S}
