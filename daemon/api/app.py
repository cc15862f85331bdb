"""The HTTP API, version 1: what supervisors and the command line say to selasticd.

It checks who calls, whose job it is and what was sent, and stores or hands on; it decides nothing. Everything that
blocks (the database, MUNGE, Slurm) runs in threads; a directive that is waited for holds no thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from functools import partial
from typing import Any, Protocol, TypeVar

from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slurm_elastic.db.store import Store
from slurm_elastic.protocol import messages
from slurm_elastic.protocol import request as elastic_request
from slurm_elastic.protocol.errors import NotAllowed, NotFound, RequestError
from slurm_elastic.protocol.messages import Directive, Grant, Phase, Registration, Reports

from ..config.settings import Settings
from ..optimizer.models.prior import Prior
from ..reports.common import not_known
from . import openapi
from . import requests as guard
from .auth import Authenticator, Unauthenticated, Viewer, bearer
from .metrics import Metrics
from .report_intake import Intake
from .requests import Refused
from .status_cache import StatusCache
from .views import Views

MAX_WAIT_S = 60.0
"""Longest time that a directive is waited for in one request."""
T = TypeVar("T")


class Controller(Protocol):
    """What the API needs of the running daemon. All but `wait_directive` are called from threads and may block."""

    def owner(self, job_id: int) -> tuple[int, str] | None:
        """uid and user name of a job that Slurm knows and that has not ended; None otherwise."""

    def registered(self, job_id: int, registration: Registration) -> Grant:
        """A supervisor of the job's owner has registered. Stores job and allocation; the API fills in the token."""

    def phase(self, job_id: int, phase: Phase) -> None:
        """A resize (of this job: checked) has come to a phase. Twice the same is harmless."""

    def directive(self, job_id: int) -> Directive | None:
        """The job's current directive."""

    async def wait_directive(self, job_id: int, after: int, timeout: float) -> Directive | None:
        """The current directive as soon as its id is above `after` or it is withdrawn; None after `timeout` seconds."""

    def dry_plan(self) -> dict[str, Any]:
        """A plan computed now, in the form of `reports.plan`, with nothing stored."""

    def prior(self, job_id: int) -> Prior | None:
        """What is believed of the job before it is measured; None: the shipped prior."""

    def wake(self, why: str) -> None:
        """Let the next round come soon."""


class Api:
    """The handlers, over one store and one controller."""

    def __init__(self, store: Store, controller: Controller, settings: Settings, authenticator: Authenticator) -> None:
        self.store = store
        self.controller = controller
        self.settings = settings
        self.authenticator = authenticator
        # A controller without rounds, as in a test, has no state to tell.
        self.metrics = Metrics(store, getattr(controller, "state", None))
        self.status_cache = StatusCache(store)
        self.job_limit = guard.RateLimit(settings.requests_per_s)
        # A user may have hundreds of jobs, which all register when the daemon comes back.
        self.user_limit = guard.RateLimit(settings.requests_per_s * 10)

    def routes(self) -> list[Route]:
        """Every address of version 1."""
        # Tried in order: what every job asks all the time comes first.
        table: list[tuple[str, str, guard.Handler]] = [
            ("POST", "/v1/jobs/{job_id:job}/reports", self.reports),
            ("GET", "/v1/jobs/{job_id:job}/directive", self.directive),
            ("GET", "/v1/health", self.health),
            ("GET", "/v1/openapi.json", self.openapi),
            ("GET", "/metrics", self.scrape),
            ("POST", "/v1/jobs/{job_id:job}/register", self.register),
            ("POST", "/v1/jobs/{job_id:job}/phases", self.phases),
            ("POST", "/v1/jobs/{job_id:job}/pin", self.pin),
            *Views(self.store, self.status_cache, self.controller, self._viewer).table(),
        ]
        return [Route(path, self._counted(guard.guarded(handler)), methods=[method]) for method, path, handler in table]

    def _counted(self, handler: guard.Handler) -> guard.Handler:
        async def counted(request: Request) -> Response:
            response = await handler(request)
            self.metrics.requests.labels(response.status_code).inc()
            return response

        return counted

    async def health(self, request: Request) -> Response:
        """Whether the daemon is there; anyone may ask."""
        guard.only(request)
        more = getattr(self.controller, "health", None)
        known = await run_sync(more) if more is not None else {}
        return guard.reply({"status": "ok", "version": messages.VERSION, "mode": self.settings.mode, **known})

    async def openapi(self, request: Request) -> Response:
        """What this API takes and gives; anyone may ask."""
        guard.only(request)
        return guard.reply(openapi.document())

    async def scrape(self, request: Request) -> Response:
        """Prometheus metrics; anyone may ask."""
        guard.only(request)
        return Response(await run_sync(self.metrics.exposition), media_type=self.metrics.content_type)

    async def register(self, request: Request) -> Response:
        """A supervisor proves who it is, and gets the token of its job when Slurm says that it is the owner."""
        guard.only(request)
        job_id = guard.job_id(request)
        body = await guard.body(request)
        viewer = await self._viewer(request, body)
        registration = messages.from_json(Registration, body)
        if registration.version != messages.VERSION:
            raise Refused(400, f"version={registration.version} is not spoken here; accepted: {messages.VERSION}")
        await self._own(job_id, viewer)

        def store() -> Grant:
            grant = self.controller.registered(job_id, registration)
            return dataclasses.replace(grant, token=self.store.mint_token(job_id, viewer.uid))

        return guard.reply(dataclasses.asdict(await run_sync(store)))

    async def reports(self, request: Request) -> Response:
        """Reports are on the disk when this answers 202."""
        guard.only(request)
        job_id = await self._job_of_token(request)
        reports = messages.from_json(Reports, await guard.body(request)).reports
        if reports:
            stored = asyncio.get_running_loop().create_future()
            self.store.store_reports(job_id, reports, time.time(), partial(_settle, stored))
            await stored
            self.metrics.reports.inc(len(reports))
        return guard.reply({"stored": len(reports)}, 202)

    async def phases(self, request: Request) -> Response:
        """How far a resize has come."""
        guard.only(request)
        job_id = await self._job_of_token(request)
        phase = messages.from_json(Phase, await guard.body(request))
        if phase.phase not in messages.PHASES:
            raise Refused(400, f"phase={phase.phase[:40]} is not known; accepted: {', '.join(messages.PHASES)}")

        def store() -> None:
            if phase.directive and self.store.intent(phase.directive).directive.job_id != job_id:
                raise NotAllowed(f"directive {phase.directive} is another job's; accepted: those of job {job_id}")
            self.controller.phase(job_id, phase)

        await run_sync(store)
        self.metrics.phase(phase)
        return guard.reply({})

    async def directive(self, request: Request) -> Response:
        """The job's directive when it is newer than `after` or withdrawn; 204 when none comes within `wait` seconds."""
        guard.only(request, "after", "wait")
        job_id = await self._job_of_token(request)
        after = guard.whole(request, "after", 0, 0, int(messages.MAX_NUMBER))
        wait = guard.number(request, "wait", 0, 0, MAX_WAIT_S)
        directive = await self.controller.wait_directive(job_id, after, wait)
        return guard.reply(dataclasses.asdict(directive)) if directive is not None else Response(status_code=204)

    async def pin(self, request: Request) -> Response:
        """The owner or an admin holds a job at a size ({"gpus": n}) or lets it go ({"gpus": null})."""
        guard.only(request)
        job_id = guard.job_id(request)
        body = await guard.body(request)
        viewer = await self._viewer(request, body)
        gpus = _pin(body)
        await run_sync(self._pin, job_id, gpus, viewer)
        return guard.reply({"job_id": job_id, "pinned": gpus})

    async def _viewer(self, request: Request, body: bytes = b"") -> Viewer:
        credential = request.headers.get("authorization")
        who, target = self.authenticator.who, guard.target(request)
        uid = guard.peer_uid(request)
        if uid is not None and credential is None:
            viewer = self.authenticator.local(uid)
        else:
            viewer = await run_sync(who, credential, request.method, target, body)
        self.user_limit.take(viewer.uid)
        return viewer

    async def _own(self, job_id: int, viewer: Viewer) -> None:
        owner = await run_sync(self.controller.owner, job_id)
        if owner is None:
            raise NotFound(_unknown(job_id))
        if owner[0] != viewer.uid:
            if viewer.private:
                raise NotFound(_unknown(job_id))
            raise NotAllowed(f"job {job_id} belongs to another user; you are uid {viewer.uid}")

    async def _job_of_token(self, request: Request) -> int:
        job_id = guard.job_id(request)
        token = bearer(request.headers.get("authorization"))
        speaks = self.store.remembered_token(token) or await run_sync(self.store.token_job, token)
        if speaks is None:
            raise Unauthenticated(f"the token is not known, or job {job_id} has ended; register the job again")
        if speaks != job_id:
            raise NotAllowed(f"the token is of job {speaks}; it does not speak for job {job_id}")
        self.job_limit.take(job_id)
        return job_id

    def _pin(self, job_id: int, gpus: int | None, viewer: Viewer) -> None:
        job = self.store.job(job_id)
        if job is None:
            raise NotFound(not_known([job_id]))
        owner = self.controller.owner(job_id)
        if not viewer.admin and (owner[0] if owner else job.uid) != viewer.uid:
            if viewer.private:
                raise NotFound(not_known([job_id]))
            raise NotAllowed(f"job {job_id} belongs to another user; only its owner and admins may pin it")
        if owner is None:
            raise Refused(409, f"job {job_id} has ended; accepted: a job that is pending or running")
        if gpus is not None:
            _check_size(job.request, gpus)
        self.store.pin(job_id, gpus)
        detail = {} if gpus is None else {"gpus": gpus}
        self.store.add_event(job_id, "unpinned" if gpus is None else "pinned", f"uid:{viewer.uid}", detail, time.time())
        self.controller.wake("pin")


class Application(Starlette):
    """The API, the quick way for reports into it, and the status that is kept ready."""

    def __init__(self, api: Api) -> None:
        handlers: Any = {Exception: guard.on_error, 404: guard.on_error, 405: guard.on_error}
        super().__init__(routes=api.routes(), exception_handlers=handlers)
        self.intake = Intake(api.store, api.metrics, api.job_limit)
        self.status_cache = api.status_cache


def create_app(
    store: Store, controller: Controller, settings: Settings, authenticator: Authenticator | None = None
) -> Application:
    """The ASGI application of the API."""
    return Application(Api(store, controller, settings, authenticator or Authenticator(settings)))


def _unknown(job_id: int) -> str:
    return f"Slurm knows no job {job_id} that has not ended"


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if not future.done():  # whoever asked may have gone
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _pin(body: bytes) -> int | None:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, 'the body is not JSON; accepted: {"gpus": N} or {"gpus": null}') from None
    if not isinstance(message, dict) or set(message) != {"gpus"}:
        raise Refused(400, 'the body is not of its form; accepted: {"gpus": N} or {"gpus": null}')
    gpus = message["gpus"]
    if gpus is not None and (isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= 1_000_000):
        raise Refused(400, f"gpus={str(gpus)[:40]} is not accepted; accepted: 1 to 1000000, or null")
    return gpus


def _check_size(text: str, gpus: int) -> None:
    try:
        request = elastic_request.parse(text)
    except RequestError as error:
        raise Refused(409, f"the job is not elastic, so it holds its size anyway ({error})") from None
    if not request.accepts(gpus):
        near = sorted(request.sizes(), key=lambda size: (abs(size - gpus), size))[:3]
        sizes = ", ".join(map(str, sorted(near)))
        raise Refused(409, f"gpus={gpus} is not a size that the job accepts ({request.text()}); nearest: {sizes}")
