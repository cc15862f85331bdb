"""The real API in a thread, on the story's store: what the command line is tested against."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import uvicorn
from api_harness import WellRounds, foretold, powers
from cluster_snapshots import Cluster

from slurm_elastic.client import main
from slurm_elastic.daemon.api.app import create_app
from slurm_elastic.daemon.models.priors import SHIPPED
from slurm_elastic.daemon.prediction.advice import Ground
from slurm_elastic.daemon.prediction.sizes import PredictionInputs
from slurm_elastic.daemon.reports.common import Viewer
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.slurm.model import Snapshot
from slurm_elastic.daemon.slurm.site import Site
from slurm_elastic.db.rows import DecisionRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers.by_route import Health, ModelsInUse
from slurm_elastic.protocol.answers.history import PlanNote
from slurm_elastic.protocol.answers.site import Power, Queue
from slurm_elastic.protocol.api import munge
from slurm_elastic.protocol.api.proofs import Verifier


@dataclass
class StoredController:
    """The daemon's part of the API, as far as the command line reaches: what the store knows, and that it was woken."""

    store: Store
    woken: list[str]
    rounds = WellRounds()

    def owner(self, job_id: int, asker: int) -> tuple[int, str] | None:
        job = self.store.jobs.get(job_id)
        return None if job is None or job.end_time is not None else (job.uid, job.user)

    def notes(self) -> list[PlanNote]:
        return [PlanNote(service="power", about="node n3", text="nobody wants it")]

    def queue(self, viewer: Viewer) -> Queue:
        return foretold(viewer)

    def power(self) -> Power:
        return powers()

    def dry_plan(self) -> list[DecisionRow]:
        return self.store.decisions.current()

    fairness = "account"

    def prior(self, job_id: int) -> None:
        return None

    def basis(self, job_id: int, gpu_type: str | None) -> PredictionInputs:
        return PredictionInputs(Settings(), SHIPPED)

    def look_for(self, job_id: int, asker: int) -> None:
        """All jobs are on record."""

    def ground(self) -> Ground:
        nodes = {name: replace(node, gpu_type="") for name, node in Cluster().nodes.items()}
        return Ground(Snapshot(0.0, nodes=nodes), Site())

    def wake(self, why: str) -> None:
        self.woken.append(why)

    def out_of_reach(self, job_id: int, gpus: int) -> str:
        return ""

    def health(self) -> Health:
        models = ModelsInUse(prior="9 earlier runs of this cluster", runs=9, programs=2, learned_at=0.0)
        return Health(mode="review", models=models)


class Caller:
    """Says that every request comes from this user."""

    def __init__(self) -> None:
        self.viewer = Viewer(1000)
        self.proofs = Verifier("of-the-test")

    def who(self, authorization: str | None, method: str, target: str, body: bytes) -> Viewer:
        scheme, _, proof = (authorization or "").partition(" ")
        assert scheme == "Secret"
        self.proofs.check(proof, munge.bind(method, target, body))
        return replace(self.viewer, key=b"of-the-test")


@dataclass
class Daemon:
    """A served API: whom it takes the caller for, what it was told, and where it is."""

    caller: Caller
    store: Store
    woken: list[str]
    client_conf: Path


@pytest.fixture
def daemon(story: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """The real API in a thread, found by the command line through its client file."""
    caller, woken = Caller(), []  # type: ignore[var-annotated]
    app = create_app(story, StoredController(story, woken), Settings(), caller)  # type: ignore[arg-type]
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    conf = tmp_path / "client.json"
    conf.write_text(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}", "secret": "of-the-test"}))
    monkeypatch.setenv("SELASTIC_CLIENT_CONF", str(conf))
    # The listening socket is open: a request that comes before the server's first turn waits for it.
    monkeypatch.setattr("os.geteuid", lambda: caller.viewer.uid)
    yield Daemon(caller, story, woken, conf)
    server.should_exit = True
    thread.join(30)
    listener.close()
    assert not thread.is_alive()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process: exit status, output, errors."""

    def command(*words: str) -> tuple[int, str, str]:
        try:
            status = main.main(words)
        except SystemExit as ended:
            status = int(ended.code or 0)
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return command


Run = Callable[..., tuple[int, str, str]]
