"""Who calls: a uid proven by MUNGE (or, for a user's own daemon, by who knows the secret of their client file), and
what that uid may see. Slurm says whose job it is, never the caller.

A credential or a proof counts for one request only: it was made for this method, address and body, and is accepted
once. Slurm is asked in the background, every REFRESH_S seconds, for its operators, who are admins of selasticd, and
whether users see each other's jobs: no request waits for Slurm, and its last answer counts.
Limit: without slurmdbd, or where it hides its users from the daemon's, there are no operators; the setting `admins`
names more.
"""

from __future__ import annotations

import logging
import os
import pwd
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slurm_elastic.protocol.api import munge
from slurm_elastic.protocol.api.proofs import SCHEME, Verifier
from slurm_elastic.protocol.errors import ConfigError, NotAllowed, SlurmError

from ..reports.common import Viewer
from .settings import ServerSettings

log = logging.getLogger(__name__)
REFRESH_S = 60.0


class Unauthenticated(NotAllowed):
    """Nobody that we know: 401, where NotAllowed is 403."""


class Authenticator:
    """Finds out who calls. Blocking (it asks munged): call it from a thread.

    roles: what Slurm says of its operators, and of whether it hides others' jobs. While slurmctld has not said that,
    slurm.conf counts, and without that file they are hidden.
    """

    def __init__(self, settings: ServerSettings, roles: SlurmRoles | None = None) -> None:
        self._roles = roles or SlurmRoles(tuple, str)
        conf = settings.slurm_conf or None
        self._private_here = hides_jobs(munge.slurm_conf_value("PrivateData", conf) or "") or not munge.has_slurm_conf(
            conf
        )
        self._listen_socket = settings.listen_socket
        self._ca = _certificates(settings.tls_ca) if settings.tls_ca else ""
        self.munge_socket = settings.munge_socket or None
        """munged's; None: the usual one."""
        if self.munge_socket is None and settings.slurm_conf:
            self.munge_socket = munge.default_socket(settings.slurm_conf)
        self._only_uid = os.geteuid() if settings.user_mode else None
        self._secret = secrets.token_urlsafe(32) if settings.user_mode else None
        self._proofs = Verifier(self._secret) if self._secret is not None else None
        slurms_user = munge.slurm_conf_value("SlurmUser", settings.slurm_conf or None) or "root"
        self._admins = {0, os.geteuid(), *uids((*settings.admins, slurms_user))}

    def who(self, authorization: str | None, method: str, target: str, body: bytes) -> Viewer:
        """The caller of a request to `target` (path and query as sent).

        Raises Unauthenticated, NotAllowed, or MungeError when munged cannot be asked.
        """
        scheme, _, value = (authorization or "").partition(" ")
        if scheme == "Secret" and self._proofs is not None:
            try:
                self._proofs.check(value, munge.bind(method, target, body))
            except NotAllowed as error:
                raise Unauthenticated(str(error)) from None
            return self.viewer(os.geteuid(), str(self._secret).encode())
        if scheme != "MUNGE":
            raise Unauthenticated("the request does not say who sends it; accepted: Authorization: MUNGE <credential>")
        try:
            caller = munge.decode(value, self.munge_socket)
        except munge.CredentialRefused as error:
            raise Unauthenticated(str(error)) from None
        key = munge.key_in(caller.payload, munge.bind(method, target, body))
        if key is None:
            raise Unauthenticated("the credential was made for another request; make one for each")
        return self.local(caller.uid, key)

    def local(self, uid: int, key: bytes = b"") -> Viewer:
        """A caller whose uid is known: MUNGE has proven it, or the kernel. Raises NotAllowed."""
        if self._only_uid is not None and uid != self._only_uid:
            raise NotAllowed(f"this selasticd serves uid {self._only_uid} only, who started it; you are uid {uid}")
        return self.viewer(uid, key)

    def viewer(self, uid: int, key: bytes = b"") -> Viewer:
        admin = uid in self._admins or uid in self._roles.uids
        private = self._private_here if self._roles.private is None else self._roles.private
        return Viewer(uid, admin, not admin and private, key)

    def client_values(self, url: str) -> dict[str, Any]:
        """What client.json has to hold for callers to reach and to trust this daemon.

        With a `secret` in it (user mode) the file must be readable by its owner only.
        """
        values: dict[str, Any] = {"url": url, "uid": os.geteuid()}
        values |= {"socket": self._listen_socket} if self._listen_socket else {}
        values |= {"ca": self._ca} if self._ca else {}
        return values if self._secret is None else {**values, "secret": self._secret}


def spoken(authorization: str | None) -> tuple[str, str]:
    """How a request says that it is of a job's supervisor, and what it says. Raises Unauthenticated."""
    scheme, _, value = (authorization or "").partition(" ")
    if scheme not in (SCHEME, "Bearer") or not value:
        raise Unauthenticated(
            "the request is of no job's supervisor; register the job first: POST /v1/jobs/ID/register"
        )
    return scheme, value


def _certificates(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"tls_ca={path} cannot be read ({error}); accepted: certificates in PEM") from None


class SlurmRoles:
    """`ask` gives user names, `private_data` slurmctld's PrivateData; both raise SlurmError when there is no answer."""

    def __init__(
        self,
        ask: Callable[[], Collection[str]],
        private_data: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._private_data, self._clock = ask, private_data, clock
        self._due = float("-inf")
        self._busy = threading.Lock()
        self.uids: frozenset[int] = frozenset()
        self.private: bool | None = None
        """Others' jobs are hidden; None: Slurm has not said yet."""

    def refresh(self) -> None:
        """Ask in the background if it is due."""
        if self._clock() >= self._due and self._busy.acquire(blocking=False):
            self._due = self._clock() + REFRESH_S
            threading.Thread(target=self._ask_slurm, name="operators", daemon=True).start()

    def _ask_slurm(self) -> None:
        try:
            with _logged("Slurm's operators"):
                self.uids = uids(self._ask())
            with _logged("Slurm's PrivateData"):
                self.private = hides_jobs(self._private_data())
        finally:
            self._busy.release()


@contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except SlurmError as error:
        log.debug("%s: not known for now: %s", what, error)


def hides_jobs(private_data: str) -> bool:
    """Whether this value of Slurm's PrivateData hides others' jobs."""
    return bool({"jobs", "all"} & set(private_data.lower().split(",")))


def uids(users: Collection[str]) -> frozenset[int]:
    """Numbers of these users (names or numbers); a name that is unknown here can call nobody."""
    found = set()
    for user in users:
        if user.isdigit():
            found.add(int(user))
            continue
        try:
            found.add(pwd.getpwnam(user.partition("(")[0]).pw_uid)
        except KeyError:
            continue
    return frozenset(found)
