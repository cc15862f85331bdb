"""The HTTP client of selasticd, for supervisors and the command line. Standard library only.

One request, one answer, no retry: who calls knows whether and when to try again. Proxies of the environment are left
alone (the daemon is on the cluster's own network), and redirects are refused (a token must not follow one).
"""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from . import munge
from .errors import ConfigError, DaemonUnreachable, ElasticError, NotAllowed, NotFound

SITE_FILE = "/etc/slurm-elastic/client.json"
USER_FILE = "~/.slurm-elastic/client.json"
MAX_ANSWER = 64 << 20
"""Longest answer that is read, in bytes."""


class TokenRefused(NotAllowed):
    """401: the token or credential is not (or no longer) known; a supervisor registers again."""


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
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())

    def get(self, path: str, token: str | None = None, timeout: float | None = None) -> dict[str, Any] | None:
        """The answer's JSON; None when there is nothing (204). Raises as the module's exceptions say."""
        return self._send("GET", path, b"", token, timeout)

    def post(
        self, path: str, body: bytes = b"", token: str | None = None, timeout: float | None = None
    ) -> dict[str, Any] | None:
        """Like `get`, with a JSON body."""
        return self._send("POST", path, body, token, timeout)

    @property
    def url(self) -> str:
        """Where the daemon is. Raises DaemonUnreachable when nothing says so, ConfigError when that is no address."""
        return self._place()[0]

    def _place(self) -> tuple[str, dict[str, Any]]:
        given = self._url or os.environ.get("SELASTIC_URL")
        values = {"url": given} if given else _file()
        url = str(values["url"]).rstrip("/")
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ConfigError(f"url={url} is not accepted; accepted: the address of selasticd, as http://HOST:PORT")
        return url, values

    def _send(
        self, method: str, path: str, body: bytes, token: str | None, timeout: float | None
    ) -> dict[str, Any] | None:
        url, values = self._place()
        request = urllib.request.Request(url + path, data=body if method == "POST" else None, method=method)
        request.add_header("Authorization", self._authorization(method, path, body, token, values))
        request.add_header("Accept", "application/json")
        if method == "POST":
            request.add_header("Content-Type", "application/json")
        try:
            with self._opener.open(request, timeout=self._timeout if timeout is None else timeout) as answer:
                text = answer.read(MAX_ANSWER + 1)
                if len(text) > MAX_ANSWER:
                    raise ElasticError(
                        f"selasticd at {url} answers {path} with more than {MAX_ANSWER} bytes; ask for less"
                    )
                return json.loads(text) if text and answer.status != 204 else None
        except urllib.error.HTTPError as error:
            with error:
                _refused(url, error)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise DaemonUnreachable(f"selasticd at {url} does not answer ({reason}); is it running?") from None
        except ValueError:
            raise DaemonUnreachable(f"what answers at {url} is not selasticd (its answer is not JSON)") from None

    def _authorization(self, method: str, path: str, body: bytes, token: str | None, values: dict[str, Any]) -> str:
        if token is not None:
            return f"Bearer {token}"
        if "secret" in values:
            return f"Secret {values['secret']}"
        credential = munge.encode(munge.bind(method, path, body), self._munge_socket, only_uid=values.get("uid"))
        return f"MUNGE {credential}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _file() -> dict[str, Any]:
    """The first client file that is there: `url`, and optionally `uid` (the daemon's) and `secret` (user mode)."""
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
        return values
    raise DaemonUnreachable(
        f"no selasticd is known here: none of SELASTIC_URL, {named or SITE_FILE + ', ' + USER_FILE} gives its address; "
        "start `selasticd --user`, or ask your admin"
    )


_FORM = '{"url": "http://HOST:PORT"}'


def _refused(url: str, error: urllib.error.HTTPError) -> NoReturn:
    try:
        sentence = str(json.loads(error.read(1 << 16))["error"])
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        sentence = f"selasticd at {url} answers {error.code} {error.reason}"
    if error.code == 401:
        raise TokenRefused(sentence)
    if error.code == 403:
        raise NotAllowed(sentence)
    if error.code == 404:
        raise NotFound(sentence)
    if error.code in (429, 503):
        after = error.headers.get("Retry-After", "")
        raise Busy(sentence, float(after) if after.isdigit() else 5.0)
    if error.code >= 500:
        raise DaemonUnreachable(f"selasticd at {url} has failed ({error.code}: {sentence})")
    raise ElasticError(sentence)
