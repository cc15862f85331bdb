"""The API's surroundings in unit tests: callers named by a header, and a daemon that is a table."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx
from cluster_snapshots import Cluster
from starlette.testclient import TestClient

from slurm_elastic.daemon.api.app import Application
from slurm_elastic.daemon.api.auth import Authenticator, Unauthenticated
from slurm_elastic.daemon.models.priors import SHIPPED
from slurm_elastic.daemon.prediction.advice import Ground
from slurm_elastic.daemon.prediction.sizes import PredictionInputs
from slurm_elastic.daemon.reports.common import Viewer
from slurm_elastic.daemon.selasticd.listeners import unix_listener
from slurm_elastic.daemon.selasticd.main import DaemonServer
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.selasticd.systemd import Notifier
from slurm_elastic.daemon.services.queue.service import Place
from slurm_elastic.daemon.slurm.model import Job
from slurm_elastic.daemon.slurm.site import Site
from slurm_elastic.db.rows import DecisionRow, JobRow
from slurm_elastic.protocol.answers.by_route import Health
from slurm_elastic.protocol.answers.history import PlanNote
from slurm_elastic.protocol.answers.site import NodePower, Power, Queue
from slurm_elastic.protocol.api import munge
from slurm_elastic.protocol.api.proofs import JobKey
from slurm_elastic.protocol.codec import VERSION, to_json
from slurm_elastic.protocol.messages import Grant, Happening, Piece, Rate, Registration, Report, Resize

ADA, BOB, ROOT = 1000, 2000, 0
BASE = Piece(7, "base", ("n1",), 4)
RESIZE = Resize(3, 7, (BASE,), (), 4, 64, "shrink_share", 60.0)
REGISTRATION = to_json(Registration(VERSION, 1, (BASE,), 64, "train.py"))
REPORT = Report(1, 5.0, 4, 1, 64, 16, 1, 10, 0.1, 0.1, 640.0, 10, 640, 0)


def proving(http: TestClient) -> TestClient:
    """The same, where what is sent with a registration's token is sent with a proof in its place, as the shim does."""
    keys: dict[str, JobKey] = {}

    def prove(request: httpx.Request) -> None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme == "Bearer":
            key = keys.setdefault(token, JobKey(b"", token))
            bound = munge.bind(request.method, request.url.raw_path.decode(), request.read())
            request.headers["Authorization"] = f"Proof {key.prove(bound)}"

    http.event_hooks = {"request": [prove]}
    return http


class Named(Authenticator):
    """Believes `Authorization: Test UID`, and with ` private` behind it hides others' jobs from this one."""

    def who(self, authorization: str | None, method: str, target: str, body: bytes) -> Viewer:
        scheme, uid, *private = [*(authorization or "").split(), "", ""][:3]
        if scheme != "Test":
            raise Unauthenticated("nobody")
        return Viewer(int(uid), int(uid) == ROOT, private == ["private"])


@dataclass
class WellRounds:
    """Rounds that go well."""

    mode: str = "act"
    count: int = 3
    failed: int = 0
    last_ok: float = 5.0
    failing: str = ""
    tripped: str = ""
    capacity: int | None = 32
    idle: int | None = 4
    seconds: dict[str, float] = field(default_factory=lambda: {"observe": 0.1})


def powers() -> Power:
    """One node that sleeps."""
    node = NodePower(node="n1", pool="main/a100", state="asleep", since=20.0, why="")
    return Power(
        at=30.0, mode="review", asleep_h=2.5, kwh=None, wake_ups=1, woken=2, waits_s=(95.0,), said=("2.5 node-hours.",),
        nodes=(node,),
    )  # fmt: skip


def foretold(viewer: Viewer) -> Queue:
    """One job of ada's waits."""
    job = Job(8, "PENDING", "ada", 1000, "train", gpus=4, time_limit_s=600)
    place = Place(job, 60.0, 700, start=90.0, earliest=80.0, latest=120.0, alone=300.0)
    return Queue(at=30.0, mode="review", lacks="there is no slurmdbd", jobs=(place.row(own=viewer.uid == 1000),))


class FakeController:
    """The daemon as the API sees it: a table of owners, one resize, a record of the calls."""

    def __init__(self) -> None:
        self.owners: dict[int, tuple[int, str]] = {7: (ADA, "ada"), 8: (BOB, "bob")}
        self.calls: list[tuple[Any, ...]] = []
        self.current: Resize | None = None
        self.changed, self.waits = asyncio.Event(), False
        self.error: Exception | None = None
        self.rounds = WellRounds()

    def owner(self, job_id: int, asker: int) -> tuple[int, str] | None:
        if self.error:
            raise self.error
        return self.owners.get(job_id)

    def registered(self, job_id: int, registration: Registration) -> Grant:
        self.calls.append(("registered", job_id, registration))
        return Grant("", True, "", 5.0, "elastic:gpus=1-8,batch=64-512")

    def not_understood(self, job_id: int, sentence: str) -> None:
        self.calls.append(("not understood", job_id, sentence))

    def happened(self, job_id: int, happening: Happening) -> None:
        self.calls.append(("happened", job_id, happening))

    def rated(self, job_id: int, rate: Rate) -> None:
        self.calls.append(("rated", job_id, rate))

    async def wait_resize(self, job_id: int, after: int, timeout: float) -> Resize | None:
        deadline = time.monotonic() + timeout
        while True:
            self.changed.clear()
            if self.current is not None and (self.current.id > after or self.current.withdrawn):
                return self.current
            self.waits = True
            try:
                await asyncio.wait_for(self.changed.wait(), deadline - time.monotonic())
            except asyncio.TimeoutError:
                return None
            finally:
                self.waits = False

    def out_of_reach(self, job_id: int, gpus: int) -> str:
        return "" if gpus < 6 else "it can't come to that; sizes in reach: 2, 4"

    def notes(self) -> list[PlanNote]:
        return [PlanNote(service="power", about="node n3", text="nobody wants it")]

    def queue(self, viewer: Viewer) -> Queue:
        return foretold(viewer)

    def power(self) -> Power:
        return powers()

    def dry_plan(self) -> list[DecisionRow]:
        return [DecisionRow(job, 1.0, 1, 2, 64, 64, "grow_idle", None, None) for job in (7, 8)]

    def health(self) -> Health:
        return Health(mode="review", rounds=1)

    fairness = "account"

    def prior(self, job_id: int) -> None:
        return None

    def basis(self, job_id: int, gpu_type: str | None) -> PredictionInputs:
        return PredictionInputs(Settings(), SHIPPED)

    def look_for(self, job_id: int, asker: int) -> None:
        """All jobs are on record."""

    def ground(self) -> Ground:
        return Ground(Cluster().snapshot(), Site())

    def wake(self, why: str) -> None:
        self.calls.append(("wake", why))


def job(job_id: int, uid: int, user: str) -> JobRow:
    request = "elastic:gpus=2-8,batch=64-512,step=2"
    return JobRow(job_id, user, uid, "secret-name", "lab", "gpu", request, True, "", "", 1.0, 2.0, None, "RUNNING")


@contextlib.contextmanager
def served(app: Application, settings: Settings) -> Iterator[tuple[DaemonServer, int]]:
    """The API behind the daemon's own server, in a thread: on a free port, and on the settings' Unix socket."""
    parts = {"waiters": SimpleNamespace(close=int), "scheduler": SimpleNamespace(check_clock=int)}
    daemon: Any = SimpleNamespace(settings=settings, hangs=False, status=lambda: "", **parts)
    lease: Any = SimpleNamespace(lost=False)
    server = DaemonServer(app, daemon, Notifier({}), lease)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    with socket.create_server(("127.0.0.1", 0)) as tcp, unix_listener(settings.listen_socket) as unix:
        if unix is not None:
            unix.listen(16)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [tcp, *filter(None, [unix])]})
        thread.start()
        try:
            yield server, tcp.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(60)
