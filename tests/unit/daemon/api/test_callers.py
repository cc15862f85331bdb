"""How callers reach selasticd and are known: kept connections, Unix socket, TLS; Slurm's operators and PrivateData.

A real server (uvicorn, as the daemon runs it) and the real client; MUNGE is in tests/cluster/test_auth.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_harness import ADA, BOB, FakeController, job, served
from certificates import self_signed
from fresh_store import fresh_store
from waiting import wait_until

from slurm_elastic.daemon import reports
from slurm_elastic.daemon.api.app import create_app
from slurm_elastic.daemon.api.auth import Authenticator, SlurmRoles
from slurm_elastic.daemon.reports.common import Viewer
from slurm_elastic.daemon.selasticd.listeners import AddressUnusable, shows_all_uids, unix_listener
from slurm_elastic.daemon.selasticd.main import DaemonServer
from slurm_elastic.daemon.selasticd.settings import Settings, check
from slurm_elastic.db.rows import DecisionRow
from slurm_elastic.protocol.answers.history import PlanTable
from slurm_elastic.protocol.api.client import Client
from slurm_elastic.protocol.errors import ConfigError, DaemonUnreachable, NotFound, SlurmUnreachable


class Seen(FakeController):
    """A daemon with one job of ours."""

    def owner(self, job_id: int, asker: int) -> tuple[int, str] | None:
        return (os.geteuid(), "me") if job_id == 7 else None


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., tuple[DaemonServer, int]]]:
    """Serves the API with these settings on a free port and the settings' Unix socket."""
    with fresh_store(f"sqlite:///{tmp_path / 'a.db'}") as store, contextlib.ExitStack() as running:
        store.jobs.upsert_all([job(7, os.geteuid(), "me"), job(8, BOB, "bob")])

        def start(**values: object) -> tuple[DaemonServer, int]:
            (tmp_path / "slurm.conf").write_text("ClusterName=x\n")
            settings = Settings(slurm_conf=str(tmp_path / "slurm.conf"), **values)  # type: ignore[arg-type]
            app = create_app(store, Seen(), settings, Authenticator(settings))
            return running.enter_context(served(app, settings))

        yield start


def test_a_connection_is_kept_and_made_anew(serve: Callable[..., tuple[DaemonServer, int]]) -> None:
    """Requests of a thread share a connection; one that the daemon has closed is replaced without anyone noticing."""
    server, port = serve()
    client = Client(f"http://127.0.0.1:{port}")
    for _ in range(3):
        assert client.get("/v1/health", token="x")["status"] == "ok"
    assert len(server.server_state.connections) == 1
    other: list[Any] = []
    thread = threading.Thread(target=lambda: other.append(client.get("/v1/health", token="x")))
    thread.start()
    thread.join()
    assert other[0]["status"] == "ok"
    for connection in list(server.server_state.connections):
        connection.loop.call_soon_threadsafe(connection.transport.close)
    wait_until(lambda: not server.server_state.connections, 60)
    assert client.get("/v1/health", token="x")["status"] == "ok"
    client.close()
    wait_until(lambda: not server.server_state.connections, 60)


def test_a_daemon_that_loses_its_lease_stops_serving(serve: Callable[..., tuple[DaemonServer, int]]) -> None:
    """Another daemon acts from then on: nobody is to be answered by this one."""
    server, port = serve()
    client = Client(f"http://127.0.0.1:{port}")
    assert client.get("/v1/health", token="x")["status"] == "ok"
    client.close()
    server._lease.lost = True
    wait_until(lambda: not any(each.is_serving() for each in server.servers), 60)


def client_file(path: Path, monkeypatch: pytest.MonkeyPatch, **values: object) -> Client:
    """A client that reads this file."""
    (path / "client.json").write_text(json.dumps(values))
    monkeypatch.setenv("SELASTIC_CLIENT_CONF", str(path / "client.json"))
    monkeypatch.delenv("SELASTIC_URL", raising=False)
    return Client()


def test_the_unix_socket_knows_its_callers(
    serve: Callable[..., tuple[DaemonServer, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No MUNGE, no secret: the kernel says who calls, and a caller's own word for it counts nothing."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = f"{folder}/s.sock"
        _, port = serve(listen_socket=path)
        client = client_file(Path(folder), monkeypatch, url=f"http://127.0.0.1:{port}", socket=path)
        rows = {row["job_id"]: row for row in client.get("/v1/jobs")["jobs"]}
        assert rows[7]["own"] and not rows[8]["own"]
        if os.geteuid() == 0:
            child = "import os; from slurm_elastic.protocol.api.client import Client; os.setuid(65534); "
            child += "print([row['own'] for row in Client().get('/v1/jobs')['jobs']])"
            code = [sys.executable, "-c", child]
            said = subprocess.run(code, capture_output=True, text=True, timeout=60, check=False)
            assert said.stdout.strip() == "[False, False]", said.stderr
    with socket.create_connection(("127.0.0.1", port)) as tcp:
        tcp.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: uid:0\r\nConnection: close\r\n\r\n")
        assert b" 401 " in tcp.recv(4096)


def test_a_socket_of_another_user_is_not_the_daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever puts a socket where another host's daemon has its own is not spoken to."""
    path, me = str(tmp_path / "s.sock"), os.geteuid()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        os.seteuid(65534 if me == 0 else me)  # the kernel tells who has called listen
        try:
            listener.listen()
        finally:
            os.seteuid(me)
        client = client_file(tmp_path, monkeypatch, url="http://x:1", socket=path, uid=me + 1)
        with pytest.raises(DaemonUnreachable, match=rf"listens on .*s\.sock, not the daemon's uid {me + 1}"):
            client.get("/v1/jobs")


@pytest.mark.parametrize(
    ("uid_map", "told"),
    [
        ("         0          0 4294967295\n", True),
        ("         0          0          1\n       990        990          1\n", False),  # systemd's PrivateUsers=yes
        ("         0     100000      65536\n", False),
    ],
)
def test_a_user_namespace_hides_who_calls(uid_map: str, told: bool) -> None:
    """In one the kernel gives all callers the same uid, which must not be taken for theirs."""
    assert shows_all_uids(uid_map) is told


def test_a_socket_left_behind_is_no_obstacle(tmp_path: Path) -> None:
    """What a killed daemon left is replaced; what is no socket is left alone, and said."""
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    with unix_listener(str(path)) as fresh:
        assert fresh is not None and path.stat().st_mode & 0o777 == 0o666
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(AddressUnusable, match="cannot be used"), unix_listener(str(path)):
        pass
    assert path.read_text() == "mine"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A self-signed certificate of localhost, and its key."""
    return self_signed(tmp_path_factory.mktemp("tls"))


def test_tls(
    serve: Callable[..., tuple[DaemonServer, int]],
    certificate: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """HTTPS with the site's own authority, named in client.json; who does not know it does not speak; the Unix socket
    of the same daemon needs no TLS."""
    cert, key = certificate
    path = str(tmp_path / "s.sock")
    _, port = serve(tls_cert=cert, tls_key=key, tls_ca=cert, listen_socket=path)
    values = Authenticator(Settings(tls_ca=cert)).client_values(f"https://localhost:{port}")
    assert client_file(tmp_path, monkeypatch, **values).get("/v1/health", token="x")["status"] == "ok"
    with pytest.raises(DaemonUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
        client_file(tmp_path, monkeypatch, url=f"https://localhost:{port}").get("/v1/health", token="x")
    with pytest.raises(DaemonUnreachable):
        client_file(tmp_path, monkeypatch, url=f"http://localhost:{port}").get("/v1/health", token="x")
    local = client_file(tmp_path, monkeypatch, url=f"https://localhost:{port}", socket=path)
    assert local.get("/v1/jobs")["jobs"]
    with pytest.raises(ConfigError, match="ca of the client file"):
        client_file(tmp_path, monkeypatch, url="https://localhost:1", ca="nonsense").get("/v1/health", token="x")


def test_half_of_tls_is_refused() -> None:
    """A certificate without its key is a mistake that is said before anything starts."""
    with pytest.raises(ConfigError, match="tls_key is missing; accepted: both it and tls_cert, or neither"):
        check({"tls_cert": "/a.pem"})
    with pytest.raises(ConfigError, match=r"tls_ca=/none\.pem cannot be read"):
        Authenticator(Settings(tls_ca="/none.pem"))


def test_slurms_operators_are_admins() -> None:
    """Whoever slurmdbd calls Operator or Administrator; what it last said counts while it does not answer."""
    now, names, asked = [0.0], [{"root", "nobody", "no-such-user"}], threading.Semaphore(0)

    def ask() -> set[str]:
        asked.release()
        if not names:
            raise SlurmUnreachable("slurmdbd is away")
        return names.pop()

    roles = SlurmRoles(ask, lambda: "none", clock=lambda: now[0])
    authenticator = Authenticator(Settings(), roles)
    assert not authenticator.viewer(65534).admin
    roles.refresh()
    wait_until(lambda: authenticator.viewer(65534).admin, 60)
    roles.refresh()
    now[0] += 61
    roles.refresh()
    assert asked.acquire(timeout=60) and asked.acquire(timeout=60)
    assert authenticator.viewer(65534).admin and not authenticator.viewer(ADA).admin
    wait_until(lambda: roles.private is False, 60)  # what slurmctld says does not wait for slurmdbd


def test_private_data_hides_others_jobs(tmp_path: Path) -> None:
    """Where Slurm hides jobs so does selasticd, from all but owners and admins: no row, no id, no sum."""
    conf = tmp_path / "slurm.conf"
    conf.write_text("PrivateData=accounts,Jobs,users\n")
    settings = Settings(slurm_conf=str(conf))
    viewer = Authenticator(settings).viewer
    assert viewer(ADA) == Viewer(ADA, False, True) and viewer(0) == Viewer(0, True, False)
    (tmp_path / "more.conf").write_text("PrivateData=jobs\n")
    conf.write_text("include more.conf\n")
    assert Authenticator(settings).viewer(ADA).private
    conf.write_text("PrivateData=usage\n")
    assert not Authenticator(settings).viewer(ADA).private
    roles = SlurmRoles(tuple, str)
    roles.private = True
    assert Authenticator(settings, roles).viewer(ADA).private
    # Without slurm.conf, as on a host that slurmctld sends it to, nothing is told until slurmctld has spoken.
    elsewhere = Settings(slurm_conf=str(tmp_path / "none.conf"))
    assert Authenticator(elsewhere).viewer(ADA).private
    roles.private = False
    assert not Authenticator(elsewhere, roles).viewer(ADA).private
    with fresh_store(f"sqlite:///{tmp_path / 'a.db'}") as store:
        store.jobs.upsert_all([job(7, ADA, "ada"), job(8, BOB, "bob")])
        store.allocations.note(8, 1, (), 64, 10.0)
        store.decisions.save(1.0, [DecisionRow(8, 1.0, 4, 8, 64, 64, "grow_idle", None, None, mode="review")])
        hidden, seen = Viewer(ADA, False, True), Viewer(ADA)
        assert [row.job_id for row in reports.status(store, hidden, 9.0)] == [7]
        assert [row.job_id for row in reports.status(store, seen, 9.0)] == [7, 8]
        assert reports.acct(store, hidden, 9.0) == [] and len(reports.acct(store, seen, 9.0)) == 1
        assert reports.plan(store, hidden) == PlanTable(at=None, jobs=())
        assert reports.review(store, hidden, 9.0, start=0.0).cluster.jobs == 0
        assert reports.review(store, seen, 9.0, start=0.0).cluster.jobs == 1
        for report in (reports.job, reports.explain):
            with pytest.raises(NotFound, match="job 8 is not known"):
                report(store, 8, hidden, 9.0)
