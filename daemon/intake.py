"""The busiest address, POST /v1/jobs/ID/reports, answered before routing: every job asks it every few seconds.

Promise: it takes and refuses exactly what the API's own handler does, since whatever it does not accept at first sight
it hands on to it. A report is on the disk when this answers 202. Limit: one message in one piece, by a token that has
spoken before.
"""

from __future__ import annotations

import asyncio
import re
import time
import typing
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import MISSING, fields
from typing import Annotated, Any

import msgspec

from slurm_elastic.db.store import Store
from slurm_elastic.trainer_shim import wire
from slurm_elastic.trainer_shim.errors import ElasticError
from slurm_elastic.trainer_shim.wire import Report

from . import api_guard as guard
from .metrics import Metrics

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_PATH = re.compile(r"/v1/jobs/([1-9][0-9]{0,9})/reports")
_BOUNDS = {
    int: Annotated[int, msgspec.Meta(ge=0, le=int(wire.MAX_NUMBER))],
    float: Annotated[float, msgspec.Meta(ge=0, le=wire.MAX_NUMBER)],
    str: Annotated[str, msgspec.Meta(max_length=wire.MAX_TEXT)],
}


_TEXTS = tuple(name for name, kind in typing.get_type_hints(Report).items() if kind is str)


def _decoder() -> msgspec.json.Decoder[Any]:
    """Reads wire.Reports with the bounds of wire.decode, made from the messages' own classes."""
    hints = typing.get_type_hints(Report)
    parts: list[Any] = [
        (item.name, _BOUNDS[hints[item.name]], *([] if item.default is MISSING else [item.default]))
        for item in fields(Report)
    ]
    one = msgspec.defstruct("OneReport", parts, forbid_unknown_fields=True, gc=False)
    several = Annotated[list[one], msgspec.Meta(max_length=wire.MAX_ITEMS)]  # type: ignore[valid-type]
    return msgspec.json.Decoder(msgspec.defstruct("AllReports", [("reports", several)], forbid_unknown_fields=True))


_DECODER = _decoder()


def decode(body: bytes) -> tuple[Report, ...] | None:
    """The reports of a message; None for one that wire.from_json has to look at: it knows the sentence."""
    try:
        message = _DECODER.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    reports = tuple(Report(*msgspec.structs.astuple(report)) for report in message.reports)
    printable = all(getattr(report, name).isprintable() for report in reports for name in _TEXTS)
    return reports if printable else None


class Intake:
    """An ASGI application around `app`, which answers everything but reports."""

    def __init__(self, app: App, store: Store, metrics: Metrics, limit: guard.RateLimit) -> None:
        self._app, self._store, self._limit, self._metrics = app, store, limit, metrics
        self._accepted = metrics.requests.labels(202)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a message of reports, or hand the request on with what has been read of it."""
        job_id = self._known(scope)
        if job_id is None:
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(guard.BODY_TIMEOUT_S):
                first = await receive()
        except TimeoutError:
            first = None
        if first is not None and first["type"] == "http.request" and not first.get("more_body"):
            body = first["body"]
            reports = decode(body) if len(body) <= wire.MAX_BODY else None
            if reports is not None:
                await self._answer(job_id, reports, scope, receive, send)
                return
        await self._app(scope, _again(first, receive), send)

    def _known(self, scope: Scope) -> int | None:
        """The job, when this is a message of reports by a token that has spoken for it before."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["query_string"]:
            return None
        found = _PATH.fullmatch(scope["path"])
        if found is None:
            return None
        token = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if token[:7] != b"Bearer ":
            return None
        job_id = int(found[1])
        return job_id if self._store.remembered_token(token[7:].decode("latin-1")) == job_id else None

    async def _answer(
        self, job_id: int, reports: tuple[Report, ...], scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            self._limit.take(job_id)
            if reports:
                await self._store.store_reports(job_id, reports, time.time())
        except ElasticError as error:
            response = guard.answer(error)
            self._metrics.requests.labels(response.status_code).inc()
            await response(scope, receive, send)
            return
        self._metrics.reports.inc(len(reports))
        self._accepted.inc()
        body = b'{"stored":%d}' % len(reports)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 202, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _again(first: MutableMapping[str, Any] | None, receive: Receive) -> Receive:
    """`receive` as if `first` had not been read; None: nothing came in time, and what comes is waited for once more."""
    waiting = [] if first is None else [first]

    async def receive_again() -> MutableMapping[str, Any]:
        return waiting.pop() if waiting else await receive()

    return receive_again
