"""The supervisor's line to selasticd where what fails is on its own side."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from queue import Empty, Queue
from typing import Any

import pytest
from waiting import wait_until

from slurm_elastic.protocol.api import routes
from slurm_elastic.protocol.api.client import Busy, MessageRefused
from slurm_elastic.protocol.api.munge import MungeError
from slurm_elastic.protocol.api.routes import Route
from slurm_elastic.protocol.codec import VERSION, to_json
from slurm_elastic.protocol.errors import ConfigError, DaemonUnreachable, ElasticError, NotAllowed
from slurm_elastic.protocol.messages import Grant, Happening, Phase, Rate, Registration, Report, Resize
from slurm_elastic.trainer_shim.allocation.daemon_client import DaemonClient


def sent(grant: Grant) -> dict[str, Any]:
    """As it comes out of the daemon's JSON."""
    return dict(json.loads(to_json(grant)))


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
        return sent(Grant("t", True, "", 5.0)) if route is routes.REGISTER else {}


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


class Older(Script):
    """A daemon that speaks version 2 of the messages."""

    def call(self, route: Route, job_id: int | None = None, *_: object, **__: object) -> Any:
        answer = super().call(route, job_id)
        return answer | {"version": 2} if route is routes.REGISTER else answer


class Old(Script):
    """A daemon that speaks version 5 of the messages."""

    def call(self, route: Route, job_id: int | None = None, *_: object, **__: object) -> Any:
        answer = super().call(route, job_id)
        return answer | {"version": 5} if route is routes.REGISTER else answer


@pytest.mark.parametrize(("client", "posted"), [(Older({}), ["phases"]), (Script({}), ["happenings"] * 2)])
def test_a_daemon_that_does_not_know_of_hangs_is_not_told(client: Script, posted: list[str]) -> None:
    """What it does not understand would keep the job at its size."""
    link = DaemonClient(client, 7, lambda resize: None, lambda text: None, lambda grant: None)  # type: ignore[arg-type]
    link.update_registration(Registration(VERSION, 1, (), 64, "train.py"))
    for phase in ("stalled", "running"):
        link.tell(Happening(0, phase, 1, (), 64))
    wait_until(lambda: len(client.posted) > len(posted), 60, lambda: client.posted)
    client.ended.set()
    assert link.close(60) and client.posted[1:] == posted


def test_a_daemon_of_an_older_version_hears_of_rates_as_it_can() -> None:
    """One of version 5 takes phases alone; what is said in them is the same."""
    client, happening = Old({}), Happening(3, "running", 2, (), 64, 1.0, 0.5, 7, 8, "d", 0, ())
    rate = Rate("checkpoints", 75.0, 0.25, 4.0, 312.0)
    link = DaemonClient(client, 7, lambda resize: None, lambda text: None, lambda grant: None)  # type: ignore[arg-type]
    link.update_registration(Registration(VERSION, 1, (), 64, "train.py"))
    for said in (rate, happening):
        link.tell(said)
    wait_until(lambda: len(client.posted) > 2, 60, lambda: client.posted)
    client.ended.set()
    assert link.close(60) and client.posted == ["register", "phases", "phases"]
    assert [Phase.of(said).now() for said in (rate, happening)] == [rate, happening]


class Disagreeing:
    """A daemon that does not understand, or is not understood, in what a test names, until it is `replaced`."""

    def __init__(self, unreadable: str = "", refused: str = "") -> None:
        self.unreadable, self.refused = unreadable, refused
        self.orders = Queue[dict[str, Any]]()
        self.registrations, self.happenings = list[Registration](), list[Happening]()
        self.away = threading.Event()

    def call(self, route: Route, job_id: int | None = None, *_: object, message: Any = None, **__: object) -> Any:
        if self.away.is_set():
            raise DaemonUnreachable("no answer")
        if route is routes.REGISTER:
            self.registrations.append(message)
            return sent(Grant("t", True)) | ({"token": 7} if self.unreadable == "grant" else {})
        if route is routes.RESIZE:
            try:
                return self.orders.get(timeout=0.05)
            except Empty:
                return None
        if route.name == self.refused:
            raise MessageRefused(f"{route.name}: not understood")
        if route is routes.HAPPENINGS:
            self.happenings.append(message)
        return {}

    def order(self, **change: Any) -> None:
        self.orders.put(asdict(Resize(3, 7, (), (), 4, 64, "grow_idle", 60.0)) | {"keep": [], "add": []} | change)

    def refusals(self) -> list[str]:
        return [registration.refusal for registration in self.registrations]

    def replaced(self, link: DaemonClient) -> None:
        """Another daemon starts in its place, after a time in which nobody answered."""
        self.away.set()
        self.unreadable = self.refused = ""
        wait_until(lambda: not link._refusal, 60, lambda: link._refusal)
        self.away.clear()


def _link(daemon: Disagreeing) -> tuple[DaemonClient, Queue[Resize], list[str]]:
    came, said = Queue[Resize](), list[str]()
    link = DaemonClient(daemon, 7, came.put, said.append, lambda grant: None)  # type: ignore[arg-type]
    link.update_registration(Registration(VERSION, 1, (), 64, "train.py"))
    wait_until(lambda: daemon.registrations, 60, lambda: "no registration")
    return link, came, said


def test_a_grant_that_is_not_understood_is_told_and_tried_until_it_is() -> None:
    """The daemon hears why, once for each try; the first readable grant begins the usual."""
    daemon = Disagreeing(unreadable="grant")
    link, came, said = _link(daemon)
    wait_until(lambda: len(daemon.registrations) > 2, 60, daemon.refusals)
    assert daemon.refusals()[:2] == [
        "",
        "Grant.token: 7 is not accepted; accepted: printable text of at most 4096 characters",
    ]
    assert len(said) == 1 and "keeps its size: Grant.token" in said[0]
    daemon.unreadable = ""
    daemon.order()
    assert came.get(timeout=60).id == 3 and daemon.refusals()[-1] == ""
    assert link.close(60)


def test_a_resize_that_is_not_understood_is_refused_aloud() -> None:
    """It is not dropped without a word: the daemon is told what, and speaks again after it was replaced."""
    daemon = Disagreeing()
    link, came, said = _link(daemon)
    daemon.order(gpus="four")
    wait_until(lambda: "Resize.gpus: 'four' is not accepted" in daemon.refusals()[-1], 60, daemon.refusals)
    assert came.empty() and any("keeps its size: Resize.gpus" in text for text in said)
    daemon.replaced(link)
    daemon.order(id=4)
    assert came.get(timeout=60).id == 4 and daemon.refusals()[-1] == ""
    assert link.close(60)


@pytest.mark.parametrize("refused", ["happenings", "reports"])
def test_a_message_that_the_daemon_does_not_understand_calls_the_resize_off(refused: str) -> None:
    """Nothing is carried out that the daemon never hears of; it learns what trains now from the registration."""
    daemon = Disagreeing(refused=refused)
    link, came, _ = _link(daemon)
    daemon.order()
    assert not came.get(timeout=60).withdrawn
    if refused == "happenings":
        link.tell(Happening(3, "accepted", 1, (), 64))
    else:
        link.report(Report(1, 1.0, 1, 1, 64, 64, 1, 1, 0.1, 0.1, 640.0, 1, 64))
    withdrawn = came.get(timeout=60)
    assert (withdrawn.id, withdrawn.withdrawn) == (3, True)
    wait_until(lambda: daemon.refusals()[-1] == f"{refused}: not understood", 60, daemon.refusals)
    daemon.replaced(link)
    link.tell(Happening(3, "withdrawn", 1, (), 64))
    wait_until(lambda: [phase.what for phase in daemon.happenings] == ["withdrawn"], 60, daemon.refusals)
    assert daemon.refusals()[-1] == "" and link.close(60)


def test_silence_is_told_until_the_daemon_answers() -> None:
    """At each try, and longer each time. One that is busy is there; so is one that refuses the job."""
    daemon, told = Disagreeing(), Queue[float]()
    link = DaemonClient(daemon, 7, lambda resize: None, lambda text: None, lambda grant: None, told.put)  # type: ignore[arg-type]
    link.update_registration(Registration(VERSION, 1, (), 64, "train.py"))
    wait_until(lambda: daemon.registrations, 60)
    answered = link._answered_at
    for there in (Busy("busy", 0.1), NotAllowed("no")):
        link._out_of_reach(there) if isinstance(there, Busy) else link._not_known(there)
        assert told.empty() and link._answered_at > answered
        answered = link._answered_at
    daemon.away.set()
    first, second = told.get(timeout=60), told.get(timeout=60)
    assert 0 <= first < second
    daemon.away.clear()
    wait_until(lambda: link._answered_at > answered, 60)
    assert link.close(60)


def test_a_client_file_that_cannot_be_read_for_a_moment_loses_nothing() -> None:
    """Only what the daemon itself refuses is given up: everything else is sent again."""
    registered, said = threading.Event(), list[str]()
    client = Script({1: MungeError("munged is away"), 4: ConfigError("client file cannot be read")})
    link = DaemonClient(client, 7, lambda resize: None, said.append, lambda grant: registered.set())
    link.update_registration(Registration(VERSION, 1, (), 64, "train.py"))
    link.tell(Happening(3, "ready", 1, (), 64, 1.0))
    link.tell(Happening(3, "running", 1, (), 64, 2.0))
    assert registered.wait(60) and link.close(60)
    client.ended.set()
    assert client.posted == ["register", "happenings", "happenings"]
    assert said == ["munged is away", "selasticd manages this job", "client file cannot be read"]
