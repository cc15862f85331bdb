"""What each address of the API answers: a record, or a message, by the route's name. The handlers give it, the OpenAPI
document describes it, the command line reads it.
"""

from __future__ import annotations

from typing import Any

from slurm_elastic.protocol import codec, messages
from slurm_elastic.protocol.api import routes
from slurm_elastic.protocol.api.routes import Route

from .explain import Explain
from .history import Accounting, Events, PlanTable, Usage
from .predict import Advice, Prediction, PredictionErrors
from .record import about, record
from .review import Review
from .site import Cleared, Findings, PairsOfHosts, Power, Queue, Remembered
from .status import JobStatus, StatusTable


@record
class ModelsInUse:
    """What throughput models start from."""

    prior: str
    runs: int
    programs: int = about("programs with a prior of their own")
    learned_at: float | None


@record
class Health:
    """Whether the daemon is there, and how its rounds go."""

    status: str = about("ok; late when rounds are", default="ok")
    version: int = codec.VERSION
    mode: str = about("off, observe, review or act, as it is now")
    rounds: int | None = None
    last_round_age_s: float | None = None
    late: bool | None = about("a round takes too long, or does not begin", default=None)
    trouble: bool | None = about("the last round failed, or nothing could be written to the database", default=None)
    failing: str | None = about(
        "what the trouble is with: database, Slurm, selasticd or one of its services; empty without", default=None
    )
    tripped: bool | None = about("Slurm refused, and the daemon only reviews", default=None)
    pairs_left_out: int | None = about("pairs of hosts that no job is put on both of, for some user", default=None)
    models: ModelsInUse | None = None


@record
class Stored:
    """How many reports are on the disk."""

    stored: int


@record
class Taken:
    """Nothing more to say."""


@record
class Pinned:
    """What a job is pinned to; null: nothing."""

    job_id: int
    pinned: int | None
    out_of_reach: str | None = about("why it can't come to that size as it is now", default=None)


ANSWERS: dict[Route, type[Any]] = {
    routes.REGISTER: messages.Grant,
    routes.REPORTS: Stored,
    routes.HAPPENINGS: Taken,
    routes.RATES: Taken,
    routes.PHASES: Taken,
    routes.RESIZE: messages.Resize,
    routes.PIN: Pinned,
    routes.HEALTH: Health,
    routes.STATUS: StatusTable,
    routes.JOB: JobStatus,
    routes.EXPLAIN: Explain,
    routes.PREDICT: Prediction,
    routes.EVENTS: Events,
    routes.ACCT: Accounting,
    routes.PLAN: PlanTable,
    routes.REVIEW: Review,
    routes.ADVICE: Review,
    routes.USAGE: Usage,
    routes.HOSTS: PairsOfHosts,
    routes.CLEAR_HOSTS: Cleared,
    routes.PREDICTIONS: PredictionErrors,
    routes.QUEUE: Queue,
    routes.ADVISE: Advice,
    routes.POWER: Power,
    routes.PROBES: Findings,
    routes.PROBED: Remembered,
}


ROUTE_OF: dict[type[Any], Route] = {kind: route for route, kind in ANSWERS.items()}
