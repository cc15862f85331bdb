"""The HTTP client: where it finds the daemon, what it sends, and which error each answer becomes.

The daemon is a scripted HTTP server here, and MUNGE a word; both are real in tests/cluster/test_auth.py.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from ctypes.util import find_library
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.protocol.api import client as client_module
from slurm_elastic.protocol.api import munge, proofs, routes
from slurm_elastic.protocol.api.client import Busy, Client, TokenRefused
from slurm_elastic.protocol.api.proofs import NONCE, PROOF, JobProofs, answer_proven, prove_answer
from slurm_elastic.protocol.errors import ConfigError, DaemonUnreachable, ElasticError, NotAllowed, NotFound


class Daemon:
    """A server that gives the answer it was told, and remembers what was asked."""

    def __init__(self) -> None:
        self.status, self.body, self.headers = 200, b"{}", {}
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.key: bytes | None = None
        """What answers are proven with; None: what the request's credential says, as only the daemon can open it."""
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                daemon.asked.append((self.command, self.path, dict(self.headers), self.rfile.read(length)))
                self.send_response(daemon.status)
                for name, value in daemon.headers.items():
                    self.send_header(name, value)
                credential = self.headers.get("Authorization", "").partition("|")[0]
                key = daemon.key
                if key is None:
                    key = bytes.fromhex(credential.rpartition(" ")[2]) if credential.startswith("MUNGE ") else b""
                proof = prove_answer(key, self.headers.get(NONCE, ""), self.path, daemon.status, daemon.body)
                self.send_header(PROOF, proof)
                self.end_headers()
                self.wfile.write(daemon.body)

            do_POST = do_GET

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def says(self, status: int, body: object, **headers: str) -> None:
        self.status, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setattr(munge, "encode", lambda payload, socket=None, **options: f"{payload.decode()}|{options}")
    found = Daemon()
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


@pytest.fixture(autouse=True)
def no_client_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(client_module, "SITE_FILE", str(tmp_path / "site.json"))
    for name in ("SELASTIC_URL", "SELASTIC_CLIENT_CONF"):
        monkeypatch.delenv(name, raising=False)


def test_a_credential_is_made_for_the_request(daemon: Daemon) -> None:
    """Without a token the request carries a credential for exactly its method, target and body."""
    daemon.says(200, {"a": 1})
    assert Client(daemon.url).post("/v1/jobs/7/pin?x=1", b"{}") == {"a": 1}
    method, path, headers, body = daemon.asked[0]
    bound = munge.bind("POST", "/v1/jobs/7/pin?x=1", b"{}")
    assert (method, path, body) == ("POST", "/v1/jobs/7/pin?x=1", b"{}")
    payload, _, options = headers["Authorization"].removeprefix("MUNGE ").partition("|")
    assert len(munge.key_in(payload.encode(), bound) or b"") == 32 and options == "{'only_uid': None}"


@pytest.mark.parametrize("key", [b"", b"guessed"])
def test_who_took_the_daemons_port_is_not_believed(daemon: Daemon, key: bytes) -> None:
    """A stranger can't open the credential, so the answer, a token among them, is none; nor is an earlier one again."""
    job, client = 7, Client(daemon.url)
    daemon.key = key
    for route, token in ((routes.REGISTER, None), (routes.RESIZE, "t"), (routes.STATUS, None)):
        daemon.says(200, {"token": "t"})
        with pytest.raises(DaemonUnreachable, match="does not prove to be any selasticd"):
            client.call(route, job if "{job_id}" in route.path else None, token=token)


def test_an_answer_is_proven_for_one_request() -> None:
    """One that was right for another nonce, address, status or body is not taken."""
    right = prove_answer(b"k", "n", "/a", 200, b"{}")
    assert answer_proven(right, b"k", "n", "/a", 200, b"{}")
    for other in ((b"j", "n", "/a", 200, b"{}"), (b"k", "m", "/a", 200, b"{}"), (b"k", "n", "/b", 200, b"{}"),
                  (b"k", "n", "/a", 202, b"{}"), (b"k", "n", "/a", 200, b"{ }")):  # fmt: skip
        assert not answer_proven(right, *other)
    assert not answer_proven("\xff", b"k", "n", "/a", 200, b"{}")


@pytest.mark.parametrize("version", [4, 5, 6])
def test_a_token_is_proven_to_be_known(daemon: Daemon, version: int) -> None:
    """It is not sent again, nor what it is proven with; to a daemon of 0.2 it is sent as it is. MUNGE is not asked."""
    client = Client(daemon.url)
    daemon.says(200, {"token": "not-hex", "version": version})
    client.call(routes.REGISTER, 7)
    daemon.says(202, {})
    client.call(routes.REPORTS, 7, token="not-hex")
    payload = daemon.asked[0][2]["Authorization"].removeprefix("MUNGE ").partition("|")[0].encode()
    key = munge.key_in(payload, munge.bind("POST", "/v1/jobs/7/register", b"")) or b""
    said = daemon.asked[1][2]["Authorization"]
    if version < 5:
        assert said == "Bearer not-hex"
        return
    assert "not-hex" not in said and key and key.hex() not in str(daemon.asked[1])
    proof = said.removeprefix("Proof ")
    assert JobProofs(key, "not-hex").take(proof, munge.bind("POST", "/v1/jobs/7/reports", b""))
    client.call(routes.REPORTS, 7, token="another's")
    assert daemon.asked[2][2]["Authorization"] == "Bearer another's"


def test_nothing_is_none(daemon: Daemon) -> None:
    """204 means that there is nothing new."""
    daemon.says(204, b"")
    assert Client(daemon.url).get("/x", token="t") is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, ElasticError), (401, TokenRefused), (403, NotAllowed), (404, NotFound), (413, ElasticError),
     (429, Busy), (500, DaemonUnreachable), (502, DaemonUnreachable), (503, Busy)],
)  # fmt: skip
def test_each_refusal_has_its_error(daemon: Daemon, status: int, kind: type[Exception]) -> None:
    """The server's sentence becomes the error's; whether it is worth trying again is in its class."""
    daemon.says(status, {"error": "gpus=3 is not accepted"}, Retry_After="7")
    with pytest.raises(kind, match="gpus=3 is not accepted") as caught:
        Client(daemon.url).get("/x", token="t")
    assert isinstance(caught.value, kind)
    assert isinstance(caught.value, DaemonUnreachable) == (status >= 500 or status == 429)
    if isinstance(caught.value, Busy):
        assert caught.value.retry_after_s == 7.0


@pytest.mark.parametrize("body", [b"<html>", b"\xff", b""])
def test_an_answer_of_something_else(daemon: Daemon, body: bytes) -> None:
    """An error page of a proxy becomes a sentence too, and a page that is no JSON is not an answer."""
    daemon.says(404, body)
    with pytest.raises(NotFound, match="answers 404"):
        Client(daemon.url).get("/x", token="t")
    if body:
        daemon.says(200, body)
        with pytest.raises(DaemonUnreachable, match="is not selasticd"):
            Client(daemon.url).get("/x", token="t")


def test_redirects_are_not_followed(daemon: Daemon) -> None:
    """A token does not travel to wherever a redirect points."""
    daemon.says(302, b"", Location=f"{daemon.url}/elsewhere")
    with pytest.raises(ElasticError, match="answers 302"):
        Client(daemon.url).get("/x", token="secret")
    assert [path for _, path, _, _ in daemon.asked] == ["/x"]


def test_proxies_are_left_alone(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """http_proxy of the user's environment is for the internet, not for the cluster's own daemon."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert Client(daemon.url).get("/x", token="t") == {}


def test_no_answer_is_unreachable(daemon: Daemon) -> None:
    """A closed port says where nothing answers, and asks whether it runs."""
    with pytest.raises(DaemonUnreachable, match=r"selasticd at http://127.0.0.1:9 does not answer .*is it running\?"):
        Client("http://127.0.0.1:9").get("/x", token="t")


def test_the_daemon_is_found_in_order(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Argument, SELASTIC_URL, SELASTIC_CLIENT_CONF, the site's file, the user's own: the first one counts."""
    with pytest.raises(DaemonUnreachable, match="no selasticd is known here"):
        Client().get("/x", token="t")
    (tmp_path / ".slurm-elastic").mkdir()
    (tmp_path / ".slurm-elastic" / "client.json").write_text('{"url": "http://user:1"}')
    assert Client().url == "http://user:1"
    (tmp_path / "site.json").write_text('{"url": "http://site:1/"}')
    assert Client().url == "http://site:1"
    (tmp_path / "named.json").write_text('{"url": "http://named:1"}')
    monkeypatch.setenv("SELASTIC_CLIENT_CONF", str(tmp_path / "named.json"))
    assert Client().url == "http://named:1"
    monkeypatch.setenv("SELASTIC_URL", "http://environment:1")
    assert Client().url == "http://environment:1"
    assert Client("http://argument:1").url == "http://argument:1"


def test_a_daemon_with_a_new_port_is_found_again(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A client that lives on reads the file again, so a daemon may come back on another port."""
    path = tmp_path / "named.json"
    monkeypatch.setenv("SELASTIC_CLIENT_CONF", str(path))
    path.write_text('{"url": "http://127.0.0.1:9"}')
    client = Client()
    with pytest.raises(DaemonUnreachable):
        client.get("/x", token="t")
    path.write_text(json.dumps({"url": daemon.url}))
    assert client.get("/x", token="t") == {}


def test_the_file_may_say_who_the_daemon_is(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the daemon's uid in it, only the daemon can decode the credential; with a secret, MUNGE is not needed."""
    path = tmp_path / "named.json"
    monkeypatch.setenv("SELASTIC_CLIENT_CONF", str(path))
    path.write_text(json.dumps({"url": daemon.url, "uid": 64030}))
    Client().get("/x")
    assert daemon.asked[0][2]["Authorization"].endswith("{'only_uid': 64030}")
    daemon.key = b"s3"
    path.write_text(json.dumps({"url": daemon.url, "uid": 64030, "secret": "s3"}))
    Client().get("/x")
    scheme, proof = daemon.asked[1][2]["Authorization"].split()
    assert scheme == "Secret" and "s3" not in proof
    proofs.Verifier("s3").check(proof, munge.bind("GET", "/x", b""))


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"url": 7}', '{"url": "http://h:1", "uid": "selastic"}'])
def test_a_broken_client_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    """A file that cannot be used is named, with what it should hold."""
    path = tmp_path / "named.json"
    path.write_text(text)
    monkeypatch.setenv("SELASTIC_CLIENT_CONF", str(path))
    with pytest.raises(ConfigError, match=r"named.json .*accepted: (\{|the number of)"):
        Client().get("/x", token="t")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "head:6850",
        "http://",
        "file:///etc/passwd",
        "http://head:99999",
        "http://head:x",
        "http://[::1",
        "http://h:0",
    ],
)
def test_an_address_that_is_none(url: str) -> None:
    """Only http and https with a host are addresses."""
    with pytest.raises(ConfigError, match="is not accepted; accepted: the address of selasticd"):
        Client(url).get("/x", token="t")


def test_slurm_conf_names_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AuthInfo=socket=... counts, in an included file, in any case, behind other words; comments do not."""
    included = tmp_path / "auth.conf"
    included.write_text("authinfo=cred_expire=60,socket=/run/other.socket # here\n")
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\n#AuthInfo=socket=/no\nInclude auth.conf\nSlurmUser=slurm\n")
    monkeypatch.setenv("SLURM_CONF", str(conf))
    assert munge.default_socket() == "/run/other.socket"
    assert munge.slurm_conf_value("SlurmUser") == "slurm"
    conf.write_text("ClusterName=x\n")
    assert munge.default_socket() is None and munge.slurm_conf_value("AuthInfo", str(tmp_path / "no.conf")) is None


@pytest.mark.skipif(find_library("munge") is None, reason="libmunge is not on this host; make test installs it")
def test_without_munged_the_sentence_says_so(tmp_path: Path) -> None:
    """A host where munged does not run gives one sentence that says so."""
    with pytest.raises(munge.MungeError, match="is munged running here"):
        munge.encode(b"x", str(tmp_path / "no.socket"))


def test_without_libmunge_the_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host where MUNGE is not installed gives one that names its packages."""
    monkeypatch.setattr(munge, "LIBRARY", "libmunge.so.none")
    monkeypatch.setattr(munge, "_library", munge._library.__wrapped__)
    with pytest.raises(munge.MungeError, match=r"libmunge\.so\.none is not on this host; install MUNGE"):
        munge.encode(b"x")


def test_the_client_is_light() -> None:
    """The command line imports it at every start: no torch, nothing from outside the standard library."""
    code = (
        "import sys; import slurm_elastic.protocol.api.client; "
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'msgspec', 'sqlalchemy', 'numpy', 'httpx')])"
    )
    done: Any = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_path())
    assert done.stdout.strip() == "[]"


def _path() -> dict[str, str]:
    return {"PYTHONPATH": str(Path(__file__).parents[3] / "packaging" / "namespace")}


def test_a_request_leaves_in_one_piece() -> None:
    """Head and body are one write: selasticd takes a message that arrives whole by the shorter way."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        came: list[bytes] = []

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                for _ in range(2):
                    came.append(connection.recv(65536))
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        thread = threading.Thread(target=serve)
        thread.start()
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}")
        for number in range(2):
            assert client.post("/x", b'{"number":%d}' % number, token="t") == {}
        client.close()
        thread.join()
    assert [each.partition(b"\r\n\r\n")[2] for each in came] == [b'{"number":0}', b'{"number":1}']
