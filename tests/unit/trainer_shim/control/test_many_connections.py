"""Too many connections to a supervisor: those that prove nothing end, the others are heard."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from socket_job import closed, job

from slurm_elastic.protocol import own_files
from slurm_elastic.trainer_shim.allocation.pieces.table import THERE
from slurm_elastic.trainer_shim.control import server
from slurm_elastic.trainer_shim.control.server import MAX_UNPROVEN_OF_PEER, one_too_many
from slurm_elastic.trainer_shim.control.worker_client import _connect


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    """What a test does to this process's limits is undone."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_oldest_of_the_busiest_address_gives_way() -> None:
    """When an address has too many, or all together have."""
    assert one_too_many([], 0, 0) is None
    assert one_too_many(["a", "b", "b"], 2, 3) is None
    assert one_too_many(["a", "b", "b"], 1, 3) == 1
    assert one_too_many(["a", "b", "b"], 2, 2) == 1
    assert one_too_many(["a"], 0, 0) == 0


def test_the_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    """As high as a process may set it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    assert own_files.limit() == 200
    own_files.raise_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


def test_idle_connections_take_no_place_from_honest_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, and though none of them ever ends by time."""
    monkeypatch.setattr(server, "HELLO_S", 3600.0)
    own_files.raise_limit()
    with job() as made, contextlib.ExitStack() as held:
        idle = [held.enter_context(made.peer()) for _ in range(2 * MAX_UNPROVEN_OF_PEER)]
        made.until(lambda: sum(closed(peer) for peer in idle) >= MAX_UNPROVEN_OF_PEER)
        made.answers()
        assert len(made.supervisor._server._unproven) <= MAX_UNPROVEN_OF_PEER


def test_all_honest_ones_that_come_at_once_are_heard() -> None:
    """More than may be unproven: who is cut off before its proof has come calls again."""
    own_files.raise_limit()
    with job() as made:
        port, key = made.supervisor._server.port, made.supervisor._key
        names = [f"w{number}" for number in range(2 * MAX_UNPROVEN_OF_PEER)]
        with ThreadPoolExecutor(len(names)) as pool:
            hellos = [{"kind": "worker", "worker": name} for name in names]
            calls = [pool.submit(_connect, "127.0.0.1", port, key, hello) for hello in hellos]
            made.until(lambda: all(call.done() for call in calls))
        assert len(made.supervisor._server._peers) == len(names)
        for call in calls:
            call.result().close()


def test_who_says_nothing_is_cut_off_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the second time, when nobody had been waiting in between."""
    monkeypatch.setattr(server, "HELLO_S", 0.0)
    monkeypatch.setattr(server, "SWEEP_S", 0.01)
    with job() as made:
        for _ in range(2):
            with made.peer() as peer:
                made.until(lambda peer=peer: closed(peer))  # type: ignore[misc]


def test_a_supervisor_without_a_free_descriptor_goes_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Who comes waits in the kernel, and is heard when descriptors are free again."""
    monkeypatch.setattr(server, "PAUSE_S", 0.01)
    with job() as made, contextlib.ExitStack() as held:
        peers: list[socket.socket] = [held.enter_context(made.peer()) for _ in range(9)]
        highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        spare = [held.enter_context(socket.socket()) for _ in range(highest)]  # no gaps below the limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(each.fileno() for each in spare) + 1, hard))
        made.until(lambda: made.supervisor._server._told)
        for each in spare:
            each.close()
        made.say(peers[-1], made.hello(peers[-1], "agent", "1.n1"))
        made.until(lambda: made.machine.context.nodes.of(*THERE))
    assert "connections have to wait: Too many open files" in capfd.readouterr().err
