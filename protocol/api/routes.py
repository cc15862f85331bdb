"""Every address of selasticd's API, version 1, in one table: the daemon's routes and checks, the OpenAPI document and
every client's requests are made from it.

Promise: a parameter, its type, its bounds and its default are written here and nowhere else. Limit: standard library
only; what an address answers beyond the messages is a record (protocol/answers/by_route.py).
"""

from dataclasses import dataclass, fields
from enum import Enum
from typing import Annotated, Any
from urllib.parse import urlencode

from .. import codec, messages
from ..codec import MAX_NUMBER, Within

MAX_JOB_ID = (1 << 32) - 1
MAX_JOBS = 1000
"""Most job ids in one request."""
MAX_GPUS = 1_000_000
MAX_WAIT_S = 60.0
"""Longest time that a resize is waited for in one request."""
Time = Annotated[float, Within(0, MAX_NUMBER)]
"""A moment, in unix seconds."""


class Caller(Enum):
    """Who may ask an address."""

    ANYONE = ""
    ANYONE_OR_USER = "munge or nobody"
    """Anyone; who proves to be a user, as below, may be told more."""
    USER = "munge"
    """A user whose uid MUNGE proves, or the kernel on a Unix socket, or the secret of a user's own daemon."""
    JOB = "token"
    """The supervisor of the job, with the token that its registration gave."""


@dataclass(frozen=True, slots=True)
class NoQuery:
    """An address without parameters."""


@dataclass(frozen=True, slots=True)
class ResizeQuery:
    """Wait up to `wait` seconds for a resize newer than `after`."""

    after: int = 0
    wait: Annotated[float, Within(0, MAX_WAIT_S)] = 0.0


@dataclass(frozen=True, slots=True)
class EventsQuery:
    """The last `limit` events."""

    limit: Annotated[int, Within(1, 10_000)] = 1000


@dataclass(frozen=True, slots=True)
class PlanQuery:
    """dry_run=1: a plan made now, of which nothing is stored."""

    dry_run: Annotated[int, Within(0, 1)] = 0


@dataclass(frozen=True, slots=True)
class PredictQuery:
    """From `least` to `most` GPUs (0: any that the job accepts), on its own kind of GPU or on this one."""

    least: Annotated[int, Within(0, MAX_GPUS)] = 0
    most: Annotated[int, Within(0, MAX_GPUS)] = 0
    type: str | None = None


@dataclass(frozen=True, slots=True)
class AdviseQuery:
    """`factor`: UsageFactor of `qos`. `waits`: by Slurm, PARTITION/TYPE/GPUS/SECONDS,...; without seconds: refused."""

    deadline: Time | None = None
    budget: Annotated[float, Within(1e-9, MAX_NUMBER)] | None = None
    confidence: Annotated[float, Within(1, 99.9)] = 95.0
    samples: int = 0
    qos: str | None = None
    factor: float = 1.0
    waits: str | None = None


@dataclass(frozen=True, slots=True)
class WindowQuery:
    """What touches this time; of these jobs, empty: of all."""

    start: Time | None = None
    end: Time | None = None
    job: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AcctQuery:
    """The same, and of this user alone: a name or a uid."""

    start: Time | None = None
    end: Time | None = None
    user: str | None = None
    job: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """One address: who may ask, with what, and what a client and the document have to know of the answer."""

    name: str
    """Of the handler, and of the answer's record."""
    method: str
    path: str
    """`{job_id}` in it stands for a job's id."""
    summary: str
    caller: Caller = Caller.USER
    query: type[Any] = NoQuery
    """The parameters: a dataclass whose every field has a default."""
    message: type[Any] | None = None
    """The request's body."""
    status: int = 200
    proven: bool = True
    """A client takes only an answer that the daemon has proven to be its own: see proofs.py."""
    may_be_empty: bool = False
    """204 where there is nothing new."""
    first_job: int = 1
    """The least job id; 0 stands for the daemon itself."""

    def parameters(self) -> dict[str, tuple[Any, Within, bool]]:
        """Type and bounds of each parameter, as `codec.form` has them."""
        return codec.form(self.query)  # type: ignore[arg-type]  # a class is hashable

    def target(self, job_id: int | str | None = None, query: object = None) -> str:
        """Path and query of a request, about a job by its id or, in an array, by its name. Parameters at their defaults
        are left out."""
        given = {
            item.name: _text(value)
            for item in (fields(query) if query is not None else ())  # type: ignore[arg-type]  # a dataclass
            if (value := getattr(query, item.name)) != item.default
        }
        return self.path.format(job_id=job_id) + ("?" + urlencode(given) if given else "")


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


REPORTS = Route(
    "reports", "POST", "/v1/jobs/{job_id}/reports", "Throughput; on the disk when answered",
    caller=Caller.JOB, message=messages.Reports, status=202, proven=False,
)  # fmt: skip
RESIZE = Route(
    "resize", "GET", "/v1/jobs/{job_id}/resize", "Wait for a resize",
    caller=Caller.JOB, query=ResizeQuery, may_be_empty=True,
)  # fmt: skip
HEALTH = Route("health", "GET", "/v1/health", "Whether selasticd is there", caller=Caller.ANYONE, proven=False)
OPENAPI = Route("openapi", "GET", "/v1/openapi.json", "This document", caller=Caller.ANYONE, proven=False)
METRICS = Route("metrics", "GET", "/metrics", "Prometheus metrics", caller=Caller.ANYONE_OR_USER, proven=False)
REGISTER = Route(
    "register", "POST", "/v1/jobs/{job_id}/register", "Register a job's supervisor", message=messages.Registration
)
HAPPENINGS = Route(
    "happenings", "POST", "/v1/jobs/{job_id}/happenings", "How far a resize has come, or what else has happened",
    caller=Caller.JOB, message=messages.Happening,
)  # fmt: skip
RATES = Route(
    "rates", "POST", "/v1/jobs/{job_id}/rates", "How often something is done, and what it costs",
    caller=Caller.JOB, message=messages.Rate,
)  # fmt: skip
PHASES = Route(
    "phases", "POST", "/v1/jobs/{job_id}/phases", "Both, as supervisors of 0.2 say them",
    caller=Caller.JOB, message=messages.Phase,
)  # fmt: skip
PIN = Route("pin", "POST", "/v1/jobs/{job_id}/pin", "Hold a job at a size, or let it go", message=messages.Pin)
STATUS = Route("status", "GET", "/v1/jobs", "All jobs that have not ended")
JOB = Route("job", "GET", "/v1/jobs/{job_id}", "One job, ended or not")
EXPLAIN = Route("explain", "GET", "/v1/jobs/{job_id}/explain", "Why it has what it has")
PREDICT = Route("predict", "GET", "/v1/jobs/{job_id}/predict", "What it would do at other sizes", query=PredictQuery)
PREDICTIONS = Route("predictions", "GET", "/v1/predictions", "How good the last predictions were, by program")
EVENTS = Route(
    "events", "GET", "/v1/jobs/{job_id}/events", "What was done to the job; of 0: to the daemon, for admins",
    query=EventsQuery, first_job=0,
)  # fmt: skip
ACCT = Route("acct", "GET", "/v1/acct", "Every size that jobs have had", query=AcctQuery)
PLAN = Route("plan", "GET", "/v1/plan", "The last plan, or one made now", query=PlanQuery)
REVIEW = Route("review", "GET", "/v1/review", "What acting would have brought", query=WindowQuery)
ADVICE = Route("advice", "GET", "/v1/advice", "The same, as selastic 0.2 asks for it", query=WindowQuery)
HOSTS = Route("hosts", "GET", "/v1/hosts", "Pairs of hosts that did not reach each other")
CLEAR_HOSTS = Route(
    "clear_hosts", "POST", "/v1/hosts/clear", "Hosts reach each other again", message=messages.Reachable
)
PROBES = Route("probes", "GET", "/v1/probes", "What 'selastic probe' found")
PROBED = Route("probed", "POST", "/v1/probe", "What it has found now", message=messages.Probed)
ADVISE = Route("advise", "GET", "/v1/jobs/{job_id}/advise", "What to submit its program with", query=AdviseQuery)
QUEUE = Route("queue", "GET", "/v1/queue", "When waiting jobs will start, and why in this order")
POWER = Route("power", "GET", "/v1/power", "Which nodes sleep, and what that has brought")
USAGE = Route("usage", "GET", "/v1/report", "How jobs have gone", query=WindowQuery)

ROUTES = (
    *(REPORTS, RESIZE, HEALTH, OPENAPI, METRICS, REGISTER, HAPPENINGS, RATES, PHASES, PIN),
    *(STATUS, JOB, EXPLAIN, PREDICT, EVENTS, ACCT, PLAN, REVIEW, USAGE, HOSTS, CLEAR_HOSTS, PREDICTIONS),
    *(PROBES, PROBED, ADVICE, QUEUE, ADVISE, POWER),
)
"""Looked up in this order: what every job asks all the time comes first."""
