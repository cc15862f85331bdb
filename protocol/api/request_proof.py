"""Proofs that a request is of a job's supervisor, made for that request alone: a key which is never sent, and numbers.

Both ends make the key at a registration, from the key of that registration's caller (answer_proof.py) and the token in
its answer. A request carries a code of the key over its number, method, address and body.

Promise: who has heard, or been sent, a request can use it for nothing: each number counts once, and a key ends with the
job's next registration and with the daemon. Limit: what is said is not hidden.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import re

SCHEME = "Proof"
SINCE = 5
"""The first version of the messages whose supervisors and daemons prove requests; those before send the token."""
WINDOW = 64
"""How far a number may lie behind the highest: two threads of a supervisor ask at once."""
_FORM = re.compile(r"(p[0-9a-f]{31})\.([1-9][0-9]{0,17})\.([0-9a-f]{64})", re.ASCII)


class JobKey:
    """What one registration has given."""

    def __init__(self, key: bytes, token: str) -> None:
        """key: what the registration's answer is proven with."""
        self.token = token
        self.name = "p" + hashlib.sha256(token.encode()).hexdigest()[:31]
        """Sent with each request; no digest of a token has its form."""
        self._key = hmac.digest(key, b"job " + token.encode(), "sha256")
        self._numbers = itertools.count(1)

    def prove(self, request: bytes) -> str:
        """A proof for this request, as munge.bind describes it."""
        number = str(next(self._numbers))
        return f"{self.name}.{number}.{self.code(number, request)}"

    def code(self, number: str, request: bytes) -> str:
        return hmac.digest(self._key, number.encode() + b" " + request, "sha256").hex()


class JobProofs:
    """The daemon's side of a registration. From one thread."""

    def __init__(self, key: bytes, token: str) -> None:
        self.answers = key
        """What answers are proven with."""
        self._job, self.token = JobKey(key, token), token
        self.name = self._job.name
        self._highest, self._taken = 0, 0

    def named(self, proof: str) -> bool:
        """Whether a proof claims to be of this registration."""
        return proof.startswith(self.name + ".")

    def take(self, proof: str, request: bytes) -> bool:
        """Whether it is one for this request that has not been taken before; it is taken then."""
        match = _FORM.fullmatch(proof)
        if match is None or match[1] != self.name:
            return False
        if not hmac.compare_digest(match[3], self._job.code(match[2], request)):
            return False
        ahead = int(match[2]) - self._highest
        if ahead > 0:
            self._highest += ahead
            self._taken = 1 | (self._taken << ahead if ahead < WINDOW else 0) & (1 << WINDOW) - 1
            return True
        fresh = -ahead < WINDOW and not self._taken >> -ahead & 1
        self._taken |= 1 << -ahead if fresh else 0
        return fresh
