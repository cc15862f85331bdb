"""The HTTP API, version 1: what supervisors and the command line say to selasticd.

It checks whose job it is and stores or hands on; it decides nothing. Everything that blocks (the database, MUNGE,
Slurm) runs in threads; a resize that is waited for holds no thread. The addresses are those of protocol/api/routes.py:
each has a handler of its name here.
"""

import asyncio
import dataclasses
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from anyio.to_thread import run_sync
from starlette import routing
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from slurm_elastic.db.clock import steady_now
from slurm_elastic.db.rows import ProbeRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol import codec, messages
from slurm_elastic.protocol import request as elastic_request
from slurm_elastic.protocol.answers.by_route import Pinned, Stored, Taken
from slurm_elastic.protocol.answers.history import Accounting, PlanTable
from slurm_elastic.protocol.answers.record import not_known
from slurm_elastic.protocol.answers.site import Cleared, Remembered
from slurm_elastic.protocol.api import routes
from slurm_elastic.protocol.api.proofs import SINCE, JobProofs
from slurm_elastic.protocol.api.routes import ROUTES, Caller, NoQuery, Route
from slurm_elastic.protocol.codes import EventKind
from slurm_elastic.protocol.errors import NotAllowed, NotFound, RequestError
from slurm_elastic.protocol.version import version

from .. import reports
from ..prediction.advice import advise
from ..prediction.deadlines import told
from ..prediction.sizes import predict
from ..reports.common import Viewer
from . import openapi
from . import requests as guard
from .auth import Authenticator
from .callers import NOBODY, Call, Callers, CpuShares, NotUnderstood
from .controller import DaemonController
from .metrics import Metrics
from .report_intake import Intake
from .requests import Refused
from .settings import ServerSettings
from .status_cache import StatusCache

_SUPERVISORS = (routes.REGISTER, routes.HAPPENINGS, routes.RATES, routes.PHASES, routes.REPORTS)
"""What a supervisor says."""
MOST_LETTERS, MOST_TRIED = 255, 50
"""Of a partition's name, and in one probe."""
T = TypeVar("T")
DAY_S = 86_400.0
MOST_HISTORIES = 2
"""Views of past time that are made at once, one for each user: each may read a year of all jobs into memory, and a
thread that makes one is not there for supervisors."""
Handler = Callable[[Call[Any, Any]], Awaitable[object]]
"""Gives the answer, a Response for one that is no JSON, or None for nothing new."""


class Api:
    """The handlers, over one store and one controller. reports/ decides who sees what; threads do the work, not the
    event loop, and each user has their share of it."""

    def __init__(
        self, store: Store, controller: DaemonController, settings: ServerSettings, authenticator: Authenticator
    ) -> None:
        self.store = store
        self.controller = controller
        self.callers = Callers(store, settings, authenticator)
        self.prometheus = Metrics(store, controller.rounds)
        self.status_cache = StatusCache(store)
        self._shares = CpuShares()
        self._histories = asyncio.Semaphore(MOST_HISTORIES)
        self._readers: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        """uid -> held while a view of past time is made for this user, or waited for."""

    def addresses(self) -> list[routing.Route]:
        return [
            routing.Route(
                route.path.replace("{job_id}", "{job_id:job}"), self._served(route, handler), methods=[route.method]
            )
            for route in ROUTES
            for handler in [getattr(self, route.name)]
        ]

    def _served(self, route: Route, handler: Handler) -> guard.Handler:
        async def serve(request: Request) -> Response:
            try:
                call = await self.callers.admit(route, request)
                if call.viewer.uid != NOBODY.uid and (prove := getattr(request.state, "prove", None)):
                    prove()
                found = await handler(call)
                response = found if isinstance(found, Response) else guard.reply(found, route.status)
                guard.prove(request, call.viewer.key, response)
            except Exception as raised:  # the one place where a request ends badly
                response = guard.answer(await self._noted(route, raised))
            self.prometheus.requests.labels(response.status_code).inc()
            if response.status_code == 429:
                await asyncio.sleep(guard.TOO_MANY_S)
            return response

        return serve

    async def _noted(self, route: Route, raised: Exception) -> Exception:
        """What to answer; that a supervisor is not understood is kept with its job."""
        if not isinstance(raised, NotUnderstood) or route not in _SUPERVISORS:
            return raised
        try:
            if route.caller is Caller.USER:
                await self._own(raised.job_id, raised.viewer)
            await run_sync(self.controller.not_understood, raised.job_id, str(raised))
        except Exception as other:
            return other
        return raised

    async def health(self, call: Call[NoQuery, None]) -> object:
        return await run_sync(self.controller.health)

    async def openapi(self, call: Call[NoQuery, None]) -> object:
        return openapi.document()

    async def metrics(self, call: Call[NoQuery, None]) -> object:
        """Prometheus metrics; where Slurm hides others' jobs, sums over them are for admins."""
        text = await run_sync(self.prometheus.exposition, not call.viewer.private)
        return Response(text, media_type=self.prometheus.content_type)

    async def register(self, call: Call[NoQuery, messages.Registration]) -> object:
        """A supervisor proves who it is, and speaks for its job from then on when Slurm says that it is the owner."""
        registration, job_id, viewer = call.message, call.job_id, call.viewer
        proves = registration.version >= SINCE
        await self._own(job_id, viewer)
        if not proves:
            await run_sync(self.callers.check_older, job_id, call.sealed)
        proofs = JobProofs(viewer.key, secrets.token_urlsafe(32))

        def store() -> messages.Grant:
            grant = self.controller.registered(job_id, registration)
            if proves:
                self.store.tokens.note_registration(job_id, viewer.uid, proofs.name)
            return dataclasses.replace(
                grant,
                token=proofs.token if proves else self.store.tokens.mint(job_id, viewer.uid),
                reason=codec.printable(grant.reason),
                request=codec.printable(grant.request),
                release=version(),
            )

        granted = await self._shares.run(viewer, store)
        if proves:
            self.callers.registered(job_id, proofs)
        else:
            self.callers.remember_key(job_id, granted.token, viewer.key)
        return granted

    async def reports(self, call: Call[NoQuery, messages.Reports]) -> object:
        """Reports are on the disk when this answers 202."""
        reports = call.message.reports
        if reports:
            self.callers.report_limit.take(call.job_id, len(reports))
            stored = asyncio.get_running_loop().create_future()
            self.store.reports.store(call.job_id, reports, steady_now(), partial(_settle, stored))
            await stored
            self.prometheus.reports.inc(len(reports))
        return Stored(stored=len(reports))

    async def happenings(self, call: Call[NoQuery, messages.Happening]) -> object:
        return await self._said(call, call.message)

    async def rates(self, call: Call[NoQuery, messages.Rate]) -> object:
        return await self._said(call, call.message)

    async def phases(self, call: Call[NoQuery, messages.Phase]) -> object:
        """Both, as supervisors of 0.2 say them."""
        return await self._said(call, call.message.now())

    async def _said(self, call: Call[NoQuery, Any], said: messages.Happening | messages.Rate) -> Taken:
        job_id = call.job_id
        if isinstance(said, messages.Rate):
            if said.of not in messages.RATES:
                sentence = f"of={said.of[:40]} is not known; accepted: {', '.join(messages.RATES)}"
                raise NotUnderstood(sentence, job_id, call.viewer)
            await run_sync(self.controller.rated, job_id, said)
            return Taken()
        if said.what not in messages.HAPPENINGS:
            name = "phase" if isinstance(call.message, messages.Phase) else "what"
            sentence = f"{name}={said.what[:40]} is not known; accepted: {', '.join(messages.HAPPENINGS)}"
            raise NotUnderstood(sentence, job_id, call.viewer)

        def store() -> None:
            if said.resize and self.store.resizes.get(said.resize).job_id != job_id:
                raise NotAllowed(f"resize {said.resize} is another job's; accepted: those of job {job_id}")
            self.controller.happened(job_id, said)

        await run_sync(store)
        self.prometheus.happened(said)
        return Taken()

    async def resize(self, call: Call[routes.ResizeQuery, None]) -> object:
        """The job's resize when it is newer than `after` or withdrawn; else None after `wait` seconds."""
        return await self.controller.wait_resize(call.job_id, call.query.after, call.query.wait)

    async def pin(self, call: Call[NoQuery, messages.Pin]) -> object:
        """The owner or an admin holds a job at a size, or lets it go."""
        gpus = call.message.gpus
        why = await self._shares.run(call.viewer, partial(self._pin, call.job_id, gpus, call.viewer))
        return Pinned(job_id=call.job_id, pinned=gpus, out_of_reach=why or None)

    async def clear_hosts(self, call: Call[NoQuery, messages.Reachable]) -> object:
        """An admin, or a user for the jobs of theirs, says that hosts reach each other again."""
        return await self._shares.run(call.viewer, partial(self._clear_hosts, call.message, call.viewer))

    async def probed(self, call: Call[NoQuery, messages.Probed]) -> object:
        """What was found counts for everybody's jobs where an admin has probed, for their own where a user has."""
        return await self._shares.run(call.viewer, partial(self._probed, call.message, call.viewer))

    async def status(self, call: Call[NoQuery, None]) -> object:
        found = self.status_cache.ready(call.viewer)
        if found is None:
            found = await self._shares.run(call.viewer, partial(self.status_cache.json, call.viewer))
        return Response(found, media_type="application/json")

    async def job(self, call: Call[NoQuery, None]) -> object:
        return await self._made(call, reports.job, call.job_id, call.viewer, steady_now())

    async def explain(self, call: Call[NoQuery, None]) -> object:
        await self._shares.run(call.viewer, partial(self.controller.look_for, call.job_id, call.viewer.uid))
        found = await self._made(call, reports.explain, call.job_id, call.viewer, steady_now())
        arguments = self.controller.basis, self.controller.ground(), call.job_id, steady_now()
        return dataclasses.replace(found, aims=await self._made(call, told, *arguments))

    async def predict(self, call: Call[routes.PredictQuery, None]) -> object:
        arguments = self.controller.basis, call.job_id, call.viewer, call.query, steady_now()
        return await self._made(call, predict, *arguments)

    async def advise(self, call: Call[Any, None]) -> object:
        basis, ground = self.controller.basis, self.controller.ground()
        return await self._made(call, advise, basis, ground, call.job_id, call.viewer, call.query, steady_now())

    async def predictions(self, call: Call[NoQuery, None]) -> object:
        return await self._made(call, reports.prediction_errors, call.viewer, steady_now())

    async def events(self, call: Call[routes.EventsQuery, None]) -> object:
        return await self._made(call, reports.events, call.job_id, call.viewer, call.query.limit)

    async def acct(self, call: Call[routes.AcctQuery, None]) -> object:
        asked = call.query
        rows = partial(
            reports.acct, self.store, call.viewer, steady_now(),
            start=asked.start, end=asked.end, user=asked.user, job=asked.job,
        )  # fmt: skip
        return Accounting(allocations=tuple(await self._history(call.viewer, rows)))

    async def plan(self, call: Call[routes.PlanQuery, None]) -> object:
        """What the last rounds decided, or with dry_run=1 what a round would decide now."""
        if call.query.dry_run:
            return await self._shares.run(call.viewer, partial(self._dry_plan, call.viewer))
        plan = await self._made(call, reports.plan, call.viewer)
        return dataclasses.replace(plan, notes=tuple(self.controller.notes())) if call.viewer.admin else plan

    async def review(self, call: Call[routes.WindowQuery, None]) -> object:
        return await self._over_a_window(call, reports.review)

    advice = review

    async def usage(self, call: Call[routes.WindowQuery, None]) -> object:
        controller = self.controller
        return await self._over_a_window(
            call, partial(reports.usage, prior=controller.prior, fairness=controller.fairness)
        )

    async def hosts(self, call: Call[NoQuery, None]) -> object:
        return await self._made(call, reports.hosts, call.viewer, steady_now())

    async def queue(self, call: Call[NoQuery, None]) -> object:
        return await self._shares.run(call.viewer, partial(self.controller.queue, call.viewer))

    async def power(self, call: Call[NoQuery, None]) -> object:
        """Which nodes sleep."""
        return await self._shares.run(call.viewer, self.controller.power)

    async def probes(self, call: Call[NoQuery, None]) -> object:
        return await self._made(call, reports.probes, call.viewer)

    async def _over_a_window(self, call: Call[routes.WindowQuery, None], report: Callable[..., object]) -> object:
        asked, now = call.query, steady_now()
        start = max(0.0, now - DAY_S) if asked.start is None else asked.start
        view = partial(report, self.store, call.viewer, now, start=start, end=asked.end, job=asked.job)
        return await self._history(call.viewer, view)

    async def _made(self, call: Call[Any, None], report: Callable[..., T], *arguments: object) -> T:
        return await self._shares.run(call.viewer, partial(report, self.store, *arguments))

    async def _history(self, viewer: Viewer, view: Callable[[], T]) -> T:
        async with self._readers.setdefault(viewer.uid, asyncio.Lock()), self._histories:
            return await self._shares.run(viewer, view)

    def _dry_plan(self, viewer: Viewer) -> PlanTable:
        decided = self.controller.dry_plan()
        rows = (reports.plan_row(row, self.store.jobs.get(row.job_id), viewer) for row in decided)
        return PlanTable(at=steady_now(), jobs=tuple(row for row in rows if row is not None))

    async def _own(self, job_id: int, viewer: Viewer) -> None:
        """Refuse what is not the viewer's own job."""
        owner = await run_sync(self.controller.owner, job_id, viewer.uid)
        if owner is None:
            raise NotFound(_unknown(job_id))
        if owner[0] != viewer.uid:
            if viewer.private:
                raise NotFound(_unknown(job_id))
            raise NotAllowed(f"job {job_id} belongs to another user; you are uid {viewer.uid}")

    def _pin(self, job_id: int, gpus: int | None, viewer: Viewer) -> str:
        """Why the job can't come to that size as it is now; empty when it can."""
        job = self.store.jobs.get(job_id)
        if job is None:
            raise NotFound(not_known([job_id]))
        owner = self.controller.owner(job_id, viewer.uid)
        if not viewer.admin and (owner[0] if owner else job.uid) != viewer.uid:
            if viewer.private:
                raise NotFound(not_known([job_id]))
            raise NotAllowed(f"job {job_id} belongs to another user; only its owner and admins may pin it")
        if owner is None:
            raise Refused(409, f"job {job_id} has ended; accepted: a job that is pending or running")
        if gpus is not None:
            _check_size(job.request, gpus)
        self.store.jobs.pin(job_id, gpus)
        detail = {} if gpus is None else {"gpus": gpus}
        self.store.events.add(
            job_id, EventKind.UNPINNED if gpus is None else EventKind.PINNED, f"uid:{viewer.uid}", detail, steady_now()
        )
        self.controller.wake("pin")
        return "" if gpus is None else self.controller.out_of_reach(job_id, gpus)

    def _clear_hosts(self, asked: messages.Reachable, viewer: Viewer) -> Cleared:
        now = steady_now()
        found = reports.clear(self.store, viewer, asked.host, asked.other, now)
        if not found.pairs:
            both = f"hosts {asked.host} and {asked.other}" if asked.other else f"host {asked.host} and another one"
            raise NotFound(f"nothing is known against {both}; accepted: a pair that 'selastic hosts' lists")
        users = sorted({pair.user for pair in found.pairs})
        detail = {"host": asked.host, "other": asked.other, "users": users}
        self.store.events.add(0, EventKind.HOSTS_CLEARED, f"uid:{viewer.uid}", detail, now)
        self.controller.wake("hosts")
        return found

    def _probed(self, probed: messages.Probed, viewer: Viewer) -> Remembered:
        longest = max((len(word) for one in probed.tried for word in (one.name, one.outcome, one.said)), default=0)
        if len(probed.partition) > MOST_LETTERS or len(probed.tried) > MOST_TRIED or longest > messages.MOST_SAID:
            words = f"a partition's name of at most {MOST_LETTERS} letters, and at most {MOST_TRIED} things tried"
            words += f" with at most {messages.MOST_SAID} letters of each"
            raise Refused(413, f"what was probed is too much; accepted: {words}")
        user, now = "" if viewer.admin else viewer.name, steady_now()
        self.store.probes.save(ProbeRow(user, probed.partition, now, probed.tried))
        detail = {"partition": probed.partition, "user": user, "tried": len(probed.tried)}
        self.store.events.add(0, EventKind.PROBED, f"uid:{viewer.uid}", detail, now)
        return Remembered(user=user)


class Application(Starlette):
    """The API, the quick way for reports into it, and the status that is kept ready."""

    def __init__(self, api: Api) -> None:
        handlers: Any = {Exception: guard.on_error, 404: guard.on_error, 405: guard.on_error}
        super().__init__(routes=api.addresses(), exception_handlers=handlers)
        self.intake = Intake(api.store, api.prometheus, api.callers)
        self.callers, self.status_cache = api.callers, api.status_cache


def create_app(
    store: Store, controller: DaemonController, settings: ServerSettings, authenticator: Authenticator | None = None
) -> Application:
    return Application(Api(store, controller, settings, authenticator or Authenticator(settings)))


def _unknown(job_id: int) -> str:
    return f"Slurm knows no job {job_id} that has not ended"


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if not future.done():  # whoever asked may have gone
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _check_size(text: str, gpus: int) -> None:
    try:
        request = elastic_request.parse(text)
    except RequestError as error:
        raise Refused(409, f"the job is not elastic, so it holds its size anyway ({error})") from None
    can = [size for size in request.sizes() if request.batches(size)]
    if gpus not in can:
        near = sorted(can, key=lambda size: (abs(size - gpus), size))[:3]
        sizes, why = ", ".join(map(str, sorted(near))), "is not a size that the job accepts"
        if request.accepts(gpus):
            why = "is a size over which no batch that the job accepts is shared out evenly"
        raise Refused(409, f"gpus={gpus} {why} ({request.text()}); nearest: {sizes}")
