"""Whatever comes over their sockets: a supervisor, an agent and a worker live on, and hear what comes after it."""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from control_peer import KEY, meet
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from malformed import DEEP, LINES, line
from socket_job import closed, job
from waiting import wait_until

from slurm_elastic.trainer_shim.allocation.pieces.table import THERE
from slurm_elastic.trainer_shim.control import job_key, server
from slurm_elastic.trainer_shim.control.worker_client import WorkerClient
from slurm_elastic.trainer_shim.node.agent import Agent

SURROGATE = line(type="hello", kind="worker", worker="1.n1.0", nonce="\ud800", proof="\ud800")
EXIT = line(type="exit", worker="1.n1.0", code=10**400, tail=7)
FEW = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@FEW
@example(lines=[SURROGATE])
@example(lines=[DEEP])
@given(lines=st.lists(LINES, min_size=1, max_size=4))
def test_who_has_not_proved_itself_is_cut_off(lines: list[bytes]) -> None:
    """At its first line, whatever that is; the supervisor goes on."""
    with job() as made:
        for each in lines:
            peer = made.peer()
            made.say(peer, each)
            made.until(lambda peer=peer: closed(peer))  # type: ignore[misc]
            peer.close()
        made.answers()
        assert len(made.machine.context.nodes.of(*THERE)) == 1


@FEW
@example(who="agent", lines=[EXIT])
@example(who="1.n1.0", lines=[line(type="running", generation=1, batch=float("inf"))])
@example(who="1.n1.0", lines=[DEEP])
@given(who=st.sampled_from(["agent", "1.n1.0", "1.n1.1"]), lines=st.lists(LINES, min_size=1, max_size=8))
def test_who_has_proved_itself_may_say_anything(who: str, lines: list[bytes]) -> None:
    """While the job trains. What its agents and workers say is taken, or left out."""
    with job() as made:
        peers = made.trains()
        made.say(peers[who], b"".join(lines))
        made.ends(peers.pop(who))
        made.answers()
        for peer in peers.values():
            peer.close()


@FEW
@example(fields={"slurm_job_id": float("inf"), "node": "n1", "gpus": ["0"]})
@example(fields={"slurm_job_id": 1, "node": "n1", "gpus": 4})
@given(fields=st.dictionaries(st.sampled_from(["slurm_job_id", "node", "gpus", "agent"]), st.none() | st.text()))
def test_an_agent_that_says_nonsense_of_itself_is_told_to_quit(fields: dict[str, Any]) -> None:
    """It has the secret, but says not who it is."""
    with job() as made:
        peer = made.peer()
        made.say(peer, made.proven(peer, {"kind": "agent", "agent": "9.n9", **fields}))
        made.ends(peer)
        made.answers()
        assert len(made.machine.context.nodes.of(*THERE)) == 1


def test_malformed_messages_are_counted_and_the_next_one_is_heard(capfd: pytest.CaptureFixture[str]) -> None:
    """A line that is far too long, one that is no JSON, one with wrong fields; the end of the connection tells."""
    with job() as made:
        peers = made.trains()
        made.say(peers["agent"], b"x" * (3 << 20) + b"\n{\n" + EXIT + line(type="output", text="still heard"))
        made.ends(peers["agent"])
    told = capfd.readouterr()
    assert "still heard" in told.out
    assert "a message of agent 1.n1 was malformed and left out: a message longer than" in told.err
    assert "3 messages of agent 1.n1 were malformed and left out" in told.err


def test_who_has_not_proved_itself_is_not_listened_to_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first line without an end."""
    monkeypatch.setattr(server, "HELLO_S", 3600.0)
    with job() as made:
        peer = made.peer()
        made.say(peer, b"x" * (64 << 10))
        made.until(lambda: closed(peer))


@pytest.fixture(scope="module")
def agent() -> Iterator[tuple[Agent, socket.socket, list[Any]]]:
    """An agent whose loop the test turns; its supervisor's end; the types that it has taken. It starts no workers."""
    with socket.create_server(("127.0.0.1", 0)) as listener, tempfile.TemporaryDirectory() as folder:
        env = {
            "SELASTIC_CONTROL": f"127.0.0.1:{listener.getsockname()[1]}",
            "SELASTIC_JOB_DIR": folder,
            job_key.VARIABLE: KEY,
            **{"SELASTIC_AGENT_JOB": "1", "SELASTIC_AGENT": "1.n1", "SELASTIC_AGENT_NODE": "n1"},
        }
        taken: list[Any] = []
        made, peer, _ = meet(listener, lambda: Agent(["train.py"], env))
        made._spawn = lambda name, env, follow: json.dumps(env).encode()  # type: ignore[method-assign,assignment,return-value]
        take = made._connection._received

        def received(connection: Any, message: Any) -> None:
            taken.append(message.get("marker"))
            take(connection, message)

        made._connection._received = received
        yield made, peer, taken
        made._connection.close()
        made._logs._connection.close()  # type: ignore[union-attr]
        peer.close()


@FEW
@example(lines=[line(type="kill", signal=999)])
@example(lines=[line(type="spawn"), line(type="spawn", worker="w", env=3), line(type="kill", signal=[])])
@given(lines=st.lists(LINES, min_size=1, max_size=8))
def test_an_agent_takes_anything(agent: tuple[Agent, socket.socket, list[Any]], lines: list[bytes]) -> None:
    """And goes on to what comes after it."""
    made, peer, taken = agent
    taken.clear()
    peer.sendall(b"".join(lines) + line(type="follow", marker="end"))
    deadline = time.monotonic() + 60
    while "end" not in taken:
        assert made._connection.open and time.monotonic() < deadline
        made._loop.turn(0.01)


@pytest.fixture(scope="module")
def worker() -> Iterator[tuple[WorkerClient, socket.socket]]:
    """A worker's connection; its supervisor's end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        client, peer, _ = meet(
            listener, lambda: WorkerClient(address, KEY, "1.n1.0", lambda host: (host, 4000, object()))
        )
        threading.Thread(target=_discard, args=(peer,), daemon=True).start()
        yield client, peer
        client.close()


def _discard(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while peer.recv(1 << 16):
            pass


@FEW
@example(lines=[line(type="store"), line(type="abort", generation="x"), line(type="dismiss", generation=[])])
@example(lines=[line(type="world", generation="1"), line(type="checkpoint", stop=True)])
@given(lines=st.lists(LINES, min_size=1, max_size=8))
def test_a_worker_takes_anything(worker: tuple[WorkerClient, socket.socket], lines: list[bytes]) -> None:
    """And goes on to what comes after it."""
    client, peer = worker
    every_s = client.report_s + 1 if client.report_s < 10**6 else 0.5
    peer.sendall(b"".join(lines) + line(type="report_every", seconds=every_s))
    wait_until(lambda: client.report_s == every_s, 60)
    assert not client.lost
