"""MUNGE through libmunge: proves to another process who called. Standard library only.

A credential is made for one payload and accepted once. The return code of libmunge is looked at before anything else:
a decode that fails (expired, replayed, forged) still fills in a uid, which must never be believed.
"""

import ctypes
import functools
import hashlib
import hmac
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ElasticError, NotAllowed

LIBRARY = "libmunge.so.2"
DEFAULT_SLURM_CONF = "/etc/slurm/slurm.conf"
MAX_CREDENTIAL = 16_384
"""Longest credential that is looked at, in characters."""

_SUCCESS, _SOCKET, _TIMEOUT = 0, 6, 7
_SNAFU, _NO_MEMORY = 1, 5
_EXPIRED, _REWOUND = 15, 16
_CLOCKS = "do the clocks of the two hosts differ?"
_SLURM_SAYS = re.compile(r"zero bytes were transmitted|credential expired|(expired|rewound) credential", re.IGNORECASE)
"""What Slurm's commands say where MUNGE has refused a credential for its time; of the first they do not know why."""
_OPT_TTL, _OPT_SOCKET, _OPT_UID_RESTRICTION = 4, 8, 9


class MungeError(ElasticError):
    """MUNGE cannot be asked: no library, no munged."""


class CredentialRefused(MungeError, NotAllowed):
    """A credential that is forged, expired, used before, or meant for someone else."""


@dataclass(frozen=True, slots=True)
class Credential:
    """What a credential says: who made it, and for what."""

    uid: int
    gid: int
    payload: bytes


def encode(payload: bytes, socket: str | None = None, *, ttl_s: int = 0, only_uid: int | None = None) -> str:
    """A credential of the calling process for this payload; `only_uid` (and root) alone may decode it.

    `socket`: munged's; None: the one that Slurm uses. `ttl_s` 0: the site's default. Raises MungeError.
    """
    library = _library()
    credential = ctypes.c_void_p()
    with _Context(library, socket) as context:
        if ttl_s:
            library.munge_ctx_set(context, ctypes.c_int(_OPT_TTL), ctypes.c_int(ttl_s))
        if only_uid is not None:
            library.munge_ctx_set(context, ctypes.c_int(_OPT_UID_RESTRICTION), ctypes.c_uint32(only_uid))
        code = library.munge_encode(ctypes.byref(credential), context, payload, len(payload))
        try:
            if code != _SUCCESS:
                raise MungeError(f"MUNGE gives no credential ({_why(library, context, code)}); is munged running here?")
            return ctypes.string_at(credential.value or 0).decode("ascii")
        finally:
            library.free(credential)


def decode(credential: str, socket: str | None = None) -> Credential:
    """Who made this credential. Each is accepted once on a host.

    Raises CredentialRefused for one that must not be believed, MungeError when munged cannot be asked.
    """
    if len(credential) > MAX_CREDENTIAL or not re.fullmatch(r"MUNGE:[A-Za-z0-9+/=]+:", credential):
        raise CredentialRefused("the credential is not one of MUNGE's; accepted: the output of munge_encode")
    library = _library()
    payload, length = ctypes.c_void_p(), ctypes.c_int()
    uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
    with _Context(library, socket) as context:
        code = library.munge_decode(
            credential.encode("ascii"),
            context,
            ctypes.byref(payload),
            ctypes.byref(length),
            ctypes.byref(uid),
            ctypes.byref(gid),
        )
        try:
            if code in (_SNAFU, _NO_MEMORY, _SOCKET, _TIMEOUT):
                raise MungeError(f"MUNGE cannot be asked ({_why(library, context, code)}); is munged running here?")
            if code != _SUCCESS:
                raise CredentialRefused(f"the credential is refused by MUNGE ({_why(library, context, code)})")
            data = ctypes.string_at(payload.value, length.value) if payload.value and length.value > 0 else b""
            return Credential(uid.value, gid.value, data)
        finally:
            library.free(payload)


def bind(method: str, target: str, body: bytes) -> bytes:
    """The payload that ties a credential to one HTTP request: stolen on its way, it is good for nothing else."""
    return f"selastic/1 {method} {target} {hashlib.sha256(body).hexdigest()}".encode()


def with_key(bound: bytes, key: bytes) -> bytes:
    """The same, with a key for the daemon alone (give its uid to `encode`): see api/proofs.py."""
    return bound + b" " + key.hex().encode()


def key_in(payload: bytes, bound: bytes) -> bytes | None:
    """The key in a payload that is bound to this request, b"" if it has none; None: it is bound to another one."""
    if not hmac.compare_digest(payload[: len(bound)], bound):
        return None
    try:
        return bytes.fromhex(payload[len(bound) :].decode("ascii"))
    except ValueError:
        return None


def default_socket(slurm_conf: str | None = None) -> str | None:
    """The socket that Slurm's configuration names (AuthInfo=socket=...); None: MUNGE's own default."""
    match = re.search(r"(?:^|,)\s*socket=([^,\s]+)", slurm_conf_value("AuthInfo", slurm_conf) or "")
    return match.group(1) if match else None


def slurm_conf_value(key: str, path: str | None = None, depth: int = 0) -> str | None:
    """The value of a key in slurm.conf (by default $SLURM_CONF), its `include` files read too; None: not there."""
    conf = _slurm_conf(path)
    try:
        text = conf.read_text(errors="replace")
    except OSError:
        return None
    found = None
    for line in text.splitlines():
        words = line.split("#", 1)[0].strip()
        included = re.match(r"include\s+(\S+)", words, re.IGNORECASE)
        if included and depth < 5:
            # As Slurm has it: a relative path starts where the file that names it lies.
            found = slurm_conf_value(key, str(conf.parent / included.group(1)), depth + 1) or found
        match = re.match(rf"{re.escape(key)}\s*=\s*(\S+)", words, re.IGNORECASE)
        found = match.group(1).strip('"') if match else found
    return found


def has_slurm_conf(path: str | None = None) -> bool:
    """Whether slurm.conf can be read here; a host that gets it from slurmctld ("configless") has none."""
    return os.access(_slurm_conf(path), os.R_OK)


def _slurm_conf(path: str | None) -> Path:
    return Path(path or os.environ.get("SLURM_CONF") or DEFAULT_SLURM_CONF)


class _Context:
    """A munge_ctx_t with its socket set, freed at the end."""

    def __init__(self, library: Any, socket: str | None) -> None:
        self._library = library
        self._socket = default_socket() if socket is None else socket

    def __enter__(self) -> ctypes.c_void_p:
        self._context = ctypes.c_void_p(self._library.munge_ctx_create())
        if not self._context.value:
            raise MungeError("MUNGE gives no context: this host is out of memory")
        if self._socket:
            self._library.munge_ctx_set(self._context, ctypes.c_int(_OPT_SOCKET), os.fsencode(self._socket))
        return self._context

    def __exit__(self, *_: object) -> None:
        self._library.munge_ctx_destroy(self._context)


def _why(library: Any, context: ctypes.c_void_p, code: int) -> str:
    text = library.munge_ctx_strerror(context) or library.munge_strerror(code) or b"unknown error"
    said = str(text.decode(errors="replace"))
    return f"{said}: {_CLOCKS}" if code in (_EXPIRED, _REWOUND) else said


def with_cause(said: str) -> str:
    """What one of Slurm's commands said, with the likely cause where that is a clock."""
    return f"{said} ({_CLOCKS})" if _SLURM_SAYS.search(said) and _CLOCKS not in said else said


@functools.cache
def _library() -> Any:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        text = f"{LIBRARY} is not on this host; install MUNGE (Debian: libmunge2, Red Hat: munge-libs)"
        raise MungeError(text) from None
    library.munge_ctx_create.restype = ctypes.c_void_p
    library.munge_ctx_destroy.argtypes = [ctypes.c_void_p]
    library.munge_ctx_strerror.argtypes = [ctypes.c_void_p]
    library.munge_ctx_strerror.restype = ctypes.c_char_p
    library.munge_strerror.restype = ctypes.c_char_p
    library.munge_encode.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    library.munge_decode.argtypes = [ctypes.c_char_p, *[ctypes.c_void_p] * 5]
    # libmunge is linked to libc, so its allocations are given back through the same free().
    library.free.argtypes = [ctypes.c_void_p]
    library.free.restype = None
    return library
