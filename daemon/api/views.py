"""The half of the API that only shows: status, acct, explain, events, plans, advice, reports.

Whom it shows what is decided in reports/; here parameters are checked, and threads do the work, not the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from slurm_elastic.db.store import Store
from slurm_elastic.protocol import messages

from .. import reports
from ..optimizer.models.prior import Prior
from ..reports.common import moved
from . import requests as guard
from .auth import Viewer
from .requests import Refused
from .status_cache import StatusCache

DAY_S = 86_400.0
MOST_HISTORIES = 2
"""Views of past time that are made at once: each may read a year of all jobs into memory, and a thread that makes one
is not there for supervisors."""


class Planner(Protocol):
    """What the views need of the running daemon."""

    def dry_plan(self) -> dict[str, Any]:
        """A plan computed now, in the form of `reports.plan`, with nothing stored."""

    def prior(self, job_id: int) -> Prior | None:
        """What is believed of the job before it is measured; None: the shipped prior."""


class Views:
    """The handlers, over one store and its status; `viewer` finds out who asks."""

    def __init__(
        self, store: Store, status: StatusCache, planner: Planner, viewer: Callable[[Request], Awaitable[Viewer]]
    ) -> None:
        self.store, self.planner, self._status, self._viewer = store, planner, status, viewer
        self._histories = asyncio.Semaphore(MOST_HISTORIES)

    def table(self) -> list[tuple[str, str, guard.Handler]]:
        """Method, address and handler of each view."""
        return [
            ("GET", "/v1/jobs", self.status),
            ("GET", "/v1/jobs/{job_id:job}", self.job),
            ("GET", "/v1/jobs/{job_id:job}/explain", self.explain),
            ("GET", "/v1/jobs/{job_id:job}/events", self.events),
            ("GET", "/v1/acct", self.acct),
            ("GET", "/v1/plan", self.plan),
            ("GET", "/v1/advice", self.advice),
            ("GET", "/v1/report", self.report),
        ]

    async def status(self, request: Request) -> Response:
        """All jobs that have not ended."""
        guard.only(request)
        viewer = await self._viewer(request)
        return Response(await run_sync(self._status.text, viewer), media_type="application/json")

    async def job(self, request: Request) -> Response:
        """One job, ended or not."""
        guard.only(request)
        job_id, viewer = guard.job_id(request), await self._viewer(request)
        return guard.reply(await run_sync(reports.job, self.store, job_id, viewer, time.time()))

    async def explain(self, request: Request) -> Response:
        """Why the job has what it has."""
        guard.only(request)
        job_id, viewer = guard.job_id(request), await self._viewer(request)
        return guard.reply(await run_sync(reports.explain, self.store, job_id, viewer, time.time()))

    async def events(self, request: Request) -> Response:
        """What has been done to the job; of 0, to the daemon."""
        guard.only(request, "limit")
        job_id, viewer = guard.job_id(request, least=0), await self._viewer(request)
        limit = guard.whole(request, "limit", 1000, 1, 10_000)
        return guard.reply({"events": await run_sync(reports.events, self.store, job_id, viewer, limit)})

    async def acct(self, request: Request) -> Response:
        """Every size that jobs have had."""
        guard.only(request, "start", "end", "user", "job")
        viewer = await self._viewer(request)
        start, end = _window(request)
        filters: dict[str, Any] = {
            "start": start,
            "end": end,
            "user": request.query_params.get("user"),
            "job": _job_list(request),
        }
        call: Callable[[], Any] = lambda: reports.acct(self.store, viewer, time.time(), **filters)  # noqa: E731
        return guard.reply({"allocations": await self._history(call)})

    async def plan(self, request: Request) -> Response:
        """What the last rounds decided, or with dry_run=1 what a round would decide now."""
        guard.only(request, "dry_run")
        viewer = await self._viewer(request)
        if not guard.whole(request, "dry_run", 0, 0, 1):
            return guard.reply(await run_sync(reports.plan, self.store, viewer))
        plan = await run_sync(self.planner.dry_plan)
        return guard.reply(await run_sync(self._redacted, plan, viewer))

    async def advice(self, request: Request) -> Response:
        """What would have been done while the daemon only advised."""
        return await self._over_a_window(request, reports.advice)

    async def report(self, request: Request) -> Response:
        """Allocations, pauses, measurements and curves."""
        return await self._over_a_window(request, partial(reports.course, prior=self.planner.prior))

    async def _over_a_window(self, request: Request, report: Callable[..., dict[str, Any]]) -> Response:
        guard.only(request, "start", "end", "job")
        viewer, now = await self._viewer(request), time.time()
        start, end = _window(request)
        jobs = _job_list(request) or []
        since = max(0.0, now - DAY_S) if start is None else start
        call: Callable[[], Any] = lambda: report(self.store, viewer, now, start=since, end=end, job=jobs)  # noqa: E731
        return guard.reply(await self._history(call))

    async def _history(self, call: Callable[[], Any]) -> Any:
        async with self._histories:
            return await run_sync(call)

    def _redacted(self, plan: dict[str, Any], viewer: Viewer) -> dict[str, Any]:
        """A dry plan as this viewer may see it."""
        if viewer.admin:
            return plan
        rows = []
        for row in plan.get("jobs", []):
            job = self.store.job(row["job_id"])
            own = job is not None and job.uid == viewer.uid
            if viewer.private and not own:
                continue
            rows.append((row if own else moved(row)) | {"own": own})
        return {"at": plan.get("at"), "jobs": rows}


def _window(request: Request) -> tuple[float | None, float | None]:
    start, end = (guard.number(request, name, -1, 0, messages.MAX_NUMBER) for name in ("start", "end"))
    return (start if start >= 0 else None), (end if end >= 0 else None)


def _job_list(request: Request) -> list[int] | None:
    text = request.query_params.get("job")
    if text is None:
        return None
    words = text.split(",")
    if len(words) > 1000 or not all(word.isascii() and word.isdigit() and len(word) <= 10 for word in words):
        raise Refused(400, f"job={text[:40]} is not accepted; accepted: up to 1000 job ids, comma separated")
    return [int(word) for word in words]
