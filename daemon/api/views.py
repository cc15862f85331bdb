"""The half of the API that only shows: status, acct, explain, events, plans, advice, reports.

reports/ decides who sees what. Threads do the work, not the event loop, and each user has their share of it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from starlette.responses import Response

from slurm_elastic.db.clock import steady_now
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers.history import Accounting, PlanTable
from slurm_elastic.protocol.api.routes import AcctQuery, EventsQuery, NoQuery, PlanQuery, PredictQuery, WindowQuery

from .. import reports
from ..prediction.advice import advise
from ..prediction.deadlines import told
from ..prediction.sizes import predict
from ..reports.common import Viewer
from .callers import Call, CpuShares
from .controller import DaemonController
from .status_cache import StatusCache

T = TypeVar("T")
DAY_S = 86_400.0
MOST_HISTORIES = 2
"""Views of past time that are made at once, one for each user: each may read a year of all jobs into memory, and a
thread that makes one is not there for supervisors."""


class Views:
    """The handlers that show something, over one store and its status."""

    def __init__(self, store: Store, status: StatusCache, planner: DaemonController, shares: CpuShares) -> None:
        self.store, self.planner, self._status, self._shares = store, planner, status, shares
        self._histories = asyncio.Semaphore(MOST_HISTORIES)
        self._readers: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        """uid -> held while a view of past time is made for this user, or waited for."""

    async def status(self, call: Call[NoQuery, None]) -> object:
        found = self._status.ready(call.viewer)
        if found is None:
            found = await self._shares.run(call.viewer, partial(self._status.json, call.viewer))
        return Response(found, media_type="application/json")

    async def job(self, call: Call[NoQuery, None]) -> object:
        return await self._made(call, reports.job, call.job_id, call.viewer, steady_now())

    async def explain(self, call: Call[NoQuery, None]) -> object:
        await self._shares.run(call.viewer, partial(self.planner.look_for, call.job_id, call.viewer.uid))
        found = await self._made(call, reports.explain, call.job_id, call.viewer, steady_now())
        arguments = self.planner.basis, self.planner.ground(), call.job_id, steady_now()
        return replace(found, aims=await self._made(call, told, *arguments))

    async def predict(self, call: Call[PredictQuery, None]) -> object:
        arguments = self.planner.basis, call.job_id, call.viewer, call.query, steady_now()
        return await self._made(call, predict, *arguments)

    async def advise(self, call: Call[Any, None]) -> object:
        arguments = self.planner.basis, self.planner.ground(), call.job_id, call.viewer, call.query, steady_now()
        return await self._made(call, advise, *arguments)

    async def predictions(self, call: Call[NoQuery, None]) -> object:
        return await self._made(call, reports.prediction_errors, call.viewer, steady_now())

    async def events(self, call: Call[EventsQuery, None]) -> object:
        return await self._made(call, reports.events, call.job_id, call.viewer, call.query.limit)

    async def acct(self, call: Call[AcctQuery, None]) -> object:
        asked = call.query
        rows = partial(
            reports.acct, self.store, call.viewer, steady_now(),
            start=asked.start, end=asked.end, user=asked.user, job=asked.job,
        )  # fmt: skip
        return Accounting(allocations=tuple(await self._history(call.viewer, rows)))

    async def plan(self, call: Call[PlanQuery, None]) -> object:
        """What the last rounds decided, or with dry_run=1 what a round would decide now."""
        if call.query.dry_run:
            return await self._shares.run(call.viewer, partial(self._dry_plan, call.viewer))
        plan = await self._made(call, reports.plan, call.viewer)
        return replace(plan, notes=tuple(self.planner.notes())) if call.viewer.admin else plan

    async def review(self, call: Call[WindowQuery, None]) -> object:
        return await self._over_a_window(call, reports.review)

    advice = review

    async def usage(self, call: Call[WindowQuery, None]) -> object:
        planner = self.planner
        return await self._over_a_window(call, partial(reports.usage, prior=planner.prior, fairness=planner.fairness))

    async def hosts(self, call: Call[NoQuery, None]) -> object:
        return await self._made(call, reports.hosts, call.viewer, steady_now())

    async def queue(self, call: Call[NoQuery, None]) -> object:
        return await self._shares.run(call.viewer, partial(self.planner.queue, call.viewer))

    async def power(self, call: Call[NoQuery, None]) -> object:
        """Which nodes sleep."""
        return await self._shares.run(call.viewer, self.planner.power)

    async def probes(self, call: Call[NoQuery, None]) -> object:
        return await self._made(call, reports.probes, call.viewer)

    async def _over_a_window(self, call: Call[WindowQuery, None], report: Callable[..., object]) -> object:
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
        decided = self.planner.dry_plan()
        rows = (reports.plan_row(row, self.store.jobs.get(row.job_id), viewer) for row in decided)
        return PlanTable(at=steady_now(), jobs=tuple(row for row in rows if row is not None))
