"""Proofs that an answer comes from the daemon, for connections on which anybody could answer: plain HTTP over TCP.

The client makes a key. It tells the daemon within its MUNGE credential, which only the daemon's user can open, or it is
the secret of a user's own daemon; it never crosses the network as it is. Each request names a nonce, and the answer
carries a code of the key over nonce, address, status and body.

Promise: who took the daemon's port while it was down can answer nothing that a client takes for an answer. Limits: what
is said is not hidden; errors and answers without a body prove nothing, and nothing follows from them but another try.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

NONCE = "Selastic-Nonce"
PROOF = "Selastic-Proof"


def new_nonce() -> str:
    """One for each request."""
    return secrets.token_hex(16)


def prove(key: bytes, nonce: str, target: str, status: int, body: bytes) -> str:
    """The proof of an answer with this status and body to a request for `target` (path and query)."""
    head = f"{nonce} {target} {status} ".encode()
    return hmac.new(key, head + hashlib.sha256(body).digest(), hashlib.sha256).hexdigest()


def proven(proof: str, key: bytes, nonce: str, target: str, status: int, body: bytes) -> bool:
    """Whether whoever made the proof knows the key."""
    return hmac.compare_digest(proof.encode(), prove(key, nonce, target, status, body).encode())
