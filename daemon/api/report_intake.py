"""The busiest address, POST /v1/jobs/ID/reports, answered where its bytes arrive: every job asks it every few seconds,
and an ASGI request costs several times what the report in it does.

Promise: it takes and refuses exactly what the API's own handler does, since whatever it does not accept at first sight
it hands on to it. A report is on the disk when this answers 202. Limit: a message that has arrived in one piece, by a
registration that has spoken before.
"""

import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import partial
from typing import Annotated, Any

import msgspec

from slurm_elastic.db.clock import steady_now
from slurm_elastic.db.store import Store
from slurm_elastic.protocol import codec
from slurm_elastic.protocol.api import munge
from slurm_elastic.protocol.api.proofs import SCHEME
from slurm_elastic.protocol.errors import ElasticError
from slurm_elastic.protocol.messages import Report, Reports

from . import requests as guard
from .callers import Callers
from .metrics import Metrics

_URL = re.compile(rb"/v1/jobs/([1-9][0-9]{0,9})/reports")
_OTHERWISE = (b"expect", b"upgrade")
"""Headers that ask for more than an answer."""
# Printable ASCII: other text is looked at again.
_TEXT = Annotated[str, msgspec.Meta(max_length=codec.MAX_TEXT, pattern=r"\A[ -~]*\Z")]
Headers = list[tuple[bytes, bytes]]
Answer = Callable[[int, Headers, bytes], None]
"""Gets status, headers and body."""


def _decoder() -> msgspec.json.Decoder[Any]:
    """Reads messages.Reports with the bounds of codec.from_json, made from the same classes."""
    form = codec.form(Report)
    parts: list[Any] = [
        (item.name, _within(*form[item.name][:2]), *([] if item.default is MISSING else [item.default]))
        for item in fields(Report)
    ]
    one = msgspec.defstruct("OneReport", parts, gc=False)
    several = Annotated[list[one], msgspec.Meta(max_length=codec.MAX_ITEMS)]  # type: ignore[valid-type]
    whole = Annotated[int, msgspec.Meta(ge=codec.OLDEST, le=int(codec.MAX_NUMBER))]
    form_of_all: list[Any] = [("reports", several), ("version", whole, codec.VERSION)]
    return msgspec.json.Decoder(msgspec.defstruct("AllReports", form_of_all))


def _within(kind: Any, within: codec.Within) -> Any:
    return _TEXT if kind is str else Annotated[kind, msgspec.Meta(ge=kind(within.low), le=kind(within.high))]


_DECODER = _decoder()


def decode(body: bytes) -> tuple[Report, ...] | None:
    """The reports of a message; None for one that codec.from_json has to look at: it knows the sentence."""
    try:
        message = _DECODER.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return msgspec.convert(message, Reports, from_attributes=True).reports


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a message of reports: its job, address, and proof; "" for one that a token speaks for."""

    job_id: int
    target: str
    proof: str


class Intake:
    """Takes messages of reports into the store, as the API's own handler does."""

    def __init__(self, store: Store, metrics: Metrics, callers: Callers) -> None:
        self._store, self._metrics, self._callers = store, metrics, callers
        self._limit, self.report_limit = callers.job_limit, callers.report_limit
        self._accepted = metrics.requests.labels(202)

    def head(self, url: bytes, headers: Headers, sealed: bool) -> Head | None:
        """Of a message of reports by a registration that has spoken for its job before; None: it is something else."""
        found = _URL.fullmatch(url)
        if found is None:
            return None
        given = b""
        for name, value in headers:
            if name == b"authorization" and not given:
                given = value
            elif name in _OTHERWISE:
                return None
        job_id, (scheme, _, said) = int(found[1]), given.decode("latin-1").partition(" ")
        if scheme == "Bearer":
            knows = (
                self._callers.takes_token(job_id, said, sealed) and self._store.tokens.remembered_token(said) == job_id
            )
            return Head(job_id, "", "") if knows else None
        proofs = self._callers.proofs.get(job_id)
        if proofs is None or scheme != SCHEME or self._store.tokens.remembered(proofs.name) != job_id:
            return None
        return Head(job_id, url.decode("ascii"), said)

    def take(self, head: Head, body: bytes, answer: Answer) -> bool:
        """Store the reports of a message, and answer once they are on the disk. False: the API's own handler has to
        look at it, and nothing has been done."""
        job_id = head.job_id
        reports = decode(body) if len(body) <= codec.MAX_BODY else None
        if not reports:
            return False
        if head.proof:
            proofs = self._callers.proofs.get(job_id)
            if proofs is None or not proofs.take(head.proof, munge.bind("POST", head.target, body)):
                return False
        try:
            self._limit.take(job_id)
            self.report_limit.take(job_id, len(reports))
            self._store.reports.store(job_id, reports, steady_now(), partial(self._told, len(reports), answer))
        except ElasticError as error:
            self._refuse(answer, error)
        return True

    def _told(self, count: int, answer: Answer, error: BaseException | None) -> None:
        if error is not None:
            self._refuse(answer, error)
            return
        self._metrics.reports.inc(count)
        self._accepted.inc()
        body = b'{"stored":%d}' % count
        answer(202, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))], body)

    def _refuse(self, answer: Answer, error: BaseException) -> None:
        response = guard.answer(error)
        self._metrics.requests.labels(response.status_code).inc()
        answer(response.status_code, response.raw_headers, bytes(response.body))
