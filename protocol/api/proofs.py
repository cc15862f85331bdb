"""Proofs of who speaks, for connections on which anybody could: plain HTTP over TCP. What is said is not hidden.

Of an answer, that it comes from the daemon. The client makes a key. It tells the daemon within its MUNGE credential,
which only the daemon's user can open, or it is the secret of a user's own daemon; it never crosses the network as it
is. Each request names a nonce, and the answer carries a code of the key over nonce, address, status and body. Who took
the daemon's port while it was down can answer nothing that a client takes for an answer; errors and answers without a
body prove nothing, and nothing follows from them but another try.

Of a request, that it is of a job's supervisor, made for that request alone. Both ends make a key at a registration,
from the key of that registration's caller and the token in its answer. A request carries a code of the key over its
number, method, address and body. Who has heard, or been sent, a request can use it for nothing: each number counts
once, and a key ends with the job's next registration and with the daemon.

Of a user's own daemon, that its caller has read client.json, which holds a secret that requests never do. A proof is
good for one request, once, within MAX_AGE_S: the clocks of the hosts must agree to that, as MUNGE's must. Which proofs
were used is forgotten when the daemon ends.
"""

import hashlib
import hmac
import itertools
import os
import re
import threading
import time
from collections.abc import Callable

from ..errors import NotAllowed

NONCE = "Selastic-Nonce"
PROOF = "Selastic-Proof"


def prove_answer(key: bytes, nonce: str, target: str, status: int, body: bytes) -> str:
    """The proof of an answer with this status and body to a request for `target` (path and query)."""
    head = f"{nonce} {target} {status} ".encode()
    return hmac.new(key, head + hashlib.sha256(body).digest(), hashlib.sha256).hexdigest()


def answer_proven(proof: str, key: bytes, nonce: str, target: str, status: int, body: bytes) -> bool:
    """Whether whoever made the proof knows the key."""
    return hmac.compare_digest(proof.encode(), prove_answer(key, nonce, target, status, body).encode())


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


MAX_AGE_S = 300.0
_SECRET_FORM = re.compile(r"([0-9]{1,12}\.[0-9]{3}\.[0-9a-f]{16})\.([0-9a-f]{64})", re.ASCII)


def prove_secret(secret: str, message: bytes, clock: Callable[[], float] = time.time) -> str:
    """A proof that its maker knows the secret, made now for this message."""
    stamp = f"{clock():.3f}.{os.urandom(8).hex()}"
    return f"{stamp}.{_secret_code(secret, stamp, message)}"


class Verifier:
    """Looks at proofs of one secret. From any thread."""

    def __init__(self, secret: str, clock: Callable[[], float] = time.time) -> None:
        self._secret, self._clock = secret, clock
        self._lock = threading.Lock()
        self._seen: dict[str, float] = {}

    def check(self, proof: str, message: bytes) -> None:
        """Raises NotAllowed for one that is forged, made for another message, used before, or of another time."""
        match = _SECRET_FORM.fullmatch(proof)
        if match is None or not hmac.compare_digest(match[2], _secret_code(self._secret, match[1], message)):
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


def _secret_code(secret: str, stamp: str, message: bytes) -> str:
    return hmac.new(secret.encode(), stamp.encode() + b" " + message, hashlib.sha256).hexdigest()
