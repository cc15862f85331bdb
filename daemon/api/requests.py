"""What is between a request and its handler: body and rate limits, strict parameters, and one answer per error.

Every refusal is JSON: {"error": sentence}. No caller can take more memory, time or turns than is allowed here.
"""

import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from slurm_elastic.protocol import codec
from slurm_elastic.protocol.api.munge import MungeError
from slurm_elastic.protocol.api.proofs import NONCE, PROOF, prove_answer
from slurm_elastic.protocol.api.routes import MAX_JOB_ID, MAX_JOBS, Caller, Route
from slurm_elastic.protocol.codec import MAX_BODY, Within
from slurm_elastic.protocol.errors import ElasticError, NotAllowed, NotFound, SlurmError, StoreError, TooOften

from .auth import Unauthenticated

LOG = logging.getLogger("slurm_elastic.api")
BODY_TIMEOUT_S = 10.0
"""Time that a caller has to send a body."""
BURST_S = 10.0
"""How many seconds' worth of requests may come at once."""
RETRY_AFTER_S = 5
TOO_MANY_S = 1.0
"""After how long a caller hears that it asks too often: who asks again at once is slowed down, nobody else is."""
UID_PREFIX = "uid:"
"""Before the uid, in the client of a connection over the Unix socket."""

Handler = Callable[[Request], Awaitable[Response]]


class _JobName(Convertor[str]):
    """`{job_id:job}` in an address: a number, which may have more digits than Python converts, or 7_3 in an array."""

    regex = "[0-9]{1,20}|[0-9]{1,10}_[0-9]{1,10}"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("job", _JobName())


class Refused(ElasticError):
    """A request refused with an HTTP status of its own."""

    def __init__(self, status: int, sentence: str, retry_after_s: int = RETRY_AFTER_S) -> None:
        super().__init__(sentence)
        self.status, self.retry_after_s = status, retry_after_s


async def body(request: Request) -> bytes:
    """The request's body. Raises Refused: 413 when it is too long, 408 when it comes too slowly."""
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > MAX_BODY:
        raise Refused(413, f"the body has {declared} bytes; accepted: at most {MAX_BODY}")
    chunks, size = [], 0
    try:
        with anyio.fail_after(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_BODY:
                    raise Refused(413, f"the body has more than {MAX_BODY} bytes; accepted: at most that")
                chunks.append(chunk)
    except TimeoutError:
        raise Refused(408, f"the body took longer than {BODY_TIMEOUT_S:g} s to arrive") from None
    except ClientDisconnect:
        raise Refused(400, "the body ended early") from None
    return b"".join(chunks)


def target(request: Request) -> str:
    """Path and query exactly as the caller sent them: what its credential is made for."""
    path = request.scope.get("raw_path") or request.url.path.encode()
    query = request.scope.get("query_string", b"")
    return (path.split(b"?")[0] + (b"?" + query if query else b"")).decode("latin-1")


def peer_uid(request: Request) -> int | None:
    """uid of a caller on the Unix socket; None: the connection is another."""
    host = request.client.host if request.client else ""
    return int(host.removeprefix(UID_PREFIX)) if host.startswith(UID_PREFIX) else None


def job_name(route: Route, request: Request) -> int | str:
    """The job in the path: its number, or in an array its name; 0 for an address without one. Raises Refused (404) for
    a number that Slurm never gives."""
    if "job_id" not in request.path_params:
        return 0
    name: str = request.path_params["job_id"]
    if "_" in name:
        return name
    number = int(name)
    if not route.first_job <= number <= MAX_JOB_ID:
        raise Refused(404, f"there is no job {number}; accepted: {route.first_job} to {MAX_JOB_ID}")
    return number


def query(route: Route, request: Request) -> Any:
    """The parameters, as the route's query. Raises Refused (400)."""
    form = route.parameters()
    given = {
        name: _parameter(name, text, *form[name][:2]) for name, text in request.query_params.items() if name in form
    }
    return route.query(**given)


def check_names(route: Route, request: Request) -> None:
    """Refuse (400) parameters that this address does not have, and any that stand twice. A supervisor's are no typing
    errors: one of a newer release may have more."""
    accepted = route.parameters()
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name not in accepted and route.caller is not Caller.JOB:
            known = ", ".join(accepted) or "none"
            raise Refused(400, f"parameter {name[:40]} is not known here; accepted: {known}")
        if names.count(name) > 1:
            raise Refused(400, f"parameter {name} is given twice; give it once")


def _parameter(name: str, text: str, hint: Any, within: Within) -> Any:
    kind = codec.or_none(hint) or hint
    if kind is str:
        return text
    if kind is int:
        value, accepted = _whole(text), f"a whole number from {within.low:.0f} to {within.high:.0f}"
    elif kind is float:
        value, accepted = _number(text), f"a number from {within.low:g} to {within.high:g}"
    else:
        return _jobs(name, text)
    if not within.low <= value <= within.high:  # nan is not
        raise Refused(400, f"{name}={text[:40]} is not accepted; accepted: {accepted}")
    return value


def _number(text: str) -> float:
    try:
        return float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return math.nan


def _whole(text: str) -> float:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else math.nan


def _jobs(name: str, text: str) -> tuple[int, ...]:
    words = text.split(",")
    if len(words) > MAX_JOBS or not all(word.isascii() and word.isdigit() and len(word) <= 10 for word in words):
        raise Refused(400, f"{name}={text[:40]} is not accepted; accepted: up to {MAX_JOBS} job ids, comma separated")
    return tuple(int(word) for word in words)


MOST_CALLERS = 10_000
"""Callers that a RateLimit remembers before it looks for those who have gone."""


class RateLimit:
    """A bucket of turns per caller. Used from the event loop only."""

    def __init__(self, per_s: float, most: float = 0.0, what: str = "requests") -> None:
        """most: how many at once; 0: those of BURST_S."""
        self._per_s, self._what = per_s, what
        self._full = max(1.0, most or per_s * BURST_S)
        self._buckets: dict[object, tuple[float, float]] = {}
        self._most = MOST_CALLERS

    def take(self, caller: object, turns: int = 1) -> None:
        """Use so many turns. Raises Refused (429) when fewer are left."""
        now = time.monotonic()
        left, at = self._buckets.get(caller, (self._full, now))
        left = min(self._full, left + (now - at) * self._per_s)
        if left < turns:
            at_once = f", {self._full:g} at once" if turns > 1 else ""
            raise Refused(429, f"too many {self._what}; accepted: {self._per_s:g} per second{at_once}")
        self._buckets[caller] = (left - turns, now)
        if len(self._buckets) > self._most:
            self._forget(now)

    def _forget(self, now: float) -> None:
        """Drop full buckets: those of callers who have gone. Not again before there are twice as many as are left:
        where that many callers are there, a look at each of them at every turn would cost more than all else."""
        found = self._buckets.items()
        self._buckets = {who: (left, at) for who, (left, at) in found if left + (now - at) * self._per_s < self._full}
        self._most = max(MOST_CALLERS, 2 * len(self._buckets))


def error(status: int, sentence: str, retry_after_s: int = RETRY_AFTER_S) -> JSONResponse:
    """The one form of a refusal."""
    headers = {"Retry-After": str(retry_after_s)} if status in (429, 503) else {}
    if status == 401:
        headers["WWW-Authenticate"] = "MUNGE, Proof"
    return JSONResponse({"error": sentence}, status, headers)


def answer(exception: BaseException) -> JSONResponse:
    if isinstance(exception, Refused):
        return error(exception.status, str(exception), exception.retry_after_s)
    if isinstance(exception, HTTPException):
        found = error(exception.status_code, _HTTP.get(exception.status_code, str(exception.detail)))
        found.headers.update(exception.headers or {})
        return found
    for kind, status in _STATUS:
        if isinstance(exception, kind):
            if status == 503:
                LOG.warning("%s", exception)
            return error(status, str(exception))
    LOG.error("a request has failed", exc_info=exception)
    return error(500, "selasticd has failed at this request; its log says why")


_HTTP = {404: "there is nothing at this address; see /v1/openapi.json", 405: "this address does not take that method"}
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (Unauthenticated, 401),
    (MungeError, 503),
    (NotAllowed, 403),
    (NotFound, 404),
    (TooOften, 429),
    (StoreError, 503),
    (SlurmError, 503),
    (ElasticError, 400),
)


async def on_error(_request: Request, exception: Exception) -> Response:
    """Starlette's handler for all exceptions."""
    return answer(exception)


def prove(request: Request, key: bytes, response: Response) -> None:
    """Show the caller, if it asks for that, that the answer is the daemon's."""
    nonce = request.headers.get(NONCE, "")
    if key and nonce:
        proof = prove_answer(key, nonce[:64], target(request), response.status_code, bytes(response.body))
        response.headers[PROOF] = proof


def reply(value: Any, status: int = 200) -> Response:
    """JSON, in which a number that JSON does not have is null; of None 204."""
    if value is None:
        return Response(status_code=204)
    return Response(msgspec.json.encode(value), status, media_type="application/json")
