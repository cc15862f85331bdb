"""Proofs of a shared secret, for a user's own daemon: its client.json holds the secret, and requests never do.

Promise: a proof is good for one request, once, within MAX_AGE_S: whoever listens on the network can use it for nothing.
Limits: the clocks of the hosts must agree to MAX_AGE_S, as MUNGE's must; what is said is not hidden, only who says it
is proven; which proofs were used is forgotten when the daemon ends.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import threading
import time
from collections.abc import Callable

from ..errors import NotAllowed

MAX_AGE_S = 300.0
_FORM = re.compile(r"([0-9]{1,12}\.[0-9]{3}\.[0-9a-f]{16})\.([0-9a-f]{64})", re.ASCII)


def prove(secret: str, message: bytes, clock: Callable[[], float] = time.time) -> str:
    """A proof that its maker knows the secret, made now for this message."""
    stamp = f"{clock():.3f}.{os.urandom(8).hex()}"
    return f"{stamp}.{_code(secret, stamp, message)}"


class Verifier:
    """Looks at proofs of one secret. From any thread."""

    def __init__(self, secret: str, clock: Callable[[], float] = time.time) -> None:
        self._secret, self._clock = secret, clock
        self._lock = threading.Lock()
        self._seen: dict[str, float] = {}

    def check(self, proof: str, message: bytes) -> None:
        """Raises NotAllowed for one that is forged, made for another message, used before, or of another time."""
        match = _FORM.fullmatch(proof)
        if match is None or not hmac.compare_digest(match[2], _code(self._secret, match[1], message)):
            raise NotAllowed("the proof does not fit secret and request; read client.json again")
        stamp, made, now = match[1], float(match[1].rpartition(".")[0]), self._clock()
        if abs(now - made) > MAX_AGE_S:
            raise NotAllowed(f"the proof was made {abs(now - made):.0f} s away from now; set the hosts' clocks")
        with self._lock:
            if stamp in self._seen:
                raise NotAllowed("the proof has been used before; make one for each request")
            self._seen[stamp] = made
            # Those that are refused for their age need not be remembered. The one that came last ends the loop.
            while self._seen[oldest := next(iter(self._seen))] < now - MAX_AGE_S:
                del self._seen[oldest]


def _code(secret: str, stamp: str, message: bytes) -> str:
    return hmac.new(secret.encode(), stamp.encode() + b" " + message, hashlib.sha256).hexdigest()
