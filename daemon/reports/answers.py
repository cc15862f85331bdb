"""What each address of the API answers: a record, or a message, by the route's name. The handlers give it, the OpenAPI
document describes it, the command line reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from slurm_elastic.protocol import messages, routes
from slurm_elastic.protocol.routes import Route

from .acct import Accounting
from .advise import Advice
from .explain import Explain
from .history import Events, Plan
from .record import about
from .status import JobStatus, StatusTable
from .usage import Usage


@dataclass(frozen=True, kw_only=True)
class ModelsInUse:
    """What throughput models start from."""

    prior: str
    runs: int
    programs: int = field(metadata=about("programs with a prior of their own"))
    learned_at: float | None


@dataclass(frozen=True, kw_only=True)
class Health:
    """Whether the daemon is there, and how its rounds go."""

    status: str = "ok"
    version: int = messages.VERSION
    mode: str = field(metadata=about("off, observe, advise or act, as it is now"))
    rounds: int | None = None
    last_round_age_s: float | None = None
    trouble: bool | None = field(default=None, metadata=about("the last round failed"))
    tripped: bool | None = field(default=None, metadata=about("Slurm refused, and the daemon only advises"))
    models: ModelsInUse | None = None


@dataclass(frozen=True, kw_only=True)
class Stored:
    """How many reports are on the disk."""

    stored: int


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Nothing more to say."""


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """What a job is pinned to; null: nothing."""

    job_id: int
    pinned: int | None


ANSWERS: dict[Route, type[Any]] = {
    routes.REGISTER: messages.Grant,
    routes.REPORTS: Stored,
    routes.PHASES: Taken,
    routes.DIRECTIVE: messages.Directive,
    routes.PIN: Pinned,
    routes.HEALTH: Health,
    routes.STATUS: StatusTable,
    routes.JOB: JobStatus,
    routes.EXPLAIN: Explain,
    routes.EVENTS: Events,
    routes.ACCT: Accounting,
    routes.PLAN: Plan,
    routes.ADVICE: Advice,
    routes.USAGE: Usage,
}
ROUTE_OF: dict[type[Any], Route] = {kind: route for route, kind in ANSWERS.items()}
