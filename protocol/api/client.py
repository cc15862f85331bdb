"""The HTTP client of selasticd, for supervisors and the command line: over TCP, TLS or the Unix socket of the daemon's
own host. Standard library only.

One request, one answer, no retry: the caller knows whether and when to try again. A thread keeps its connection for its
next request and opens another one if the daemon has closed it; no caller notices. Proxies of the environment are not
used (the daemon is on the cluster's own network), and redirects are refused (a token must not follow one).
"""

import http.client
import json
import os
import secrets
import socket
import struct
import threading
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from ..codec import to_json
from ..errors import ConfigError, DaemonUnreachable, ElasticError, NotAllowed, NotFound
from . import munge, proofs
from .proofs import NONCE, PROOF
from .routes import ROUTES, Route


def _unix(values: dict[str, Any]) -> str:
    """The Unix socket to call the daemon by: the one that the client file names, where it is on this host."""
    path = str(values.get("socket", ""))
    return path if path and os.access(path, os.W_OK) else ""


def connection_to(url: str, values: dict[str, Any], timeout: float) -> http.client.HTTPConnection:
    """A connection that is not open yet."""
    path, parts = _unix(values), urlsplit(url)
    if path:
        return UnixConnection(path, values.get("uid"), timeout)
    if parts.scheme == "http":
        return SingleSendConnection(str(parts.hostname), parts.port, timeout=timeout)
    import ssl

    try:
        context = ssl.create_default_context(cadata=values.get("ca"))
    except (ssl.SSLError, ValueError, TypeError) as error:
        raise ConfigError(f"ca of the client file cannot be read ({error}); accepted: certificates in PEM") from None
    return TlsConnection(str(parts.hostname), parts.port, timeout=timeout, context=context)


class SingleSendConnection(http.client.HTTPConnection):
    """Sends head and body of a request in one piece, when the answer is asked for: what arrives whole costs the daemon
    half of what it costs in two pieces."""

    _held = b""

    def send(self, data: Any) -> None:
        self._held += data

    def getresponse(self) -> http.client.HTTPResponse:
        held, self._held = self._held, b""
        super().send(held)
        return super().getresponse()

    def close(self) -> None:
        """Close, and forget a request that was not sent."""
        self._held = b""
        super().close()


class TlsConnection(SingleSendConnection, http.client.HTTPSConnection):
    """Over TLS."""


def peer_uid(connection: socket.socket) -> int:
    """uid of the process at the other end of a Unix socket, as it was when it connected or listened."""
    size = struct.calcsize("iII")
    _, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid)


class UnixConnection(SingleSendConnection):
    """To a daemon that runs as `uid` (None: not known); nobody else than that user and root is spoken to."""

    def __init__(self, path: str, uid: int | None, timeout: float) -> None:
        super().__init__("selasticd", timeout=timeout)
        self._path, self._uid = path, uid

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
        if self._uid is not None:
            uid = peer_uid(self.sock)
            if uid not in (0, self._uid):
                raise ConnectionError(f"uid {uid} listens on {self._path}, not the daemon's uid {self._uid}")


SITE_FILE = "/etc/slurm-elastic/client.json"
USER_FILE = "~/.slurm-elastic/client.json"
MAX_ANSWER = 64 << 20
"""Longest answer that is read, in bytes."""


class TokenRefused(NotAllowed):
    """401: the token or credential is not (or no longer) known; a supervisor registers again."""


class MessageRefused(ElasticError):
    """400: the daemon does not understand or accept what it was sent; it would refuse the same again."""


class Busy(DaemonUnreachable):
    """429 or 503: selasticd is there but takes nothing now; `retry_after_s` says when to try again."""

    def __init__(self, sentence: str, retry_after_s: float) -> None:
        super().__init__(sentence)
        self.retry_after_s = retry_after_s


class Client:
    """Talks to one selasticd. Making one does no I/O; the address is looked up at each call, since a daemon that is
    started again may have another port.

    `url`: None means the environment's SELASTIC_URL, then the file named by SELASTIC_CLIENT_CONF, then SITE_FILE,
    then USER_FILE. `munge_socket`: None means the one that Slurm uses. `timeout`: seconds for one request.
    """

    def __init__(self, url: str | None = None, munge_socket: str | None = None, timeout: float = 10) -> None:
        self._url = url
        self._munge_socket = munge_socket
        self._timeout = timeout
        self._kept = threading.local()
        self._key = secrets.token_bytes(32)
        self._job_keys: dict[str, proofs.JobKey] = {}
        """Of each job's last registration, by the job's address."""

    def call(
        self,
        route: Route,
        job_id: int | str | None = None,
        query: object = None,
        message: object = None,
        token: str | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any] | None:
        """The answer of an address of the table: its JSON, None when there is nothing new (204). `query` and `message`
        are of the route's types. token: of this client's registration: it is not sent, but proven to be known, unless
        the daemon is older than that. Raises as the module's exceptions say."""
        body = to_json(message) if message is not None else b""
        return self._send(route.method, route.target(job_id, query), body, token, timeout, route.proven)

    def get(self, path: str, token: str | None = None, timeout: float | None = None) -> dict[str, Any] | None:
        """The answer's JSON; None when there is nothing (204). Raises as the module's exceptions say."""
        return self._send("GET", path, b"", token, timeout, proven=token is None and path not in _OPEN)

    def post(
        self, path: str, body: bytes = b"", token: str | None = None, timeout: float | None = None
    ) -> dict[str, Any] | None:
        """Like `get`, with a JSON body."""
        return self._send("POST", path, body, token, timeout, proven=token is None and path not in _OPEN)

    @property
    def url(self) -> str:
        """Where the daemon is. Raises DaemonUnreachable when nothing says so, ConfigError when that is no address."""
        return self._place()[0]

    @property
    def uid(self) -> int | None:
        """Of the daemon's user, where a file says it. Raises as `url` does."""
        return self._place()[1].get("uid")

    def _place(self) -> tuple[str, dict[str, Any]]:
        given = self._url or os.environ.get("SELASTIC_URL")
        values = {"url": given} if given else _file()
        url = str(values["url"]).rstrip("/")
        if not _is_address(url):
            raise ConfigError(f"url={url} is not accepted; accepted: the address of selasticd, as http://HOST:PORT")
        return url, values

    def _send(
        self, method: str, path: str, body: bytes, token: str | None, timeout: float | None, proven: bool
    ) -> dict[str, Any] | None:
        url, values = self._place()
        timeout = self._timeout if timeout is None else timeout
        try:
            status, headers, text = self._exchange(method, path, body, token, (url, values), timeout, proven)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise DaemonUnreachable(f"selasticd at {url} does not answer ({reason}); is it running?") from None
        if not 200 <= status < 300:
            _refused(url, status, headers, text)
        if len(text) > MAX_ANSWER:
            raise ElasticError(f"selasticd at {url} answers {path} with more than {MAX_ANSWER} bytes; ask for less")
        try:
            answered = json.loads(text) if text and status != 204 else None
        except ValueError:
            raise DaemonUnreachable(f"what answers at {url} is not selasticd (its answer is not JSON)") from None
        if token is None and path.endswith("/register"):
            self._registered(path, answered)
        return answered

    def _registered(self, path: str, answered: Any) -> None:
        given = answered if isinstance(answered, dict) else {}
        token, version = given.get("token"), given.get("version")
        if isinstance(token, str) and isinstance(version, int) and version >= proofs.SINCE:
            self._job_keys[path.rpartition("/")[0]] = proofs.JobKey(self._kept.key, token)

    def _exchange(
        self,
        method: str,
        path: str,
        body: bytes,
        token: str | None,
        place: tuple[str, dict[str, Any]],
        timeout: float,
        proven: bool,
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Status, headers and body of the answer. Raises OSError or HTTPException, and DaemonUnreachable where somebody
        else than the daemon answers."""
        url, values = place
        target, nonce = urlsplit(url).path + path, secrets.token_hex(16)
        while True:
            connection, used = self._connection(url, values, timeout)
            headers = {"Accept": "application/json"}
            anybody = not isinstance(connection, (UnixConnection, TlsConnection))  # could be at the other end
            if anybody:
                headers[NONCE] = nonce
            # One for each try: a credential counts once.
            self._kept.key = self._caller_key(connection, values)
            if token is not None:
                authorization = self._spoken(token, method, path, body)
            elif isinstance(connection, UnixConnection):
                authorization = ""  # the kernel tells the daemon who calls
            else:
                authorization = self._proof(munge.bind(method, path, body), values)
            if authorization:
                headers["Authorization"] = authorization
            if method == "POST":
                headers["Content-Type"] = "application/json"
            try:
                connection.request(method, target, body if method == "POST" else None, headers)
                answer = connection.getresponse()
                text = answer.read(MAX_ANSWER + 1)
            except (ConnectionError, http.client.BadStatusLine):
                self.close()
                if not used:
                    raise
                continue  # the daemon closed it while it was idle
            except BaseException:
                self.close()
                raise
            if answer.will_close or len(text) > MAX_ANSWER:
                self.close()
            if proven and anybody and text and 200 <= answer.status < 300:
                self._check(answer, nonce, target, text, place)
            return answer.status, answer.headers, text

    def _connection(self, url: str, values: dict[str, Any], timeout: float) -> tuple[http.client.HTTPConnection, bool]:
        """This thread's connection, and whether it has been used before."""
        key = (os.getpid(), url, values.get("socket"))  # a child has its parent's, and must not speak on it
        kept = getattr(self._kept, "connection", None)
        if kept is not None and kept[0] == key:
            connection: http.client.HTTPConnection = kept[1]
            connection.timeout = timeout
            if connection.sock is not None:
                connection.sock.settimeout(timeout)
                return connection, True
            return connection, False
        if kept is not None and kept[0][0] == key[0]:
            kept[1].close()
        connection = connection_to(url, values, timeout)
        self._kept.connection = (key, connection)
        return connection, False

    def close(self) -> None:
        kept = getattr(self._kept, "connection", None)
        if kept is not None and kept[0][0] == os.getpid():
            kept[1].close()
        self._kept.connection = None

    def _caller_key(self, connection: http.client.HTTPConnection, values: dict[str, Any]) -> bytes:
        """What this caller and the daemon know, and nobody else; empty where a Unix socket needs no such thing."""
        if isinstance(connection, UnixConnection):
            return b""
        return str(values["secret"]).encode() if "secret" in values else self._key

    def _spoken(self, token: str, method: str, path: str, body: bytes) -> str:
        key = self._job_keys.get(path.rpartition("/")[0])
        if key is None or key.token != token:
            return f"Bearer {token}"
        return f"{proofs.SCHEME} {key.prove(munge.bind(method, path, body))}"

    def _proof(self, request: bytes, values: dict[str, Any]) -> str:
        if "secret" in values:
            return f"Secret {proofs.prove_secret(str(values['secret']), request)}"
        payload = munge.with_key(request, self._key)
        return f"MUNGE {munge.encode(payload, self._munge_socket, only_uid=values.get('uid'))}"

    def _check(
        self,
        answer: http.client.HTTPResponse,
        nonce: str,
        target: str,
        text: bytes,
        place: tuple[str, dict[str, Any]],
    ) -> None:
        url, values = place
        key = str(values["secret"]).encode() if "secret" in values else self._key
        if not proofs.answer_proven(answer.headers.get(PROOF, ""), key, nonce, target, answer.status, text):
            self.close()
            whose = "this user's" if "secret" in values else f"uid {values['uid']}'s" if "uid" in values else "any"
            raise DaemonUnreachable(f"what answers at {url} does not prove to be {whose} selasticd; is that running?")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number or too large, half of an IPv6 address
        return False


def _file() -> dict[str, Any]:
    """The first client file that is there: `url`, and optionally `uid` (the daemon's), `secret` (user mode), `socket`
    (a Unix socket on the daemon's own host) and `ca` (who signed the daemon's certificate, PEM)."""
    named = os.environ.get("SELASTIC_CLIENT_CONF")
    for place in [named] if named else [SITE_FILE, USER_FILE]:
        path = Path(os.path.expanduser(place))  # noqa: PTH111 - Path.expanduser raises where there is no home
        try:
            values = json.loads(path.read_text())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise ConfigError(f"client file {path} cannot be read ({error}); accepted: {_FORM}") from None
        if not isinstance(values, dict) or not isinstance(values.get("url"), str):
            raise ConfigError(f"client file {path} has no url; accepted: {_FORM}")
        if "uid" in values and (type(values["uid"]) is not int or not 0 <= values["uid"] < 1 << 32):
            raise ConfigError(
                f"client file {path} has uid={values['uid']!r}; accepted: the number of the daemon's user"
            )
        return values
    raise DaemonUnreachable(
        f"no selasticd is known here: none of SELASTIC_URL, {named or SITE_FILE + ', ' + USER_FILE} gives its address; "
        "start `selasticd --user`, or ask your admin"
    )


_OPEN = frozenset(route.path for route in ROUTES if not route.proven)
_FORM = '{"url": "http://HOST:PORT"}'


def _refused(url: str, status: int, headers: http.client.HTTPMessage, text: bytes) -> NoReturn:
    try:
        sentence = str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        sentence = f"selasticd at {url} answers {status} {http.client.responses.get(status, '')}".rstrip()
    if status == 400:
        raise MessageRefused(sentence)
    if status == 401:
        raise TokenRefused(sentence)
    if status == 403:
        raise NotAllowed(sentence)
    if status == 404:
        raise NotFound(sentence)
    if status in (429, 503):
        after = headers.get("Retry-After", "")
        raise Busy(sentence, float(after) if after.isdigit() else 5.0)
    if status >= 500:
        raise DaemonUnreachable(f"selasticd at {url} has failed ({status}: {sentence})")
    raise ElasticError(sentence)
