"""Agents find out which hosts they do not reach, without a thread and without waiting for one after the other."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from slurm_elastic.protocol.messages import Unreached
from slurm_elastic.trainer_shim.control.event_loop import Loop
from slurm_elastic.trainer_shim.node import reach
from slurm_elastic.trainer_shim.node.reach import SUPERVISOR, Listener, Reach, supervisor_unreached


def tried(loop: Loop, own: Reach, *others: Listener) -> dict[str, str]:
    """Node -> why it was not reached."""
    answers: list[list[tuple[Listener, str]]] = []
    own.try_all(others, answers.append)
    deadline = time.monotonic() + 60
    while not answers and time.monotonic() < deadline:
        loop.turn(0.05)
    [answer] = answers
    return {other.node: problem for other, problem in answer}


def test_who_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One host is there, one refuses, one says nothing: a listener whose queue is full."""
    monkeypatch.setattr(reach.interfaces, "is_loopback", lambda address: False)
    monkeypatch.setattr(reach, "REACH_S", 0.5)
    loop = Loop()
    there = Reach(loop, "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        silent = Listener("n4", "127.0.0.1", full.getsockname()[1])
        pending = [socket.socket() for _ in range(4)]
        for sock in pending:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", silent.port))
        others = Listener("n2", "127.0.0.1", there.port), Listener("n3", "127.0.0.1", port), silent
        found = tried(loop, there, *others)
        for sock in pending:
            sock.close()
    assert found == {"n3": "Connection refused", "n4": "no answer within 0.5 s"}
    assert tried(loop, there) == {}


def test_a_worker_keeps_none_of_its_agents_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is forked while the tries may still be under way."""
    monkeypatch.setattr(reach.interfaces, "is_loopback", lambda address: False)
    before = set(Path("/proc/self/fd").iterdir())
    own = Reach(loop := Loop(), "127.0.0.1")
    own.try_all([Listener("n2", "127.0.0.1", own.port), Listener("n3", "127.0.0.1", own.port)], lambda problems: None)
    own.forget()
    loop.leave_in_child()
    assert set(Path("/proc/self/fd").iterdir()) <= before


def test_on_one_machine_there_is_no_port() -> None:
    """Agents that reach the supervisor by the loopback are all on its host."""
    assert Reach(Loop(), "127.0.0.1").port == 0


def test_an_agents_last_sentence_names_two_hosts() -> None:
    """Unless the address means every host itself, as with an interface that was chosen wrongly."""
    said = SUPERVISOR.format("n3", "10.0.0.1 port 4000 (No route to host), nor n1 port 4000 (timed out)")
    assert supervisor_unreached(f"the companion's agents did not start: {said}; see --interface", "n1") == (
        Unreached("n3", "n1", "10.0.0.1"),
    )
    assert supervisor_unreached(SUPERVISOR.format("n3", "127.0.0.1 port 4000 (refused)"), "n1") == ()
    assert supervisor_unreached("exit code 1", "n1") == ()
