"""The supervisor's line to selasticd where what fails is on its own side."""

from __future__ import annotations

import threading
from dataclasses import asdict
from queue import Queue
from typing import Any

from slurm_elastic.protocol.api import routes
from slurm_elastic.protocol.api.routes import Route
from slurm_elastic.protocol.codec import VERSION
from slurm_elastic.protocol.errors import ConfigError, ElasticError
from slurm_elastic.protocol.messages import Grant, Phase, Registration, Resize
from slurm_elastic.protocol.munge import MungeError
from slurm_elastic.trainer_shim.supervisor.daemon_client import DaemonClient


class Script:
    """A client whose calls of these numbers fail."""

    def __init__(self, failures: dict[int, ElasticError]) -> None:
        self.failures, self.calls, self.posted = failures, 0, list[str]()
        self.ended = threading.Event()

    def call(self, route: Route, job_id: int | None = None, *_: object, **__: object) -> Any:
        if route is routes.RESIZE:
            self.ended.wait(60)
            return None
        self.calls += 1
        if self.calls in self.failures:
            raise self.failures[self.calls]
        self.posted.append(route.name)
        return asdict(Grant("t", True, "", 5.0)) if route is routes.REGISTER else {}


class Newer(Script):
    """A daemon of the next version."""

    told = False

    def call(self, route: Route, job_id: int | None = None, *_: object, **__: object) -> Any:
        newer = {"version": VERSION + 1, "tomorrow": [1]}
        if route is routes.RESIZE and not self.told:
            self.told = True
            known = asdict(Resize(3, 7, (), (), 4, 64, "grow_idle", 60.0))
            return known | {"keep": [], "add": []} | newer
        answer = super().call(route, job_id)
        return answer if answer is None else answer | newer


def test_a_daemon_of_the_next_version_is_understood() -> None:
    """Fields of its grant and its resize that this supervisor does not know are ignored."""
    came, client = Queue[Resize](), Newer({})
    link = DaemonClient(client, 7, came.put, lambda text: None, lambda grant: None)
    link.update_registration(Registration(VERSION, 1, (), 64, "train.py"))
    assert came.get(timeout=60).id == 3
    client.ended.set()
    assert link.close(60)


def test_a_client_file_that_cannot_be_read_for_a_moment_loses_nothing() -> None:
    """Only what the daemon itself refuses is given up: everything else is sent again."""
    registered, said = threading.Event(), list[str]()
    client = Script({1: MungeError("munged is away"), 4: ConfigError("client file cannot be read")})
    link = DaemonClient(client, 7, lambda resize: None, said.append, lambda grant: registered.set())
    link.update_registration(Registration(VERSION, 1, (), 64, "train.py"))
    link.report_phase(Phase(3, "ready", 1, (), 64, 1.0))
    link.report_phase(Phase(3, "running", 1, (), 64, 2.0))
    assert registered.wait(60) and link.close(60)
    client.ended.set()
    assert client.posted == ["register", "phases", "phases"]
    assert said == ["munged is away", "selasticd manages this job", "client file cannot be read"]
